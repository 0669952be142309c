"""`trtopt bench --cold-start --idle` on ONNX Runtime."""

from pathlib import Path

import pytest

import trtopt
from trtopt.records.bench import GRAPH_CAPTURE, START_PHASES
from trtopt.workflows.bench import bench


def test_an_engine_starts_in_fresh_processes_and_runs_after_pauses(
    cpu_build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench.STARTS >= 5
    monkeypatch.setattr(bench, "STARTS", 1)
    report = trtopt.bench(
        cpu_build, batch=8, duration=0.1, warmup=0.05, terms={"graph": False}, cold_start=True, idle="1,5ms"
    )
    (point,) = report.points
    assert point.idle is not None
    assert [gap.gap_ms for gap in point.idle.gaps] == [1.0, 5.0]
    cold = point.cold_start
    assert cold is not None
    assert cold.engine_bytes == (cpu_build / "batch8.onnx").stat().st_size
    expected = [phase for phase in START_PHASES if phase != GRAPH_CAPTURE]
    assert all(list(start.ms) == expected for start in cold.starts)
    states = [start.page_cache for start in cold.starts]
    assert states == ["warm", "cold"] or any("no cold reads" in note for note in cold.notes)
