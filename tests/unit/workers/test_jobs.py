"""The table of jobs: an entry for each type, and what a death or a timeout of each is called."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

from tests.support import examples
from trtopt.builder.engine import BuildJob
from trtopt.data.source import SamplesJob
from trtopt.device.tensorrt.capability import ParseJob
from trtopt.errors import BuildError, DataError, DeviceError, TrtoptError
from trtopt.measure.contracts import contract_named
from trtopt.measure.engine import (
    BenchJob,
    ColdStartJob,
    DescribeJob,
    KernelJob,
    LoadedEngine,
    OutputsJob,
    RangesJob,
)
from trtopt.measure.loop.interleaved import InterleaveJob
from trtopt.records import Job
from trtopt.serving.trial_run import CostJob, TrialJob
from trtopt.workers.jobs import JOBS, CopyJob, IdentifyJob, git_revision, type_of

ENGINE = examples.engine()
LOADED = [
    LoadedEngine(path=path, artifact=ENGINE, batch=8, shapes={}) for path in ("/a/1.engine", "/b/1.engine")
]
TENSORRT = ("TensorRT", "its driver")
WITH_PLUGIN = (*TENSORRT, "the plugin /plugin.so")

BENCH = BenchJob(
    engine=LOADED[0], data=None,
    contract=contract_named("isolated"), warmup_s=0.0, duration_s=0.0, layers=False, memory=False,
)  # fmt: skip

CASES: list[tuple[Job, str, tuple[str, ...]]] = [
    (
        BuildJob(onnx="m.onnx", types=(), plan=examples.plan(), folder="/f", timing_cache=None),
        f"building {examples.plan().label}",
        WITH_PLUGIN,
    ),
    (ParseJob(path="m.onnx", target="rtx"), "parsing m.onnx", ("TensorRT-RTX", "its driver")),
    (DescribeJob(path="e.engine", sha256="", backend="onnxruntime"), "running e.engine", ("ONNX Runtime",)),
    (
        msgspec.structs.replace(BENCH, data="images:rows"),
        "running batch8.engine",
        (*WITH_PLUGIN, "what images:rows calls"),
    ),
    (KernelJob(bench=BENCH), "recording the kernels of batch8.engine", (*WITH_PLUGIN, "CUPTI")),
    (RangesJob(bench=BENCH), "recording the NVTX ranges of batch8.engine", (*WITH_PLUGIN, "CUPTI")),
    (ColdStartJob(bench=BENCH, page_cache="warm", began_s=0.0), "starting batch8.engine", WITH_PLUGIN),
    (
        InterleaveJob(
            label="batch8", engines=(*LOADED, LOADED[0]), variants=(), rounds=1, purpose="control",
            data="samples.npz", warmup_s=0.0, block_s=0.0,
        ),
        "running /a/1.engine, /b/1.engine",
        WITH_PLUGIN,
    ),
    (
        OutputsJob(engine=LOADED[0], inputs=(), data="random", folder="/o"),
        "running batch8.engine",
        WITH_PLUGIN,
    ),
    (
        SamplesJob(data="loader.py:make", inputs=(), folder="/o"),
        "reading the samples of loader.py:make",
        ("what loader.py:make calls",),
    ),
    (CopyJob(backend="tensorrt", nbytes=64 << 20), "running a copy of 64 MiB", TENSORRT),
    (IdentifyJob(backend="tensorrt-rtx"), "opening tensorrt-rtx", ("TensorRT-RTX", "its driver")),
    (
        TrialJob(path="plan.json", backend="tensorrt", buckets=(), at_s=[], bucket=[], before_s=[]),
        "running requests on plan.json",
        TENSORRT,
    ),
    (
        CostJob(path="folder", backend="onnxruntime", sample={}, requests={}),
        "running requests on folder",
        ("ONNX Runtime",),
    ),
]  # fmt: skip


def test_every_job_has_an_entry_that_returns_its_result_and_a_case_here() -> None:
    assert set(JOBS) == set(Job.__subclasses__()) == {type(job) for job, *_ in CASES}
    for kind, entry in JOBS.items():
        assert get_type_hints(entry.run)["return"] == kind.result_type(), kind


@pytest.mark.parametrize(("job", "doing", "native_code"), CASES, ids=lambda value: type(value).__name__)
def test_a_job_is_reported_by_what_it_does_and_whose_code_it_runs(
    job: Job[Any], doing: str, native_code: tuple[str, ...]
) -> None:
    assert (type_of(job).doing(job), tuple(type_of(job).native_code(job))) == (doing, native_code)


def test_builds_and_reading_samples_have_errors_and_time_options_of_their_own() -> None:
    found: dict[type, tuple[type[TrtoptError], str, Path | None]] = {
        type(job): (type_of(job).error, type_of(job).time_option, type_of(job).log(job)) for job, *_ in CASES
    }
    log = Path("/f", f"{examples.plan().label}.log")
    assert found.pop(BuildJob) == (BuildError, "--build-timeout", log)
    assert found.pop(SamplesJob) == (DataError, "--budget", None)
    assert set(found.values()) == {(DeviceError, "--timeout", None)}


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_nothing_that_a_repository_configures_runs_when_its_revision_is_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = f"touch {tmp_path / 'ran'}"
    (tmp_path / "hook").write_text(f"#!/bin/sh\n{run}\n")
    (tmp_path / "hook").chmod(0o755)
    as_somebody = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*as_somebody, *words], check=True)
    (tmp_path / ".git" / "config").write_text(
        f"""
[core]
    repositoryformatversion = 0
    fsmonitor = {tmp_path / "hook"}
    hooksPath = {tmp_path}
    pager = {run}
    sshCommand = {run}
[alias]
    rev-parse = !{run}
[pager]
    rev-parse = {run}
"""
    )
    assert len(git_revision() or "") == 40
    assert not (tmp_path / "ran").exists()
