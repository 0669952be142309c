"""A chain of engines, used as one: built, verified, benched, profiled, compared, checked, served."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import trtopt
from tests.support.command_line import DIGITS, HELDOUT, CommandLine
from trtopt.errors import UsageError
from trtopt.files.manifests import read_manifest
from trtopt.inspect.inspector import read_inspector
from trtopt.records import Manifest
from trtopt.serving import EnginePool
from trtopt.workflows.build.rebuild import rebuild_locked

STEM, BLOCK1 = "/stem_relu/Relu_output_0", "/block1/relu2/Relu_output_0"


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stem whole, block 1 four times, the rest whole."""
    folder = tmp_path_factory.mktemp("chain") / "chain"
    splits = [f"{STEM}:1", f"{BLOCK1}:4"]
    trtopt.build(DIGITS, folder, batch=8, backend="onnxruntime", split=splits)
    return folder


def test_the_manifest_describes_the_chain(chain: Path) -> None:
    (engine,) = read_manifest(chain).engines
    assert engine.path == "batch8.chain"
    assert [(one.batch, one.repeats) for one in engine.chain] == [(8, 1), (2, 4), (8, 1)]
    assert engine.chain[1].inputs[0].name == STEM
    assert engine.chain[1].outputs[0].shape == (2, *engine.chain[2].inputs[0].shape[1:])
    assert [(spec.name, spec.shape[0]) for spec in (*engine.inputs, *engine.outputs)] == [
        ("images", 8),
        ("logits", 8),
    ]


def test_it_is_measured_profiled_compared_and_checked_like_an_engine(chain: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    trtopt.build(DIGITS, whole, batch=8, backend="onnxruntime")
    assert trtopt.bench(chain, duration=0.1).points[0].latency.engine.path.endswith("batch8.chain")
    compared = trtopt.compare(whole, chain, duration=0.1)
    assert [run.batch for run in compared.report.runs] == [8]
    checked = trtopt.check(chain, DIGITS, data=HELDOUT)
    assert min(one.cosine for one in checked.subjects[0].outputs) > 0.999999
    (engine,) = trtopt.profile(chain, duration=0.1).engines
    covered = {name for layer in engine.layers for name in layer.onnx_nodes}
    assert any("stem" in name for name in covered)
    assert any("block3" in name for name in covered)
    segments = {layer.name.rpartition(" [segment ")[2] for layer in engine.layers}
    assert segments == {"1]", "2]", "3]"}
    assert engine.coverage.unmatched_times == ()


def test_the_pool_serves_it_and_pads_what_is_less_than_its_batch(chain: Path) -> None:
    images = np.load(HELDOUT)["images"][:11]
    with EnginePool.open(chain) as pool:
        found = pool.run({"images": images})["logits"]
    wanted = [trtopt_reference(images[row : row + 1]) for row in range(len(images))]
    np.testing.assert_allclose(found, np.concatenate(wanted), rtol=1e-4, atol=1e-4)


def trtopt_reference(images: np.ndarray) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(DIGITS, providers=["CPUExecutionProvider"])
    logits: np.ndarray = session.run(None, {"images": images})[0]
    return logits


def test_it_is_rebuilt_from_its_manifest(chain: Path, tmp_path: Path) -> None:
    again, changes = rebuild_locked(chain, tmp_path / "again")
    assert again.engines[0].plan == read_manifest(chain).engines[0].plan
    assert again.engines[0].sha256 == read_manifest(chain).engines[0].sha256
    assert not [change for change in changes if "SHA" in change.what]


def test_a_chain_that_was_changed_is_not_loaded(chain: Path, tmp_path: Path, trtopt_cli: CommandLine) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in chain.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    engine = copy / "batch8.chain"
    engine.write_bytes(engine.read_bytes()[:-1] + b"!")
    assert "changed" in trtopt_cli.fails(1, "bench", copy)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"batch": 6, "split": [f"{BLOCK1}:4"]}, "a batch of 6 has no 4 equal parts"),
        ({"batch": [1, 4, 8], "dynamic": True, "split": [f"{BLOCK1}:2"]}, "a chain runs one batch size"),
        ({"batch": 8, "split": [f"{BLOCK1}=chw32:2"]}, "no vectorised formats"),
        ({"batch": 8, "split": ["/block1/relu2/Relu_output:2"]}, "no such tensor"),
        ({"batch": 8, "split": ["/block1/conv2/Conv_output_0:2"]}, "also crosses the cut|no such tensor"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object], problem: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=problem):
        trtopt.build(DIGITS, tmp_path / "out", backend="onnxruntime", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("precision", "layout"), [("fp16", "hwc8"), ("int8", "chw32")])
def test_tensorrt_rtx_builds_segments_that_exchange_a_vectorised_format(
    precision: str, layout: str, tmp_path: Path
) -> None:
    plain = trtopt.build(
        DIGITS,
        tmp_path / "plain",
        batch=8,
        backend="tensorrt-rtx",
        precision=precision,  # type: ignore[arg-type]
        data=HELDOUT,
        verdict=False,
    )
    model = tmp_path / "plain" / plain.onnx.path
    tensor = tensor_to_cut(model, precision)
    made: Manifest = trtopt.build(
        model,
        tmp_path / "chain",
        batch=8,
        backend="tensorrt-rtx",
        rewrite=False,
        split=[f"{tensor}={layout}:2"],
    )
    first, last = made.engines[0].chain
    assert first.layouts == last.layouts == {tensor: layout}
    assert first.outputs[0].dtype == last.inputs[0].dtype == ("int8" if precision == "int8" else "float16")
    if made.engines[0].layers is not None:
        read_inspector((tmp_path / "chain" / made.engines[0].layers).read_text())


def tensor_to_cut(model: Path, precision: str) -> str:
    """The narrowest place to cut, of rank 4."""
    from trtopt.onnxio import model_file
    from trtopt.onnxio.segments import CutGraph

    graph = CutGraph(model_file.load(model).proto, {"images": (8, 1, 8, 8)})
    wanted = "int8" if precision == "int8" else "float16"
    fitting = [
        cut.tensors[0]
        for cut in graph.cuts()
        if (spec := graph.spec(cut.tensors[0])).dtype == wanted
        and len(spec.shape) == 4
        and spec.shape[1] >= 16
    ]
    return fitting[0]
