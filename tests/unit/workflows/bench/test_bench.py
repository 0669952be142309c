"""Kernels, and the ranges that name their layers: the second never costs the first."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import examples
from trtopt.errors import DeviceError, TrtoptError
from trtopt.measure.contracts import contract_named
from trtopt.measure.engine import BenchJob, KernelJob, LoadedEngine, RangesJob
from trtopt.records import KernelPass, TracedRun
from trtopt.workflows.bench import bench

JOB = BenchJob(
    engine=LoadedEngine(path="e.engine", artifact=examples.engine(), batch=1, shapes={}), data=None,
    contract=contract_named("isolated"), warmup_s=0.0, duration_s=0.0, layers=True, memory=False,
)  # fmt: skip
KERNELS = KernelPass(runs=1, launches=(), notes=("a note",))


def recorded(monkeypatch: pytest.MonkeyPatch, ranges: TrtoptError | tuple[TracedRun, ...]) -> KernelPass:
    """With workers that have these results."""

    def run_job(job: Any, *, limit_s: float | None, on_progress: object) -> Any:
        if isinstance(job, KernelJob):
            return KERNELS
        assert isinstance(job, RangesJob)
        assert limit_s is not None  # a process that hangs must not keep the profile
        if isinstance(ranges, TrtoptError):
            raise ranges
        return ranges

    monkeypatch.setattr(bench, "run_job", run_job)
    return bench._record_kernels(JOB, None, lambda index, phase, fraction: None)


def test_ranges_are_kept_with_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = (TracedRun(),)
    assert recorded(monkeypatch, runs).marked_runs == runs


def test_where_ranges_cannot_be_had_the_kernels_stand_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = DeviceError("its process was ended by SIGSEGV\nIts last words:\nnothing", "none")
    found = recorded(monkeypatch, failed)
    assert found.marked_runs == ()
    assert found.notes == (
        "a note",
        "layers of kernels go by order and time, not by NVTX ranges: its process was ended by SIGSEGV",
    )
