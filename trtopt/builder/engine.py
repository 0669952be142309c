"""One engine: from a job to a file on disk and its record."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from trtopt.builder.timing_cache import Identity, StoredCache, identity_of, load_cache, save_cache
from trtopt.device.api import ProgressSink
from trtopt.device.building import BuiltEngine, EngineBuilder
from trtopt.errors import BuildError
from trtopt.records import BuildPlan, EngineArtifact, Record, to_json
from trtopt.workspace import cannot_write, write_atomically

_LOG_MARKS = {"error": "E", "warning": "W", "info": "I"}


class BuildJob(Record, frozen=True, kw_only=True, tag="build"):
    """What a build worker is told. Paths are absolute; `folder` takes the engine and its log.

    `nvtx` is for `device.marks.Marks`; `memory` has the builder's allocations followed.
    """

    onnx: str
    types: tuple[str, ...]
    plan: BuildPlan
    folder: str
    timing_cache: str | None
    nvtx: bool = False
    memory: bool = False


class BuildLog:
    """The builder's messages in a file, down to `info`; counts warnings and errors.

    TensorRT's verbose messages (many megabytes for a large model) are not kept.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("w", encoding="utf-8")
        except OSError as error:
            raise cannot_write(path, error) from None
        self.warnings = 0

    def __call__(self, severity: str, message: str) -> None:
        """See `device.building.LogSink`."""
        if severity in _LOG_MARKS:
            self.warnings += severity in ("warning", "error")
            self._file.write(f"[{_LOG_MARKS[severity]}] {message}\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def build_engine(builder: EngineBuilder, job: BuildJob, progress: ProgressSink) -> EngineArtifact:
    """Build what the job says, write engine and log, save the timing cache.

    Raises:
        BuildError, UsageError, ModelError, DeviceError, OutputError: see `EngineBuilder.build`.
    """
    if builder.backend != job.plan.backend:
        raise BuildError(
            f"the plan is for {job.plan.backend}, this is {builder.backend}",
            "plan and build in one environment",
        )
    folder, label = Path(job.folder), job.plan.label
    here = identity_of(builder.backend, builder.device)
    cache_in = _cache_in(builder, job, here)
    log = BuildLog(folder / f"{label}.log")
    began = time.monotonic()
    try:
        built = builder.build(
            Path(job.onnx),
            job.types,
            job.plan,
            timing_cache=cache_in.blob if cache_in else None,
            progress=progress,
            log=log,
        )
    finally:
        log.close()
    seconds = time.monotonic() - began
    file_name = label + _suffix(builder)
    write_atomically(folder / file_name, built.engine)
    layers = f"{label}.layers.json" if built.inspector else None
    if layers and built.inspector:
        write_atomically(folder / layers, built.inspector.encode())
    memory = f"{label}.memory.json" if built.memory is not None else None
    if memory and built.memory is not None:
        write_atomically(folder / memory, to_json(built.memory, indent=None))
    cache_out = _cache_out(builder, job, built, cache_in, here)
    return EngineArtifact(
        path=file_name,
        sha256=hashlib.sha256(built.engine).hexdigest(),
        size_bytes=len(built.engine),
        plan=job.plan,
        inputs=built.inputs,
        outputs=built.outputs,
        device=builder.device,
        build_seconds=round(seconds, 3),
        builder_config=built.config,
        timing_cache_in=cache_in.sha256 if cache_in else None,
        timing_cache_out=cache_out.sha256 if cache_out else None,
        timing_cache_hits=built.timing_cache_hits,
        log=f"{label}.log",
        warnings=log.warnings,
        layers=layers,
        memory=memory,
    )


def _suffix(builder: EngineBuilder) -> str:
    return ".onnx" if builder.backend.name == "onnxruntime" else ".engine"


def _cache_in(builder: EngineBuilder, job: BuildJob, here: Identity) -> StoredCache | None:
    if job.timing_cache is None or not builder.uses_timing_cache:
        return None
    return load_cache(Path(job.timing_cache), here)


def _cache_out(
    builder: EngineBuilder, job: BuildJob, built: BuiltEngine, cache_in: StoredCache | None, here: Identity
) -> StoredCache | None:
    if job.timing_cache is None or built.timing_cache is None:
        return None
    return save_cache(
        Path(job.timing_cache),
        built.timing_cache,
        here,
        grown_from=cache_in,
        merge=builder.merge_timing_caches,
    )
