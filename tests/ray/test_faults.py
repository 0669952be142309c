"""What goes wrong on the way: a mailbox, reply or worker that fails, a late node, a driver that is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.ray.conftest import TwoNodes
from tests.ray.test_two_gpus_on_a_host import bench_jobs
from tests.ray.test_unlike_nodes import BACKEND, MODEL, build_jobs
from tests.support.paths import ROOT
from trtopt.device.backends import open_builder
from trtopt.errors import DeviceError
from trtopt.executors.ray import executor as running
from trtopt.executors.ray.connection import connected
from trtopt.executors.ray.executor import RayExecutor
from trtopt.executors.ray.node import Reporter, run_parcel
from trtopt.measure.engine import BenchResult
from trtopt.processes import OnProgress
from trtopt.records import EngineArtifact, Identity, Job
from trtopt.workers.jobs import IdentifyJob
from trtopt.workflows.listener import SILENT

IDENTIFY = IdentifyJob(backend=BACKEND)


def outcomes_of(
    executor: RayExecutor,
    jobs: Sequence[Job[Any]],
    *,
    limit_s: float | None = None,
    on_progress: OnProgress = SILENT.progress,
) -> list[Any]:
    with closing(executor.run_all_jobs(jobs, limit_s=limit_s, on_progress=on_progress)) as outcomes:
        return [outcome for _, outcome in outcomes]


def test_jobs_and_their_progress_outlive_the_mailbox(cluster: TwoNodes) -> None:
    phases: list[str] = []
    ray = pytest.importorskip("ray")
    with connected("ray"):
        executor = RayExecutor(open_builder(BACKEND), retries=0)
        ray.kill(executor.mailbox, no_restart=False)
        assert [type(one) for one in outcomes_of(executor, [IDENTIFY])] == [Identity]
        outcomes_of(executor, [IDENTIFY] * 10, on_progress=lambda _, phase, __: phases.append(phase))
    assert any(phase.startswith("receiving on ") for phase in phases)


def test_a_result_that_arrives_damaged_is_made_again(cluster: TwoNodes, tmp_path: Path) -> None:
    def damaged_once(parcel: bytes, files: Any, mailbox: Any, number: int, level: int) -> Any:
        reply, contents = run_parcel(parcel, files, mailbox, number, level)
        return reply, dict.fromkeys(contents, b"?") if number == 1 else contents

    notes: list[str] = []
    with connected("ray"):
        executor = RayExecutor(open_builder(BACKEND), note=notes.append, work=damaged_once)
        (built,) = outcomes_of(executor, build_jobs(MODEL, tmp_path)[:1])
    assert isinstance(built, EngineArtifact)
    assert any("lost, and tried again: out/" in note and "arrived damaged" in note for note in notes)


def test_a_worker_that_hangs_beyond_its_jobs_limit_is_ended_and_the_job_done_elsewhere(
    cluster: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs_once(parcel: bytes, files: Any, mailbox: Any, number: int, level: int) -> Any:
        if number == 1:
            Reporter(mailbox, number).progress(0, "starting", None)
            (tmp_path / "process").write_text(str(os.getpid()))
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGSTOP)
        return run_parcel(parcel, files, mailbox, number, level)

    notes: list[str] = []
    monkeypatch.setattr(running, "_PATIENCE_S", 1.0)
    with connected("ray"):
        executor = RayExecutor(open_builder(BACKEND), note=notes.append, work=hangs_once)
        (identified,) = outcomes_of(executor, [IDENTIFY], limit_s=30.0)
        process = Path("/proc", (tmp_path / "process").read_text())
        deadline = time.monotonic() + 60
        while process.exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert isinstance(identified, Identity)
    assert any("its node does not end it in time" in note for note in notes)


def test_jobs_wait_for_nodes_that_are_gone(cluster: TwoNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_PATIENCE_S", 1.0)
    with connected("ray"):
        executor = RayExecutor(open_builder(BACKEND))
        executor.nodes.alive = ()
        monkeypatch.setattr(executor.nodes, "look", lambda: None)
        (outcome,) = outcomes_of(executor, [IDENTIFY])
    assert isinstance(outcome, DeviceError)
    assert "no node is left that can run it" in outcome.problem


def test_a_node_that_joins_late_takes_what_waits_for_others(cluster: TwoNodes, tmp_path: Path) -> None:
    ray, active = pytest.importorskip("ray"), set[int]()
    early, done = tmp_path / "early", tmp_path / "done"
    early.mkdir()
    measurements = bench_jobs(tmp_path / "digits.trtopt")  # one on each node at a time

    def held(parcel: bytes, files: Any, mailbox: Any, number: int, level: int) -> Any:
        result = run_parcel(parcel, files, mailbox, number, level)
        node = ray.get_runtime_context().get_node_id()
        if not (early / node).exists():
            done.touch()
        deadline = time.monotonic() + 60
        while not done.exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        return result

    with ExitStack() as added, connected("ray"):
        executor = RayExecutor(open_builder(BACKEND), retries=0, work=held)
        for node in executor.nodes.alive:
            (early / node.id).touch()

        def progress(index: int, phase: str, fraction: float | None) -> None:
            active.add(index)
            if len(active) == len(executor.nodes.alive) == 2:
                active.add(-1)
                added.enter_context(cluster.another())

        found = outcomes_of(executor, measurements, on_progress=progress)
    assert [type(one) for one in found] == [BenchResult] * 3


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_a_driver_that_is_ended_leaves_neither_processes_nor_files_on_a_node(
    cluster: TwoNodes, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    there, out = tmp_path / "there", tmp_path / "digits.sweep"
    there.mkdir()
    command = [sys.executable, "-m", "trtopt", "sweep", str(MODEL), "-o", str(out), "--batch", "1,2,4"]
    options = ["--backend", BACKEND, "--duration", "60", "--executor", "ray"]
    with cluster.another(TMPDIR=str(there)):
        driver = subprocess.Popen(
            [*command, *options], cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        until(lambda: any(there.glob(".trtopt.*/work/0/batch*")), driver)  # it measures
        driver.send_signal(number)
        _, said = driver.communicate(timeout=60)
        left = [path.name for path in there.iterdir()]
    assert driver.returncode == status, said
    assert "SIGTERM" not in said
    assert left == []


def until(is_so: Callable[[], bool], driver: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not is_so():
        assert driver.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
