"""One engine at one batch size: all the passes that were asked for, each on its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trtopt.data import open_data
from trtopt.device.api import ProgressSink, Session, Target
from trtopt.errors import IncompatibleEngineError
from trtopt.inputs import random_batch
from trtopt.measure.arrivals import Load
from trtopt.measure.buffers import Inputs
from trtopt.measure.load import LoadSettings, measure_load
from trtopt.measure.loop import Subject, measure
from trtopt.measure.passes import follow_memory, time_layers
from trtopt.measure.ratesearch import search_load
from trtopt.measure.stopping import Limits
from trtopt.records import BenchPoint, Contract, EngineArtifact, EngineRef, Record, Shape
from trtopt.workspace import read_verified


class BenchJob(Record, frozen=True, kw_only=True, tag="bench"):
    """What a bench worker is told. The file at `path` is loaded only if its hash is the artifact's.

    `data` is what `trtopt.data.open_data` takes; None gives seeded random input. `cpu_affinity` is what
    `device.affinity.confine` takes; None leaves the threads where the system puts them.
    """

    path: str
    artifact: EngineArtifact
    batch: int
    shapes: dict[str, Shape]
    data: str | None
    contract: Contract
    warmup_s: float
    duration_s: float
    layers: bool
    memory: bool
    load: LoadSettings | None = None
    cpu_affinity: str | None = None


def bench_engine(target: Target, job: BenchJob, progress: ProgressSink) -> BenchPoint:
    """Latency, throughput and, if asked for, load, layers and memory.

    After a load pass in which the device failed no other pass is tried.

    Raises:
        IncompatibleEngineError: the engine was built by another TensorRT or for another GPU.
        ArtifactError: the file is not the one that was built.
        DataError, DeviceError, MeasurementError, UsageError: see the passes.
    """
    check_fits(job.artifact, target)
    engine = read_verified(Path(job.path), job.artifact.sha256)
    device = target.device
    session = target.load(engine)
    try:
        data = input_batch(session, job.shapes, job.data)
        ref = EngineRef(path=job.path, sha256=job.artifact.sha256, label=job.artifact.plan.label)
        subject = Subject(engine=ref, batch=job.batch, shapes=job.shapes, data=data)
        limits = Limits(warmup_s=job.warmup_s, duration_s=job.duration_s)
        progress("latency", None)
        latency = measure(device, session, subject, job.contract, "latency", limits)
        throughput = load = search = layers = memory = None
        if job.contract.queue_ahead or job.contract.streams > 1:
            progress("throughput", None)
            throughput = measure(device, session, subject, job.contract, "throughput", limits)
        settings = job.load
        if settings is not None and settings.goal is not None:
            closed = (latency, throughput or latency)
            search = search_load(device, session, subject, job.contract, settings, closed, limits, progress)
        elif settings is not None and settings.rate is not None:
            progress("load", None)
            plan = Load(settings.rate, settings.arrivals)
            load = measure_load(device, session, subject, job.contract, plan, limits)
        failed = any(each is not None and each.failure is not None for each in (load, search))
        if job.layers and not failed:
            progress("layers", None)
            layers = time_layers(device, session, subject)
    finally:
        session.close()
    if job.memory and not failed:
        progress("memory", None)
        memory = follow_memory(device, lambda tracker: target.load(engine, track=tracker), subject)
    return BenchPoint(
        batch=job.batch,
        latency=latency,
        throughput=throughput,
        load=load,
        load_search=search,
        layers=layers,
        memory=memory,
    )


def input_batch(session: Session, shapes: Mapping[str, Shape], data: str | None) -> Inputs:
    """One batch of what `data` names (see `trtopt.data.open_data`), or of seeded random input.

    Raises:
        DataError: it does not fit the engine's inputs.
    """
    if data is None:
        return random_batch(session.inputs, shapes)
    return open_data(data).first_batch(session.inputs, shapes)


def check_fits(artifact: EngineArtifact, target: Target) -> None:
    """Engines fit one flavour, version and GPU model.

    Raises:
        IncompatibleEngineError: this one does not fit here; says what differs.
    """
    built, here = artifact.plan.backend, target.backend
    remedy = "build again on this machine, or measure where it was built"
    if built != here:
        raise IncompatibleEngineError(f"{artifact.path}: built by {built}, this machine has {here}", remedy)
    gpu = target.device.info
    if artifact.device.kind == "gpu" and (artifact.device.name, artifact.device.compute_capability) != (
        gpu.name,
        gpu.compute_capability,
    ):
        raise IncompatibleEngineError(
            f"{artifact.path}: built for {artifact.device.name} (compute capability "
            f"{artifact.device.compute_capability}), this machine has {gpu.name} ({gpu.compute_capability})",
            remedy,
        )
