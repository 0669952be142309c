"""Jobs that run at a time: each where it is put, and whatever becomes of the others."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import trtopt
from tests.support.command_line import DIGITS
from trtopt.errors import DeviceError, TrtoptError
from trtopt.executors.api import LocalExecutor
from trtopt.measure.engine import LoadedEngine, OutputsJob
from trtopt.processes import DONE

SPY = """
import os, time
import numpy as np

def _wait(number):  # for the other, so that both run at a time
    open(f"{os.environ['SPY']}/{number}", "w").write(os.environ.get("CUDA_VISIBLE_DEVICES", "as it was"))
    while not os.path.exists(f"{os.environ['SPY']}/{1 - number}"):
        time.sleep(0.01)
    yield {"images": np.zeros((1, 1, 8, 8), np.float32)}

def first():
    yield from _wait(0)

def second():
    yield from _wait(1)

def alone():
    open(f"{os.environ['SPY']}/alone", "w").write(os.environ.get("CUDA_VISIBLE_DEVICES", "as it was"))
    yield {"images": np.zeros((1, 1, 8, 8), np.float32)}

def dies():
    os._exit(7)

def hangs():
    time.sleep(1000)
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OutputsJob:
    """One whose data is still to be said."""
    (tmp_path / "spy.py").write_text(SPY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SPY", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    manifest = trtopt.build(DIGITS, tmp_path / "digits", backend="onnxruntime", rewrite="none")
    (engine,) = manifest.engines
    path, inputs = str(tmp_path / "digits" / engine.path), manifest.onnx.inputs
    loaded = LoadedEngine(path=path, artifact=engine, batch=1, shapes={})
    return OutputsJob(engine=loaded, inputs=inputs, data="", folder=str(tmp_path))


def outcomes(
    job: OutputsJob, *functions: str, places: tuple[str | None, ...] = (None,), limit_s: float | None = None
) -> dict[int, object]:
    jobs = [msgspec.structs.replace(job, data=f"spy:{function}") for function in functions]
    executor = LocalExecutor(places)
    return dict(executor.run_all_jobs(jobs, limit_s=limit_s, on_progress=lambda *_: None))


def test_jobs_run_at_a_time_each_with_the_gpus_of_its_place(job: OutputsJob, tmp_path: Path) -> None:
    found = outcomes(job, "first", "second", places=("7", "5"), limit_s=60)
    assert all(isinstance(one, int) for one in found.values()), found
    assert [(tmp_path / str(number)).read_text() for number in range(2)] == ["7", "5"]


def test_a_place_is_taken_again_when_its_job_is_done(job: OutputsJob, tmp_path: Path) -> None:
    jobs = [msgspec.structs.replace(job, data=f"spy:{function}") for function in ("dies", "alone")]
    heard: list[tuple[int, str]] = []
    for _ in LocalExecutor(("7",)).run_all_jobs(
        jobs, on_progress=lambda index, phase, _: heard.append((index, phase))
    ):
        pass
    assert (tmp_path / "alone").read_text() == "7"
    assert [event for event in heard if event[1] in ("starting", DONE)] == [
        (0, "starting"),
        (0, DONE),
        (1, "starting"),
        (1, DONE),
    ]


def test_without_a_place_a_job_sees_what_this_process_sees(job: OutputsJob, tmp_path: Path) -> None:
    outcomes(job, "alone")
    assert (tmp_path / "alone").read_text() == "as it was"


@pytest.mark.long
def test_one_that_dies_or_hangs_stops_no_other(job: OutputsJob) -> None:
    found = outcomes(job, "dies", "hangs", "alone", places=(None, None), limit_s=20)
    assert isinstance(found[2], int)
    assert [type(found[index]) for index in (0, 1)] == [DeviceError, DeviceError]
    assert isinstance(found[0], TrtoptError)
    assert "its process ended with status 7" in found[0].summary
    assert not found[0].summary.endswith(":")  # a note takes it without the last words
    assert isinstance(found[1], TrtoptError)
    assert "not done after 20 s" in found[1].problem
