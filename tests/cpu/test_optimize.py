"""`trtopt optimize`: the whole way, on a machine with no GPU."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

from tests.support.command_line import DIGITS, HELDOUT, CommandLine, needs_no_gpu
from trtopt.files.manifests import read_manifest
from trtopt.records import from_json
from trtopt.records.tune import Optimized


@pytest.fixture
def log_model(tmp_path: Path) -> Path:
    """The logarithm of [batch, 64]: NaN of what is negative."""
    typed = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Log", ["x"], ["y"])],
        "log",
        [typed("x", onnx.TensorProto.FLOAT, ["batch", 64])],
        [typed("y", onnx.TensorProto.FLOAT, ["batch", 64])],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "log.onnx")
    return tmp_path / "log.onnx"


BACKENDS = ("onnxruntime", "tensorrt-rtx")


@needs_no_gpu
def test_a_latency_that_no_engine_keeps_exits_with_3_and_leaves_the_build_and_the_page(
    trtopt_cli: CommandLine,
) -> None:
    given = ("--data", HELDOUT, "--batch", "1", "--duration", "0.1", "-o", "out")
    done = trtopt_cli("optimize", DIGITS, *given, "--slo", "p50=0.1us", "--json", "found.json")
    assert done.returncode == 3, done.stderr
    assert "no batch size keeps p50=0.1us; nearest is batch 1" in done.stdout
    assert "accuracy: cosine 1.00000, at least 0.99 required" in done.stdout
    assert "note: the precision is the graph's: engines by tensorrt-rtx" in done.stdout
    assert (done.stdout + done.stderr).count("no GPU found") == 1
    found = from_json((trtopt_cli.folder / "found.json").read_bytes(), Optimized)
    assert (found.met, found.best, [point.batch for point in found.points]) == (False, None, [1])
    made = {file.name for file in (trtopt_cli.folder / "out").iterdir()}
    assert {"manifest.json", "batch1.engine", "bench.json", "report.html"} <= made
    given = ("--batch", "1", "--duration", "0.1")
    for bound in (("--slo", "p50=1s"), ("--min-cosine", "0.9")):
        kept = [
            trtopt_cli("optimize", DIGITS, *given, *bound, "--backend", one).returncode for one in BACKENDS
        ]
        assert kept == [0, 5], "an engine that was not run keeps nothing"


def test_a_dynamic_axis_takes_the_length_that_the_error_asks_for(
    sequence_model: Path, trtopt_cli: CommandLine
) -> None:
    given = ("--backend", "onnxruntime", "--batch", "1", "--duration", "0.1", "-o", "out")
    told = trtopt_cli.fails(2, "optimize", sequence_model, *given)
    (remedy,) = re.findall(r"as (--axis \S+)", told)
    done = trtopt_cli("optimize", sequence_model, *given, *remedy.split())
    assert done.returncode == 0, done.stderr
    (engine,) = read_manifest(trtopt_cli.folder / "out").engines
    assert remedy == f"--axis length={engine.plan.shapes['x'].opt[1]}"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--slo", "fast"), "--slo fast: not of the form p99=5ms"),
        (("--duration", "-1"), "--duration -1"),
        (("--min-cosine", "nan"), "--min-cosine nan: out of range"),
    ],
)
def test_a_wrong_wish_is_refused_before_anything_is_built(
    trtopt_cli: CommandLine, given: tuple[str, ...], told: str
) -> None:
    assert told in trtopt_cli.fails(2, "optimize", DIGITS, "--backend", "onnxruntime", *given)


@pytest.mark.long
def test_outputs_of_nan_are_warned_of(log_model: Path, trtopt_cli: CommandLine) -> None:
    given = ("--backend", "onnxruntime", "--batch", "1", "--duration", "0.1", "--json", "found.json")
    done = trtopt_cli("optimize", log_model, *given)
    assert re.search(r"WARNING: output 'y': \d+ of 64 values are NaN or infinite", done.stderr)
    (alarm,) = from_json((trtopt_cli.folder / "found.json").read_bytes(), Optimized).alarms
    assert f"WARNING: {alarm}\n" in done.stderr
