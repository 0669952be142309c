"""Building where a build stands: the same model is built again, another one is not replaced by chance."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

import trtopt
from tests.support.command_line import DIGITS, HELDOUT, CommandLine
from trtopt.errors import OutputError
from trtopt.files.manifests import read_manifest

BUILD = ("-o", "d", "--backend", "onnxruntime")


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--rewrite", "none"),
        ("--precision", "fp16"),
        ("--precision", "int8", "--data", str(HELDOUT), "--no-verdict"),
    ],
)
def test_the_same_model_is_built_again_with_a_message(
    trtopt_cli: CommandLine, flags: tuple[str, ...]
) -> None:
    assert "replaced" not in trtopt_cli("build", DIGITS, *BUILD, *flags).stderr
    first = read_manifest(trtopt_cli.folder / "d")
    done = trtopt_cli("build", DIGITS, *BUILD, "--batch", "2")
    assert done.returncode == 0, done.stderr
    assert f"d: will be replaced; it holds this model, built {first.created} by trtopt" in done.stderr
    assert read_manifest(trtopt_cli.folder / "d").engines[0].plan.label == "batch2"


def test_a_build_by_a_translated_line_is_one_as_any(trtopt_cli: CommandLine) -> None:
    trtopt_cli("polygraphy", "convert", DIGITS, "-o", "d.engine")
    done = trtopt_cli("build", DIGITS, "-o", "d.trtopt", "--backend", "onnxruntime")
    assert done.returncode == 0, done.stderr


def test_a_build_of_another_model_stays_unless_forced(
    trtopt_cli: CommandLine, fixed_batch_model: Path
) -> None:
    trtopt_cli("build", DIGITS, *BUILD)
    manifest = (trtopt_cli.folder / "d" / "manifest.json").read_bytes()
    told = trtopt_cli.fails(1, "build", fixed_batch_model, *BUILD)
    assert "d: holds a build of another model than" in told
    assert "--force" in told
    assert (trtopt_cli.folder / "d" / "manifest.json").read_bytes() == manifest
    forced = trtopt_cli("build", fixed_batch_model, *BUILD, "--force")
    assert forced.returncode == 0, forced.stderr
    assert "will be replaced, although it is no build of this model" in forced.stderr
    assert read_manifest(trtopt_cli.folder / "d").onnx.inputs[0].name == "x"


def test_a_model_that_was_changed_is_another_model(tmp_path: Path) -> None:
    proto = onnx.load(DIGITS)
    trtopt.build(DIGITS, tmp_path / "d", backend="onnxruntime")
    proto.graph.initializer[0].name += "_"
    for node in proto.graph.node:
        node.input[:] = [name + "_" if name + "_" == proto.graph.initializer[0].name else name
                         for name in node.input]  # fmt: skip
    onnx.save(proto, tmp_path / "digits.onnx")
    with pytest.raises(OutputError, match="another model"):
        trtopt.build(tmp_path / "digits.onnx", tmp_path / "d", backend="onnxruntime")


def test_a_build_that_this_version_cannot_read_stays_unless_forced(tmp_path: Path) -> None:
    trtopt.build(DIGITS, tmp_path / "d", backend="onnxruntime")
    manifest = tmp_path / "d" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"schema": "trtopt.build/99"}))
    with pytest.raises(OutputError, match="of schema trtopt"):
        trtopt.build(DIGITS, tmp_path / "d", backend="onnxruntime")
    trtopt.build(DIGITS, tmp_path / "d", backend="onnxruntime", force=True)


def test_force_does_not_reach_what_trtopt_did_not_make(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "mine.txt").write_text("mine")
    with pytest.raises(OutputError, match="not a build folder of trtopt's"):
        trtopt.build(DIGITS, tmp_path / "d", backend="onnxruntime", force=True)
    assert (tmp_path / "d" / "mine.txt").read_text() == "mine"


def test_what_others_have_put_into_a_build_stays_when_it_is_replaced(trtopt_cli: CommandLine) -> None:
    trtopt_cli("build", DIGITS, *BUILD, "--batch", "1,2")
    folder = trtopt_cli.folder / "d"
    (folder / "NOTES.md").write_text("precious")
    (folder / "results").mkdir()
    (folder / "results" / "may.json").write_text("{}")
    done = trtopt_cli("build", DIGITS, *BUILD, "--batch", "2,3")
    assert done.returncode == 0, done.stderr
    assert "d: these files are kept with the new build: NOTES.md, results" in " ".join(done.stderr.split())
    assert (folder / "NOTES.md").read_text() == "precious"
    assert (folder / "results" / "may.json").read_text() == "{}"
    there = {path.name for path in folder.iterdir()}
    assert {engine.path for engine in read_manifest(folder).engines} <= there
    assert not any(name.startswith("batch1") for name in there)
    assert trtopt_cli("verify", folder).returncode == 0
    assert [path.name for path in trtopt_cli.folder.iterdir()] == ["d"]
