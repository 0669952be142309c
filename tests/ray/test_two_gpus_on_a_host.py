"""A host that offers two GPUs: builds have one each, a measurement is alone.

No GPU is there: Ray gives out what a node says that it has.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import combinations, count
from pathlib import Path
from typing import Any

import msgspec
import pytest

import trtopt
from tests.ray.conftest import TwoNodes
from tests.ray.test_ray_executor import MODEL
from tests.ray.test_unlike_nodes import BACKEND, build_jobs
from tests.support.paths import ROOT
from trtopt.device.backends import open_builder
from trtopt.executors.ray.connection import connected
from trtopt.executors.ray.executor import RayExecutor
from trtopt.executors.ray.node import run_parcel
from trtopt.files.manifests import read_manifest
from trtopt.measure.contracts import contract_named
from trtopt.measure.engine import BenchJob
from trtopt.processes.child import Child
from trtopt.records import EngineArtifact, Job
from trtopt.workers import worker
from trtopt.workflows.listener import SILENT
from trtopt.workflows.race import engine_at

GPUS = {"0", "1"}


@pytest.fixture
def executor_of(
    cluster: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., RayExecutor]]:
    """Makes executors whose only node has two GPUs, of a model that jobs need one of."""
    with cluster.another(num_cpus=8, num_gpus=len(GPUS), PYTHONPATH=str(ROOT)) as node, connected("ray"):

        def make(**options: Any) -> RayExecutor:
            executor = RayExecutor(open_builder(BACKEND), **options)
            executor.nodes.alive = tuple(one for one in executor.nodes.alive if one.id == node)
            identity = executor.nodes.identity
            on_gpu = msgspec.structs.replace(identity, compute_capability="9.0")
            executor.nodes.fleet = executor.nodes.fleet.__class__(executor.nodes.alive, on_gpu)
            monkeypatch.setattr(executor.nodes, "look", lambda: None)
            return executor

        yield make


def bench_jobs(folder: Path) -> list[BenchJob]:
    """Three measurements of a second each."""
    manifest = trtopt.build(MODEL, folder, backend=BACKEND)
    engine = read_manifest(folder).engines[0]
    job = BenchJob(
        engine=engine_at(folder, manifest.onnx.inputs, engine, 1),
        data=None,
        contract=contract_named("trtexec-11"),
        warmup_s=0.0,
        duration_s=0.5,
        layers=False,
        memory=False,
    )
    return [job] * 3


def recorded(folder: Path, together: int) -> Callable[..., Any]:
    """What runs jobs and writes down where and when; the first `together` start when all have reported."""
    folder.mkdir()

    def work(parcel: bytes, files: Any, mailbox: Any, index: int, level: int) -> Any:
        assigned, began = os.environ["CUDA_VISIBLE_DEVICES"], time.time()
        start = worker.Child

        def started(*words: str, environment: Mapping[str, str], **options: Any) -> Child:
            seen = (os.environ | dict(environment))["CUDA_VISIBLE_DEVICES"]
            (folder / f"{index}.seen").write_text(seen)
            while index < together and len([*folder.glob("*.seen")]) < together:
                assert time.time() < began + 60
                time.sleep(0.01)
            return start(*words, environment=environment, **options)

        worker.Child = started  # type: ignore[assignment,misc]
        result = run_parcel(parcel, files, mailbox, index, level)
        worker.Child = start  # type: ignore[misc]
        run = {"assigned": assigned, "began": began, "ended": time.time()}
        (folder / f"{index}.json").write_text(json.dumps(run))
        return result

    return work


def ran(
    executor: RayExecutor, jobs: Sequence[Job[Any]], folder: Path, together: int
) -> tuple[list[Any], list[dict[str, Any]]]:
    """What the jobs have come to, and where and when they ran; each on the GPU that Ray has given it."""
    executor.numbers = count()
    executor.task = pytest.importorskip("ray").remote(recorded(folder, together))
    with closing(executor.run_all_jobs(jobs, on_progress=SILENT.progress)) as outcomes:
        found = dict(outcomes)
    runs = [json.loads((folder / f"{index}.json").read_text()) for index in range(len(jobs))]
    assert [(folder / f"{index}.seen").read_text() for index in range(len(jobs))] == [
        run["assigned"] for run in runs
    ]
    return [found[index] for index in range(len(jobs))], runs


def overlap(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(one["began"] < other["ended"] and other["began"] < one["ended"])


def test_builds_have_a_gpu_each_at_the_same_time_and_measurements_take_turns(
    executor_of: Callable[..., RayExecutor], tmp_path: Path
) -> None:
    builds, measurements = build_jobs(MODEL, tmp_path / "out"), bench_jobs(tmp_path / "digits.trtopt")
    executor = executor_of(retries=0)
    assert executor.at_once == len(GPUS)

    built, runs = ran(executor, builds[:2], tmp_path / "builds", together=2)
    assert all(isinstance(one, EngineArtifact) for one in built)
    assert {run["assigned"] for run in runs} == GPUS
    assert overlap(*runs)

    _, runs = ran(executor, [*measurements[:2], builds[2]], tmp_path / "measurements", together=0)
    assert not any(overlap(*pair) for pair in combinations(runs, 2))  # each measurement is alone


def test_a_node_whose_gpus_are_all_in_use_takes_part(
    executor_of: Callable[..., RayExecutor], tmp_path: Path
) -> None:
    ray, notes, began = pytest.importorskip("ray"), list[str](), tmp_path / "began"

    def hold() -> None:
        began.touch()
        time.sleep(600)

    busy = ray.remote(hold).options(num_gpus=len(GPUS)).remote()
    try:
        while not began.exists():
            time.sleep(0.1)
        executor_of(note=notes.append)
    finally:
        ray.cancel(busy, force=True)
    assert notes[-1].startswith("Ray: jobs run on 3 nodes")
