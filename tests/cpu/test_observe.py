"""Every tensor of a model is handed over once a batch, however many stages that takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.rewrite_graphs import model
from trtopt.data import SampleSource, open_data
from trtopt.data.readers import Arrays, HeldReader
from trtopt.errors import DataError, ModelError
from trtopt.onnxio.model_file import ModelFile, load
from trtopt.precision import observe as observing, running
from trtopt.precision.observe import float_tensors, observe
from trtopt.records import TensorSpec

CHAIN = """g (float[N,8] x, bool flag) => (float[N,8] y)
    {a = Add(x, x) i = Cast<to=7>(a) f = Cast<to=1>(i) b = Mul(f, a) y = Sub(b, x)}"""
X = np.arange(40, dtype=np.float32).reshape(5, 8)
VALUES = {"x": X, "a": 2 * X, "f": 2 * X, "b": 4 * X * X, "y": 4 * X * X - X}


def chain(tmp_path: Path) -> ModelFile:
    onnx.save(model(CHAIN), tmp_path / "m.onnx")
    return load(tmp_path / "m.onnx")


def source() -> SampleSource:
    return SampleSource("held", [HeldReader([{"x": X, "flag": np.array(True)}])])


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The sessions that are opened."""
    opened: list[object] = []
    monkeypatch.setattr(
        observing, "open_proto", lambda *given: opened.append(given) or running.open_proto(*given)
    )
    return opened


def test_the_fp32_tensors_are_listed_in_the_order_of_the_graph(tmp_path: Path) -> None:
    assert float_tensors(chain(tmp_path)) == ("x", "a", "f", "b", "y")


@pytest.mark.parametrize(
    ("limit", "batch", "count"),
    [(1 << 30, 5, 1), (5 * 32 * 2, 2, 1), (5 * 32, 1, 1), (2 * 32, 1, 3), (1, 1, 4)],
)
def test_every_tensor_is_seen_once_a_batch_in_as_many_stages_as_the_limit_asks(
    limit: int,
    batch: int,
    count: int,
    tmp_path: Path,
    stages: list[object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(observing, "LIMIT_BYTES", limit)
    found: dict[str, list[tuple[int, np.ndarray]]] = {}
    samples = observe(
        chain(tmp_path),
        source(),
        ["x", "a", "f", "b", "y"],
        lambda name, values, first: found.setdefault(name, []).append((first, values.copy())),
    )
    for name, values in VALUES.items():
        np.testing.assert_array_equal(np.concatenate([part for _, part in found[name]]), values)
        lengths = [len(part) for _, part in found[name]]
        assert [first for first, _ in found[name]] == [sum(lengths[:i]) for i in range(len(lengths))]
        assert max(lengths) == batch
    assert (len(stages), samples) == (count, 5)


def test_the_data_is_read_once_however_many_stages_there_are(
    tmp_path: Path, stages: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observing, "LIMIT_BYTES", 1)
    asked: list[int] = []

    class Counted(SampleSource):
        def batches(self, inputs: Sequence[TensorSpec], size: int) -> Iterator[Arrays]:
            asked.append(size)
            yield from super().batches(inputs, size)

    counted = Counted("held", [HeldReader([{"x": X, "flag": np.array(True)}])])
    observe(chain(tmp_path), counted, list(VALUES), lambda *_: None)
    assert len(stages) == len(VALUES) - 1  # an input needs none
    assert asked == [1, 1]  # the first sample for its shapes, then all of them


def test_a_model_that_onnx_runtime_cannot_run_is_an_error_of_ours(tmp_path: Path) -> None:
    broken = model("g (float[N,8] x) => (float[N,8] y) {h = Reshape(x, s) y = Relu(h)}")
    broken.graph.initializer.append(onnx.numpy_helper.from_array(np.array([3, 5]), "s"))
    onnx.save(broken, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="ONNX Runtime cannot run the model"):
        observe(load(tmp_path / "m.onnx"), source(), ["y"], lambda *_: None)


def test_data_for_another_model_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", z=X)
    with pytest.raises(DataError, match="no array named 'x'"):
        observe(chain(tmp_path), open_data(tmp_path / "d.npz"), ["y"], lambda *_: None)
