"""Selection with fused plugins, which ONNX Runtime runs as what they compute: their times are scripted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.encoders import HIDDEN, Encoder, with_functions
from tests.support.graphs import save
from tests.support.selection_builds import build, script
from trtopt.errors import ModelError, UsageError
from trtopt.onnxio.model_file import ModelFile
from trtopt.precision.fused_plugins import EncoderLayer, write_plugins
from trtopt.workflows.build import build as build_module, candidates
from trtopt.workflows.listener import Listener

ENCODER = Encoder(layers=1, batch="N")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[Path, str]]:
    folder = tmp_path_factory.mktemp("encoder")
    file = save(ENCODER.model(), folder / "encoder.onnx")
    values = np.random.default_rng(0).standard_normal((8, ENCODER.tokens, HIDDEN), np.float32)
    np.savez(folder / "x.npz", x=values)
    return file, {file: str(folder / "x.npz")}


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Lets ONNX Runtime stand for TensorRT 8.6; plugins that compute something else, if it holds anything."""
    found: list[bool] = []

    def written(file: ModelFile, layers: Sequence[EncoderLayer], amax: Mapping[str, float]) -> ModelFile:
        made = write_plugins(file, layers, amax)
        (value,) = file.proto.graph.input
        size = value.type.tensor_type.shape.dim[0].dim_value
        for one in (one for node in made.proto.graph.node for one in node.attribute):
            if one.name == "gamma" and found:
                one.floats[:] = [-value for value in one.floats]
        return replace(made, proto=with_functions(made.proto, size, ENCODER))

    monkeypatch.setattr(candidates, "write_plugins", written)
    monkeypatch.setattr(build_module, "_check_plugins", lambda *_: None)
    return found


def test_plugins_are_chosen_where_they_are_fastest(
    monkeypatch: pytest.MonkeyPatch, model: Any, tmp_path: Path, wrong: list[bool]
) -> None:
    speeds = {"fp16_1": 1.0, "int8_1": 0.9, "int8.plugins.batch1_1": 0.7}
    speeds |= {"fp16_2": 1.0, "int8_2": 0.8, "int8.plugins.batch2_2": 0.9}
    script(monkeypatch, lambda *_: 1.0, **speeds)
    manifest = build(model[0], tmp_path / "out", model[1], batch=(1, 2), fused_plugins=True)
    assert manifest.verdict is not None
    assert [one.chosen for one in manifest.verdict.batches] == ["int8.plugins.batch1", "int8"]
    (candidate,) = [one for one in manifest.verdict.candidates if one.name == "int8.plugins.batch1"]
    assert candidate.differences[0].cosine > 0.999


def test_a_model_without_such_layers_is_refused_before_anything_is_built(
    tmp_path: Path, wrong: list[bool]
) -> None:
    file = save(replace(ENCODER, heads=24).model(), tmp_path / "encoder.onnx")
    np.savez(tmp_path / "x.npz", x=np.zeros((1, ENCODER.tokens, HIDDEN), np.float32))
    told: list[str] = []
    with pytest.raises(ModelError, match="32 wide"):
        build(
            file, tmp_path / "out", {file: str(tmp_path / "x.npz")}, batch=(1,), fused_plugins=True,
            listener=Listener(note=told.append),
        )  # fmt: skip
    assert not (tmp_path / "out").exists()
    assert not any("building fp16" in line for line in told)


@pytest.mark.long
def test_plugins_whose_engine_misses_a_bound_are_left_out(
    monkeypatch: pytest.MonkeyPatch, model: Any, tmp_path: Path, wrong: list[bool]
) -> None:
    wrong.append(True)
    script(monkeypatch, lambda *_: 1.0, fp16_1=1.0, int8_1=0.9)
    told: list[str] = []
    manifest = build(
        model[0], tmp_path / "out", model[1], batch=(1,), fused_plugins=True, min_cosine=0.999,
        listener=Listener(note=told.append),
    )  # fmt: skip
    assert manifest.verdict is not None
    assert manifest.verdict.batches[0].chosen == "int8"
    assert any("int8.plugins.batch1 is left out" in line for line in told)


@pytest.mark.long
def test_plugins_that_cannot_be_built_are_named_in_the_manifest(
    monkeypatch: pytest.MonkeyPatch, model: Any, tmp_path: Path
) -> None:
    monkeypatch.setattr(build_module, "_check_plugins", lambda *_: None)
    script(monkeypatch, lambda *_: 1.0, fp16_1=1.0, int8_1=0.9)
    manifest = build(model[0], tmp_path / "out", model[1], batch=(1,), fused_plugins=True)
    assert manifest.verdict is not None
    assert manifest.verdict.batches[0].chosen == "int8"
    assert any(note.startswith("int8.plugins.batch1 is left out") for note in manifest.verdict.notes)


def test_other_backends_refuse_the_option(model: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="fused_plugins"):
        build(model[0], tmp_path / "out", model[1], batch=(1,), fused_plugins=True)
    assert not (tmp_path / "out").exists()
