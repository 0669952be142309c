"""Starts of an engine in fresh processes, its file in the page cache and out of it in turn."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

from trtopt.executors.local import run_job
from trtopt.files.page_cache import drop_from_cache
from trtopt.measure.cold_start import ColdStarted, ColdStartJob
from trtopt.measure.engine import BenchJob
from trtopt.records import ColdStart, ColdStarts
from trtopt.targets import ONNXRUNTIME
from trtopt.workers.supervisor import OnProgress

STARTS = 5
"""Of each kind."""
_ZEROS = "context holds a first run on zeros, by which ONNX Runtime finds the shapes of outputs"


def measure_cold_starts(
    job: BenchJob, index: int, limit_s: float | None, on_progress: OnProgress
) -> ColdStarts:
    """Start the job's engine in processes of their own, `STARTS` times with each state of the page cache."""
    made: list[ColdStart] = []
    module_loading = ""
    notes = [_ZEROS] if job.artifact.plan.backend.name == ONNXRUNTIME else []
    states: list[Literal["warm", "cold"]] = ["warm", "cold"]
    for number in range(STARTS):
        for state in tuple(states):
            if state == "cold" and not _dropped(Path(job.path)):
                states.remove("cold")
                notes.append("the system keeps the engine's file in its page cache: no cold reads")
                continue
            if state == "warm":
                Path(job.path).read_bytes()
            on_progress(index, "cold start", number / STARTS)
            started = ColdStartJob(
                path=job.path,
                artifact=job.artifact,
                shapes=job.shapes,
                data=job.data,
                sample_axes=job.sample_axes,
                contract=job.contract,
                page_cache=state,
                began_s=time.monotonic(),
            )
            result = run_job(started, ColdStarted, limit_s=limit_s)
            made.append(result.start)
            module_loading = result.module_loading
    return ColdStarts(
        engine_bytes=Path(job.path).stat().st_size,
        starts=tuple(made),
        module_loading=module_loading,
        notes=tuple(notes),
    )


def _dropped(path: Path) -> bool:
    try:
        return drop_from_cache(path)
    except OSError:
        return False
