"""`trtopt explain` on ONNX Runtime: a model in FP32 against its quantised graph, and saved profiles."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

import trtopt
from tests.support.command_line import DIGITS, CommandLine
from trtopt.api import explain, profile
from trtopt.errors import ArtifactError, UsageError
from trtopt.records import Explanation, ProfileReport, read_versioned, to_json


def saved(report: ProfileReport, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "profile.json").write_bytes(to_json(report))
    return folder


@pytest.fixture(scope="module")
def in_fp32(cpu_build: Path) -> ProfileReport:
    return profile(cpu_build, duration=0.1)


def test_causes_of_a_quantised_graph_add_up_and_have_its_q_and_dq(trtopt_cli: CommandLine) -> None:
    quantised = trtopt_cli.folder / "int8.onnx"
    trtopt.quantize(DIGITS, quantised, precision="int8", data=DIGITS.with_name("heldout.npz"), target="8.6")
    options = ("--batch", "8", "--duration", "0.1", "--json", "e.json")
    done = trtopt_cli("explain", DIGITS, quantised, *options)
    assert done.returncode == 0, done.stderr
    found = read_versioned((trtopt_cli.folder / "e.json").read_bytes(), Explanation)
    (one,) = found.engines
    assert (one.batch, one.parts) == (8, "layers")
    assert sum(cause.a_ms for cause in one.causes) == pytest.approx(one.a_ms)
    assert sum(cause.b_ms for cause in one.causes) == pytest.approx(one.b_ms)
    by_name = {cause.cause: cause for cause in one.causes}
    pairs = by_name["reformats, Q and DQ"]
    assert pairs.b_parts > pairs.a_parts
    assert sum(cause.b_parts for name, cause in by_name.items() if name.startswith("products")) == 10


def test_saved_profiles_are_explained_without_measuring(in_fp32: ProfileReport, tmp_path: Path) -> None:
    a = saved(in_fp32, tmp_path / "a")
    found = explain(a, a / "profile.json", batch=8)
    assert [one.batch for one in found.engines] == [8]
    assert [cause.cost_ms for one in found.engines for cause in one.causes if cause.cost_ms] == []
    assert [one.batch for one in explain(a, a).engines] == [1, 8]
    with pytest.raises(UsageError, match="duration"):
        explain(a, a, duration=2.0)


def test_profiles_of_no_common_batch_or_of_another_model_are_refused(
    in_fp32: ProfileReport, tmp_path: Path
) -> None:
    first, second = (msgspec.structs.replace(in_fp32, engines=(one,)) for one in in_fp32.engines)
    with pytest.raises(ArtifactError, match="A has batch 1, B batch 8"):
        explain(saved(first, tmp_path / "1"), saved(second, tmp_path / "8"))
    content = json.loads(to_json(in_fp32))
    for engine in content["engines"]:
        for layer in engine["layers"]:
            layer["onnx_nodes"] = [f"other{name}" for name in layer["onnx_nodes"]]
    (tmp_path / "other.json").write_text(json.dumps(content))
    with pytest.raises(ArtifactError, match="another model"):
        explain(tmp_path / "1", tmp_path / "other.json")


def test_a_profile_of_other_engines_in_a_build_folder_is_refused(
    cpu_build: Path, in_fp32: ProfileReport, trtopt_cli: CommandLine
) -> None:
    engine = in_fp32.engines[0]
    other = msgspec.structs.replace(engine.engine, sha256="0" * 64)
    stale = msgspec.structs.replace(in_fp32, engines=(msgspec.structs.replace(engine, engine=other),))
    folder = trtopt_cli.folder / "build"
    folder.mkdir()
    for file in cpu_build.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    saved(stale, folder)
    assert "another engine" in trtopt_cli.fails(1, "explain", folder, folder)
    assert "does not exist" in trtopt_cli.fails(2, "explain", folder, "nowhere")
    (trtopt_cli.folder / "profile.json").write_text("{}")
    assert "read as a profile" in trtopt_cli.fails(1, "explain", "profile.json", "profile.json")
