"""`trtopt optimize`: the whole way, on a machine with no GPU."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.command_line import DIGITS, HELDOUT, CommandLine, needs_no_gpu
from trtopt.files.manifests import read_manifest
from trtopt.records import from_json
from trtopt.records.optimizing import Optimized


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
    assert (found.met, [point.batch for point in found.points]) == (False, [1])
    made = {file.name for file in (trtopt_cli.folder / "out").iterdir()}
    assert {"manifest.json", "batch1.engine", "result.json", "report.html"} <= made


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


def test_a_goal_that_is_none_is_refused_before_anything_is_built(trtopt_cli: CommandLine) -> None:
    assert "--slo fast: not of the form p99=5ms" in trtopt_cli.fails(2, "optimize", DIGITS, "--slo", "fast")
