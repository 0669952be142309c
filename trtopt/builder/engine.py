"""One engine: from a job to a file on disk and its record."""

from __future__ import annotations

import hashlib
import time
from contextlib import closing
from pathlib import Path

from trtopt.builder.timing_cache import BuildCaches, StoredCache
from trtopt.device.api import BuildInput, BuiltEngine, ClockSensor, EngineBuilder, ProgressSink
from trtopt.device.clocks import faults_of
from trtopt.device.memory_check import require_memory, warn_if_short
from trtopt.device.nvml import open_sensor
from trtopt.errors import BuildError, TimingCacheError
from trtopt.files.atomic import write_atomically, writing
from trtopt.onnxio.external_data import least_bytes
from trtopt.onnxio.model_info import load_graph
from trtopt.printable import counted, visible_lines
from trtopt.records import BuildPlan, EngineArtifact, Job, to_json
from trtopt.records.build import LayerTactic, TacticLock

_INTERVAL_S = 1.0


class ClockWatch:
    """Reads a sensor at the start, at progress (at most once a second), and at the end: what slows the GPU?

    The builder reports progress between its own timings, so that no reading disturbs one.
    """

    def __init__(self, sensor: ClockSensor) -> None:
        self._sensor = sensor
        self._slowed: dict[str, None] = {}
        self._began = time.monotonic()
        self._read()

    def watched(self, progress: ProgressSink) -> ProgressSink:
        """`progress`, with a reading now and then."""

        def both(phase: str, fraction: float | None) -> None:
            if time.monotonic() - self._last >= _INTERVAL_S:
                self._read()
            progress(phase, fraction)

        return both

    def finish(self) -> tuple[str, ...]:
        """Take a last reading; what has slowed the GPU at any."""
        self._read()
        return tuple(self._slowed)

    def _read(self) -> None:
        self._last = time.monotonic()
        reading = self._sensor.read((self._last - self._began) * 1e3)
        self._slowed |= dict.fromkeys(faults_of(reading, self._sensor.reference.mhz))


_CACHE_UNREAD = "timing cache will not be used"
"""What TensorRT logs where it cannot read a part of a cache that it has taken (seen: 8.6.0)."""

_LOG_MARKS = {"error": "E", "warning": "W", "info": "I"}


class BuildJob(Job[EngineArtifact], frozen=True, kw_only=True, tag="build"):
    """A build worker's job. Paths are absolute; `folder` takes the engine and its log.

    `timing_cache` is a file, `store` the folder of a store; see `builder.timing_cache`. `tactics` as
    `BuildInput` has them.
    """

    onnx: str
    types: tuple[str, ...]
    plan: BuildPlan
    folder: str
    timing_cache: str | None
    store: str | None = None
    tactics: tuple[LayerTactic, ...] | None = None


_ROUTINE = (
    "Converting conv activation scales to fp32",
    "Converting conv weight scales to fp32",
    "Your ONNX model has been generated with INT64 weights",
    "CUDA lazy loading is not enabled",
)
"""Parts of messages that the builder marks as warnings, and that call for nothing."""


