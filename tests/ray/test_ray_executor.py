"""Builds and measurements on a Ray cluster: as on this host alone, whatever becomes of a node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import trtopt
from tests.ray.conftest import TwoNodes
from tests.support.paths import ROOT
from trtopt.device.backends import open_builder
from trtopt.errors import DeviceError
from trtopt.executors.ray.connection import connected
from trtopt.executors.ray.executor import RayExecutor
from trtopt.processes import DONE
from trtopt.records import SweepReport
from trtopt.workers.jobs import IdentifyJob
from trtopt.workflows.compare.result_files import read_result
from trtopt.workflows.listener import SILENT, Listener
from trtopt.workflows.sweep.folder import read_sweep

MODEL = ROOT / "models" / "digits" / "digits.onnx"
BATCH = (1, 2, 4)


def swept(folder: Path, executor: str, listener: Listener = SILENT, *, duration: float = 2.0) -> SweepReport:
    return trtopt.sweep(
        MODEL,
        folder,
        batch=BATCH,
        backend="onnxruntime",
        duration=duration,
        warmup=0.0,
        executor=executor,
        listener=listener,
    )


def without_times(report: SweepReport) -> list[object]:
    """What a sweep finds but for times."""
    return [
        (one.setting, one.shapes, one.build, one.engine, one.engine_bytes, one.failure)
        for one in report.points
    ]


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def killing(cluster: TwoNodes, phase: str) -> tuple[Callable[[int, str, float | None], None], list[int]]:
    """A progress sink that kills the second node when a job is in `phase` on each; and whom it hit."""
    active: set[int] = set()
    hit: list[int] = []

    def progress(index: int, doing: str, fraction: float | None) -> None:
        if doing == DONE:
            active.discard(index)
        elif doing.startswith(phase):
            active.add(index)
        if len(active) == 2 and not hit:
            hit.extend(active)
            cluster.kill()

    return progress, hit


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SweepReport]:
    folder = tmp_path_factory.mktemp("local") / "digits.sweep"
    return folder, swept(folder, "local", duration=0.2)


def test_a_sweep_finds_what_it_finds_here_and_leaves_the_same_folder(
    cluster: TwoNodes, local: tuple[Path, SweepReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, here = local
    monkeypatch.chdir(tmp_path)  # no git checkout, as the nodes' current folder is
    there = swept(tmp_path / "digits.sweep", "ray", duration=0.2)
    assert without_times(there) == without_times(here)
    assert files_of(tmp_path / "digits.sweep") == files_of(folder)
    environment = read_result(tmp_path / "digits.sweep" / str(there.points[0].result)).environment
    assert environment.node is not None
    assert environment.git_revision is None
    again = swept(tmp_path / "digits.sweep", "local", duration=0.2)
    assert again.points == there.points  # nothing is measured twice, wherever it was measured


def test_a_node_that_dies_while_it_measures_costs_no_point(
    cluster: TwoNodes, local: tuple[Path, SweepReport], tmp_path: Path
) -> None:
    notes: list[str] = []
    progress, hit = killing(cluster, "latency")
    there = swept(tmp_path / "digits.sweep", "ray", Listener(progress=progress, note=notes.append))
    assert hit
    assert without_times(there) == without_times(local[1])
    (lost,) = [note for note in notes if "lost, and tried again" in note]
    assert "NodeDiedError" in lost


def test_a_node_that_dies_while_it_builds_costs_no_engine(cluster: TwoNodes, tmp_path: Path) -> None:
    progress, hit = killing(cluster, "")
    manifest = trtopt.build(
        MODEL,
        tmp_path / "digits.trtopt",
        batch=(1, 2, 4, 8),
        backend="tensorrt-rtx",
        executor="ray",
        listener=Listener(progress=progress),
    )
    assert hit
    assert [engine.plan.batch.opt[0] for engine in manifest.engines] == [1, 2, 4, 8]
    assert all((tmp_path / "digits.trtopt" / engine.path).is_file() for engine in manifest.engines)


def test_a_driver_that_is_killed_goes_on_after_what_is_measured(cluster: TwoNodes, tmp_path: Path) -> None:
    folder = tmp_path / "digits.sweep"
    command = [sys.executable, "-m", "trtopt", "sweep", str(MODEL), "-o", str(folder), "--batch", "1,2,4"]
    options = ["--backend", "onnxruntime", "--duration", "2", "--warmup", "0", "--executor", "ray"]
    with subprocess.Popen([*command, *options], cwd=ROOT, start_new_session=True) as driver:
        deadline = time.monotonic() + 120
        while not (kept := list(folder.glob("results/*.json"))):
            assert driver.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(driver.pid, signal.SIGKILL)
    before = {path: path.read_bytes() for path in kept}
    report = swept(folder, "ray")
    assert len(report.measured) == len(BATCH)
    assert {path: path.read_bytes() for path in kept} == before
    assert read_sweep(folder) == report


def test_a_job_whose_ray_worker_is_killed_is_given_up_after_its_retries(cluster: TwoNodes) -> None:
    def killed(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    notes: list[str] = []
    builder = open_builder("onnxruntime")
    with connected("ray"):
        executor = RayExecutor(builder, retries=1, note=notes.append, work=killed)  # type: ignore[arg-type]
        job = IdentifyJob(backend="onnxruntime")
        with closing(executor.run_all_jobs([job], on_progress=SILENT.progress)) as outcomes:
            ((_, outcome),) = outcomes
    assert isinstance(outcome, DeviceError)
    assert "lost 2 times: WorkerCrashedError" in outcome.problem
    assert len([note for note in notes if "tried again" in note]) == 1


def test_builds_are_compared_on_the_cluster(cluster: TwoNodes, tmp_path: Path) -> None:
    trtopt.build(MODEL, built := tmp_path / "built", backend="onnxruntime", batch=1)
    compared = trtopt.compare(built, built, builds=2, duration=0.2, executor="ray")
    assert {run.environment.node for run in compared.report.runs} != {None}


def without_connection(folder: Path, **variables: str) -> str:
    """What a build says that finds no cluster."""
    command = [sys.executable, "-m", "trtopt", "build", str(MODEL), "--backend", "onnxruntime"]
    done = subprocess.run(
        [*command, "--executor", "ray", "-o", str(folder / "out")],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    return done.stderr


def test_a_cluster_that_is_not_there_is_reported_without_a_long_wait(
    cluster: TwoNodes, tmp_path: Path
) -> None:
    said = without_connection(tmp_path, RAY_ADDRESS="127.0.0.1:1")
    assert "no connection to the Ray cluster at 127.0.0.1:1" in said
    assert "Connection refused" in said


def test_the_address_of_the_dashboard_is_reported_as_that(
    cluster: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:8265")
    with pytest.raises(DeviceError) as raised, connected("ray"):
        pass
    assert raised.value.remedy.startswith("that is the address of Ray's dashboard")


def test_without_an_address_a_cluster_runs_here_as_long_as_the_command(
    cluster: TwoNodes, local: tuple[Path, SweepReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS")
    notes: list[str] = []
    there = swept(tmp_path / "digits.sweep", "ray", Listener(note=notes.append), duration=0.2)
    assert without_times(there) == without_times(local[1])
    assert any(note.startswith("Ray: jobs run on 1 node,") for note in notes)


def test_another_token_is_refused(cluster: TwoNodes, tmp_path: Path) -> None:
    said = without_connection(tmp_path, RAY_AUTH_TOKEN="x" * 64)
    assert f"no connection to the Ray cluster at {cluster.address}" in said
