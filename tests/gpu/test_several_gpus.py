"""Engines built at once, each on a GPU of its own: by local processes and through Ray."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import trtopt
from tests.support.gpu_digits import DIGITS, HELDOUT, SOURCES
from tests.support.paths import ROOT
from trtopt.device.cuda import probe
from trtopt.files.manifests import read_manifest
from trtopt.records import Environment, SweepReport
from trtopt.workflows.compare.result_files import read_result
from trtopt.workflows.listener import DONE, SILENT, Listener

GPUS = len(probe.names_of_a_kind())
BATCH = tuple(range(1, GPUS + 3))
"""Two engines more than GPUs: when the first is built, others are being built and one has to wait."""

pytestmark = pytest.mark.skipif(GPUS < 2, reason="needs two GPUs of one kind")
# Ray is not imported here: a cluster has a token where trtopt is the first to import it
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs trtopt[ray]")


def swept(folder: Path, listener: Listener = SILENT, **how: Any) -> SweepReport:
    cache = folder.with_suffix(".cache")  # of its own, so that each builds everything
    how |= {"backend": "tensorrt", "tactic_sources": SOURCES, "duration": 0.3, "cache_dir": cache}
    return trtopt.sweep(DIGITS, folder, batch=BATCH, listener=listener, **how)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SweepReport]:
    folder = tmp_path_factory.mktemp("local") / "s"
    return folder, swept(folder, jobs=GPUS)


def builders(folder: Path) -> set[str | None]:
    """The GPUs that the engines were built on."""
    return {engine.device.uuid for engine in read_manifest(folder / "builds" / "model").engines}


def environments(folder: Path, report: SweepReport) -> list[Environment]:
    """Where each point was measured."""
    return [read_result(folder / str(point.result)).environment for point in report.points]


def found(report: SweepReport) -> list[object]:
    """What a sweep finds but for times and the bytes of engines, which differ from build to build."""
    return [(point.setting, point.shapes, point.build, point.failure) for point in report.points]


def all_uuids() -> set[str | None]:
    first = probe.gpus()[0]
    return {gpu.uuid for gpu in probe.gpus() if gpu.name == first.name}


def test_engines_are_built_on_all_gpus_and_measured_on_the_first(local: tuple[Path, SweepReport]) -> None:
    folder, report = local
    assert report.measured == report.points
    assert builders(folder) == all_uuids()
    assert {one.device.uuid for one in environments(folder, report)} == {probe.gpus()[0].uuid}


@needs_ray
def test_through_ray_all_gpus_build_and_every_point_is_measured_alone(
    local: tuple[Path, SweepReport], tmp_path: Path
) -> None:
    report = swept(tmp_path / "s", executor="ray")
    assert found(report) == found(local[1])
    assert builders(tmp_path / "s") == all_uuids()
    measured = environments(tmp_path / "s", report)
    assert {one.device.uuid for one in measured} <= all_uuids()
    checked = trtopt.check(tmp_path / "s" / "builds" / "model", DIGITS, data=HELDOUT)
    assert len(checked.subjects) == len(BATCH)
    assert min(one.cosine for subject in checked.subjects for one in subject.outputs) > 0.9999


@needs_ray
def test_a_gpu_worker_killed_while_it_builds_costs_no_point(
    local: tuple[Path, SweepReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "several-gpus")
    from ray_workers import kill_a_ray_worker

    killed: list[int] = []
    notes: list[str] = []

    def progress(index: int, phase: str, fraction: float | None) -> None:
        if phase == DONE and not killed and (job := kill_a_ray_worker()):  # others are still being built
            killed.append(job)

    report = swept(tmp_path / "s", Listener(progress=progress, note=notes.append), executor="ray")
    assert killed
    assert found(report) == found(local[1])
    (lost,) = [note for note in notes if "lost, and tried again" in note]
    assert "WorkerCrashedError" in lost
    assert not Path(f"/proc/{killed[0]}").exists()  # its build has not gone on alone
