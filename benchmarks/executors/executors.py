"""What the Ray executor costs: per job, for many jobs, after a kill, and when a node dies.

    unshare -rn sh -c 'ip link set lo up; exec python benchmarks/executors/executors.py MODEL.onnx OUT.json'

Starts a Ray cluster of two nodes on this host, each with one CPU. Ray listens on the host's own address, so
it runs in a network namespace with nothing but loopback.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ |= {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_USAGE_STATS_ENABLED": "0",
}

import msgspec
import ray
from ray.cluster_utils import Cluster

import trtopt
from trtopt.device.backends import open_builder
from trtopt.executors.api import THIS_HOST, Executor
from trtopt.executors.ray.connection import connected
from trtopt.executors.ray.executor import RayExecutor
from trtopt.executors.transfer import carry_out, pack
from trtopt.files.bounded_reading import sha256_of
from trtopt.files.manifests import read_manifest
from trtopt.measure.contracts import contract_named
from trtopt.measure.engine import BenchJob
from trtopt.processes import DONE
from trtopt.records import Job
from trtopt.workers.jobs import IdentifyJob
from trtopt.workers.worker import Progress
from trtopt.workflows.listener import SILENT, Listener
from trtopt.workflows.race import engine_at

_NODE = {"num_cpus": 1, "object_store_memory": 80_000_000, "resources": {"trtopt_measuring": 1}}
_ONE_BY_ONE = 20
_COUNTS = (100, 1_000, 10_000)
_POINTS = (1, 2, 3, 4, 6, 8)
_DURATION_S = 2.0


@contextmanager
def two_nodes() -> Iterator[tuple[Cluster, Any]]:
    """A cluster that `--executor ray` finds, and its second node."""
    cluster = Cluster(initialize_head=True, head_node_args=_NODE | {"include_dashboard": False})
    second = cluster.add_node(**_NODE)
    os.environ["RAY_ADDRESS"] = cluster.address
    try:
        yield cluster, second
    finally:
        cluster.shutdown()


def one_by_one(executor: Executor) -> float:
    """Seconds a job, of jobs that open a backend in a worker process, one after the other."""
    job = IdentifyJob(backend="onnxruntime")
    list(executor.run_all_jobs([job], on_progress=SILENT.progress))
    began = time.perf_counter()
    for _ in range(_ONE_BY_ONE):
        list(executor.run_all_jobs([job], on_progress=SILENT.progress))
    return (time.perf_counter() - began) / _ONE_BY_ONE


def bench_job(model: Path, folder: Path) -> BenchJob:
    """A short measurement of a real engine."""
    manifest = trtopt.build(model, folder, backend="onnxruntime")
    engine = read_manifest(folder).engines[0]
    return BenchJob(
        engine=engine_at(folder, manifest.onnx.inputs, engine, 1),
        data=None,
        contract=contract_named("trtexec-11"),
        warmup_s=0.0,
        duration_s=0.01,
        layers=False,
        memory=False,
    )


def doing_nothing(job: Job) -> tuple[Callable[..., Any], int]:
    """What sends one message and the same real result each time; and the result's bytes."""
    files: dict[str, Path] = {}

    def hash_of(file: Path) -> str:
        files[sha256 := sha256_of(file)] = file
        return sha256

    parcel = pack(job, limit_s=None, hash_of=hash_of)
    result = carry_out(parcel, lambda sha256: files[sha256].read_bytes(), SILENT.progress)

    def work(_: bytes, files: dict[str, Any], mailbox: Any, number: int, _level: int) -> Any:
        node = ray.get_runtime_context().get_node_id()
        mailbox.put.remote((number, node, msgspec.msgpack.encode(Progress(phase="latency", fraction=None))))
        return result

    return work, len(result[0])