class BuildLog:
    """The builder's messages in a file, down to `info`; counts errors, and warnings that are not routine.

    TensorRT's verbose messages (many megabytes for a large model) are not kept.
    """

    def __init__(self, path: Path) -> None:
        with writing(path):
            self._file = path.open("w", encoding="utf-8")
        self.warnings = 0

    def __call__(self, severity: str, message: str) -> None:
        """See `device.api.LogSink`."""
        if severity in _LOG_MARKS:
            is_routine = severity == "warning" and any(part in message for part in _ROUTINE)
            self.warnings += severity in ("warning", "error") and not is_routine
            self._file.write(f"[{_LOG_MARKS[severity]}] {visible_lines(message)}\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def build_engine(builder: EngineBuilder, job: BuildJob, progress: ProgressSink) -> EngineArtifact:
    """Build the job's engine, write engine and log, save the timing cache."""
    if builder.backend != job.plan.backend:
        raise BuildError(
            f"the plan is for {job.plan.backend}, this is {builder.backend}",
            "plan and build in one environment",
        )
    folder, label = Path(job.folder), job.plan.label
    _check_room(builder, job)
    caches = BuildCaches(builder, job.plan, job.timing_cache, job.store)
    watch = ClockWatch(open_sensor(builder.device))
    began = time.monotonic()
    with closing(BuildLog(folder / f"{label}.log")) as log:
        built, cache_in = _build_with(caches, builder, job, watch.watched(progress), log)
    seconds, slowed = round(time.monotonic() - began, 3), watch.finish()
    file_name = f"{label}.onnx" if builder.backend.name == "onnxruntime" else f"{label}.engine"
    write_atomically(folder / file_name, built.engine)
    layers = f"{label}.layers.json"
    if built.inspector:
        write_atomically(folder / layers, built.inspector.encode())
    cache_out = caches.save(built.timing_cache, slowed)
    if job.tactics is not None:
        lock = TacticLock(backend=builder.backend, device=builder.device, engines={label: built.tactics})
        write_atomically(folder / tactics_file(job.plan), to_json(lock))
        count = counted(len({one.layer for one in built.tactics}), "layer")
        caches.notes.append(f"{label}: tactics of {count} {'held' if job.tactics else 'recorded'}")
    return EngineArtifact(
        path=file_name,
        sha256=hashlib.sha256(built.engine).hexdigest(),
        size_bytes=len(built.engine),
        plan=job.plan,
        inputs=built.inputs,
        outputs=built.outputs,
        device=builder.device,
        build_seconds=seconds,
        builder_config=built.config,
        timing_cache_in=cache_in.sha256 if cache_in else None,
        timing_cache_out=cache_out.sha256 if cache_out else None,
        timing_cache_hits=built.timing_cache_hits,
        log=f"{label}.log",
        warnings=log.warnings,
        layers=layers if built.inspector else None,
        slowed=slowed if builder.device.kind == "gpu" else None,
        notes=tuple(caches.notes),
    )


def tactics_file(plan: BuildPlan) -> str:
    """The name of an engine's own lock in its folder."""
    return f"{plan.label}.tactics.json"


def _check_room(builder: EngineBuilder, job: BuildJob) -> None:
    """Refuse a build whose weights alone are more than is free, warn of one that may run out of memory.

    The estimate is a rule of thumb: the weights twice, as given and in the layout of timed tactics, and the
    workspace where it is bounded; without a bound TensorRT makes do with the free memory.
    """
    device_memory = builder.device_memory()
    if device_memory is None:
        return
    weights = least_bytes(load_graph(Path(job.onnx)), job.types)
    what = f"building {job.plan.label}"
    require_memory(what, {"weights": weights}, device_memory, "build a smaller model or in a narrower type")
    workspace = job.plan.settings.workspace_bytes or 0
    warn_if_short(what, {"weights": weights, "their copies": weights, "workspace": workspace}, device_memory)


def _build_with(
    caches: BuildCaches, builder: EngineBuilder, job: BuildJob, progress: ProgressSink, log: BuildLog
) -> tuple[BuiltEngine, StoredCache | None]:
    """The engine, and the cache that it began with: none where TensorRT builds only without."""

    def build(cache: StoredCache | None) -> BuiltEngine:
        given = BuildInput(Path(job.onnx), job.types, job.plan, cache.blob if cache else None, job.tactics)
        return builder.build(given, progress, log)

    began_with = caches.start()
    try:
        return build(began_with), began_with
    except TimingCacheError as error:
        caches.refused(error)
    except BuildError as error:
        if began_with is None or _CACHE_UNREAD not in error.problem:
            raise
        caches.suspected(error)
    return build(None), None
