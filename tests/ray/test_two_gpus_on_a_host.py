"""A host that offers two GPUs: builds have one each, measurements take turns.

No GPU is there: Ray gives out what a node says that it has.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pytest

import trtopt
from tests.ray.conftest import TwoNodes
from tests.ray.test_ray_executor import MODEL
from tests.ray.test_unlike_nodes import BACKEND, build_jobs
from tests.support.paths import ROOT
from trtopt.builder.shapes import shapes_at
from trtopt.device.backends import open_builder
from trtopt.executors.ray_tasks import RayExecutor, connected, run_parcel
from trtopt.files.manifests import read_manifest
from trtopt.measure.contracts import contract_named
from trtopt.measure.engine import BenchJob
from trtopt.workers.protocol import Benched, Built
from trtopt.workflows.listener import SILENT

GPUS = {"0", "1"}
TASK = "TASK_OF_TEST"
RECORDER = f"""
import os
if os.environ.get({TASK!r}):
    with open(os.environ[{TASK!r}], "w") as file:
        file.write(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
"""
"""What each Python on the node runs first: a job's own process writes down which GPUs it sees."""


@pytest.fixture
def executor_of(
    cluster: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., RayExecutor]]:
    """Makes executors whose only node has two GPUs, of a model that jobs need one of."""
    (tmp_path / "sitecustomize.py").write_text(RECORDER, "utf-8")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    with cluster.another(num_cpus=8, num_gpus=len(GPUS), PYTHONPATH=path) as node, connected("ray"):

        def make(**options: Any) -> RayExecutor:
            executor = RayExecutor(open_builder(BACKEND), **options)
            executor._alive = tuple(one for one in executor._alive if one.id == node)
            identity = executor._fleet.identity
            assert identity is not None
            on_gpu = msgspec.structs.replace(identity, compute_capability="9.0")
            executor._fleet = executor._fleet.__class__(executor._alive, on_gpu, {})
            monkeypatch.setattr(executor, "_look", lambda: None)
            return executor

        yield make


def bench_jobs(folder: Path) -> list[BenchJob]:
    """Three measurements of a second each."""
    manifest = trtopt.build(MODEL, folder, backend=BACKEND)
    engine = read_manifest(folder).engines[0]
    job = BenchJob(
        path=str(folder / engine.path),
        artifact=engine,
        batch=1,
        shapes=shapes_at(manifest.onnx.inputs, engine.plan, 1),
        data=None,
        contract=contract_named("trtexec-11"),
        warmup_s=0.0,
        duration_s=0.5,
        layers=False,
        memory=False,
    )
    return [job] * 3


def recorded(folder: Path, together: int) -> Callable[..., Any]:
    """What runs jobs and writes down where and when; the first jobs, builds, wait for each other."""

    def work(parcel: bytes, files: Any, mailbox: Any, number: int, index: int, level: int) -> Any:
        os.environ[TASK] = str(folder / f"{index}.seen")
        assigned, began = os.environ["CUDA_VISIBLE_DEVICES"], time.time()
        (folder / f"{index}.began").touch()
        while index < together and len([*folder.glob("*.began")]) < together:
            assert time.time() < began + 60
            time.sleep(0.01)
        try:
            return run_parcel(parcel, files, mailbox, number, index, level)
        finally:
            run = {"index": index, "assigned": assigned, "began": began, "ended": time.time()}
            (folder / f"{index}.json").write_text(json.dumps(run))

    return work


def overlap(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(one["began"] < other["ended"] and other["began"] < one["ended"])


def test_builds_have_a_gpu_each_at_the_same_time_and_measurements_take_turns(
    executor_of: Callable[..., RayExecutor], tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    builds, measurements = build_jobs(MODEL, tmp_path / "out"), bench_jobs(tmp_path / "digits.trtopt")
    executor = executor_of(retries=0, work=recorded(runs, together=len(GPUS)))
    assert executor.at_once == len(GPUS)
    with closing(executor.run_all_jobs([*builds, *measurements], on_progress=SILENT.progress)) as outcomes:
        found = dict(outcomes)
    assert [type(found[index]) for index in sorted(found)] == [Built] * 3 + [Benched] * 3
    ran = [json.loads((runs / f"{index}.json").read_text()) for index in sorted(found)]
    assert {run["assigned"] for run in ran} == GPUS
    assert [(runs / f"{index}.seen").read_text() for index in sorted(found)] == [
        run["assigned"] for run in ran
    ]
    on_one_gpu = [pair for pair in combinations(ran, 2) if pair[0]["assigned"] == pair[1]["assigned"]]
    assert not any(overlap(*pair) for pair in on_one_gpu)
    assert overlap(*ran[: len(GPUS)])
    assert not any(overlap(*pair) for pair in combinations(ran[len(builds) :], 2))


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
