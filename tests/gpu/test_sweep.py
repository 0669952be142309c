"""A sweep on a real GPU: engines share their timings, memory and energy are told."""

from __future__ import annotations

from pathlib import Path

import trtopt
from tests.support.gpu_digits import DIGITS, HELDOUT, SOURCES
from trtopt.files.manifests import read_manifest


def test_a_sweep_tells_memory_and_energy_of_every_point_and_resumes(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    asked = {
        "batch": (1, 8),
        "precision": ("fp16", "int8"),
        "streams": (1, 2),
        "data": str(HELDOUT),
        "tactic_sources": SOURCES,
        "backend": "tensorrt",
        "duration": 0.5,
    }
    report = trtopt.sweep(DIGITS, folder, **asked)
    assert report.measured == report.points
    assert len(report.points) == 8
    for point in report.points:
        assert point.watts is not None
        assert point.watts > 0
        assert point.samples_per_joule is not None
        assert point.memory is not None
        assert point.memory.peak_bytes > point.memory.buffers_bytes > 0
        assert point.memory.context_bytes is not None
    for precision in ("fp16", "int8"):
        first, second = read_manifest(folder / "builds" / precision).engines
        assert second.timing_cache_in == first.timing_cache_out
    assert trtopt.sweep(DIGITS, folder, **asked) == report