def many(job: Job) -> list[dict[str, float]]:
    """Jobs a second and the driver's memory, by number of jobs."""
    work, nbytes = doing_nothing(job)
    found = []
    with connected("ray"):
        executor = RayExecutor(open_builder("onnxruntime"), work=work)
        list(executor.run_all_jobs([job] * 50, on_progress=SILENT.progress))
        for count in _COUNTS:
            began, done = time.perf_counter(), 0
            for _ in executor.run_all_jobs([job] * count, on_progress=SILENT.progress):
                done += 1
            seconds = time.perf_counter() - began
            assert done == count
            peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            found.append(
                {
                    "jobs": count,
                    "seconds": round(seconds, 2),
                    "jobs_per_s": round(count / seconds),
                    "driver_peak_mib": round(peak_mib),
                    "result_bytes": nbytes,
                }
            )
            print(found[-1], flush=True)
    return found


def swept(model: Path, folder: Path, batch: Sequence[int], listener: Listener = SILENT) -> tuple[float, int]:
    """Seconds of a sweep, and the points that it has measured."""
    began = time.perf_counter()
    report = trtopt.sweep(
        model,
        folder,
        batch=batch,
        backend="onnxruntime",
        duration=_DURATION_S,
        warmup=0.0,
        executor="ray",
        listener=listener,
    )
    return time.perf_counter() - began, len(report.measured)


def resumed(model: Path, folder: Path) -> dict[str, float]:
    """A sweep's driver is killed after its first results; the same command goes on."""
    options = [
        "--backend",
        "onnxruntime",
        "--duration",
        str(_DURATION_S),
        "--warmup",
        "0",
        "--executor",
        "ray",
    ]
    sizes = ",".join(map(str, _POINTS))
    command = [sys.executable, "-m", "trtopt", "sweep", str(model), "-o", str(folder), "--batch", sizes]
    with subprocess.Popen([*command, *options], start_new_session=True) as driver:
        while len(kept := list(folder.glob("results/*.json"))) < len(_POINTS) // 2:
            time.sleep(0.05)
        os.killpg(driver.pid, signal.SIGKILL)
    before = {path: path.read_bytes() for path in kept}
    seconds, points = swept(model, folder, _POINTS)
    again = sum(path.read_bytes() != content for path, content in before.items())
    return {"kept": len(kept), "measured_twice": again, "points": points, "seconds": round(seconds, 2)}


def with_a_dead_node(model: Path, folder: Path, cluster: Cluster, second: Any) -> dict[str, float]:
    """A sweep in which a node is killed while both measure."""
    active: set[int] = set()
    at: dict[str, float] = {}

    def progress(index: int, phase: str, fraction: float | None) -> None:
        if phase == DONE:
            active.discard(index)
        elif phase.startswith("latency"):
            active.add(index)
        if len(active) == 2 and "killed" not in at:
            cluster.remove_node(second, allow_graceful=False)
            at["killed"] = time.perf_counter()

    def note(text: str) -> None:
        if "tried again" in text:
            at["noticed"] = time.perf_counter()

    seconds, points = swept(model, folder, _POINTS, Listener(progress=progress, note=note))
    return {
        "points": points,
        "seconds": round(seconds, 2),
        "seconds_until_noticed": round(at["noticed"] - at["killed"], 2),
    }


def main() -> None:
    """Measure everything, one after the other."""
    model, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as name, two_nodes() as (cluster, second):
        folder = Path(name)
        found: dict[str, Any] = {
            "trtopt": trtopt.__version__,
            "ray": ray.__version__,
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
            "local_s_per_job": round(one_by_one(THIS_HOST), 3),
        }
        with connected("ray"):
            executor = RayExecutor(open_builder("onnxruntime"))
            found["ray_s_per_job"] = round(one_by_one(executor), 3)
        print(found, flush=True)
        found["doing_nothing"] = many(bench_job(model, folder / "one.trtopt"))
        found["resumed"] = resumed(model, folder / "killed.sweep")
        seconds, points = swept(model, folder / "undisturbed.sweep", _POINTS)
        found["undisturbed"] = {"points": points, "seconds": round(seconds, 2)}
        found["dead_node"] = with_a_dead_node(model, folder / "dead.sweep", cluster, second)
    out.write_bytes(msgspec.json.format(json.dumps(found).encode(), indent=2) + b"\n")


if __name__ == "__main__":
    main()
