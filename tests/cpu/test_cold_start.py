"""`trtopt bench --cold-start` on ONNX Runtime."""

from pathlib import Path

import pytest

import trtopt
from trtopt.records.bench import START_PHASES
from trtopt.workflows.bench import bench


def test_an_engine_starts_in_fresh_processes(cpu_build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench.STARTS >= 5
    monkeypatch.setattr(bench, "STARTS", 1)
    report = trtopt.bench(cpu_build, batch=8, duration=0.1, warmup=0.05, graph=False, cold_start=True)
    (point,) = report.points
    cold = point.cold_start
    assert cold is not None
    assert cold.engine_bytes == (cpu_build / "batch8.onnx").stat().st_size
    expected = [phase for phase in START_PHASES if phase != "graph capture"]
    assert all(list(start.ms) == expected for start in cold.starts)
    states = [start.page_cache for start in cold.starts]
    assert states == ["warm", "cold"] or any("no cold reads" in note for note in cold.notes)
