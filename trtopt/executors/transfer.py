"""Jobs on their way to another host and back: records as JSON, files by their SHA-256.

A job's paths lie under a placeholder while it travels. On arrival its files are written into a scratch
folder, each checked by hash, and the placeholder becomes that folder. On the way back it is the other way
round, so that results and errors name the user's own paths. Nothing that travels is code.
"""

from __future__ import annotations

import hashlib
import shutil
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from trtopt.builder.engine import BuildJob
from trtopt.builder.timing_cache import read_cache
from trtopt.builder.timing_cache_of_build import BuildCaches
from trtopt.data.source import data_files
from trtopt.device.building import EngineBuilder
from trtopt.errors import (
    ArtifactError,
    DeviceError,
    IncompatibleEngineError,
    OutputError,
    TrtoptError,
    rebuild,
)
from trtopt.executors.local import THIS_HOST
from trtopt.files.atomic import scratch_folder, write_atomically
from trtopt.measure.engine import BenchJob
from trtopt.measure.loop.interleaved import InterleaveJob
from trtopt.measure.outputs import OutputsJob
from trtopt.onnxio.model_file import load
from trtopt.records import BuildPlan, EngineArtifact, Record
from trtopt.version import __version__
from trtopt.workers.jobs import Job
from trtopt.workers.protocol import Failure, IdentifyJob, Result
from trtopt.workers.supervisor import OnProgress

_FILES = "@trtopt-files@"
"""What a job's paths begin with while it travels."""
_OUT = "out"
_CACHE = "cache/timing.cache"
_FULL_BYTES = 1 << 20
"""With less space, what a job's libraries say of their failure may be anything."""
_DAMAGED = "run the command again; if it happens again, check the network and memory of the nodes"

Fetch = Callable[[str], bytes]
"""The bytes with a hash."""


class Parcel(Record, frozen=True, kw_only=True):
    """A job on its way: `files` are the hashes of what it reads, by their places."""

    trtopt: str
    job: msgspec.Raw
    files: dict[str, str]
    limit_s: float | None


class Reply(Record, frozen=True, kw_only=True):
    """A result on its way back: `files` are the hashes of what the job has written, by their places."""

    node: str
    outcome: msgspec.Raw
    files: dict[str, str]


@dataclass
class Packed:
    """A job that is ready to travel: its record, the files by hash, and what its places stand for here."""

    parcel: bytes = b""
    files: dict[str, Path] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None


class _Packing:
    """Gathers the files that a job reads."""

    def __init__(self, hash_of: Callable[[Path], str]) -> None:
        self.hashes: dict[str, str] = {}
        self.packed = Packed()
        self._hash_of = hash_of

    def take(self, path: str, files: Iterable[Path] | None = None) -> str:
        """Where `path` will be; `files` are those in its folder that belong to it [default: itself]."""
        root, number = Path(path).parent, len(self.packed.names)
        for file in files if files is not None else [Path(path)]:
            self._add(f"{number}/{file.relative_to(root).as_posix()}", file)
        place = f"{_FILES}/{number}/{Path(path).name}"
        self.packed.names[place] = path
        return place

    def take_cache(self, file: Path | None) -> str:
        """Where the build's timing cache will be, with what is in `file`."""
        if file is not None:
            self._add(_CACHE, file)
        return f"{_FILES}/{_CACHE}"

    def _add(self, place: str, file: Path) -> None:
        sha256 = self._hash_of(file)
        self.hashes[place] = sha256
        self.packed.files[sha256] = file


def pack(
    job: Job,
    *,
    limit_s: float | None,
    hash_of: Callable[[Path], str],
    timings: Path | None = None,
    has_timings: bool = False,
) -> Packed:
    """A job as it travels; with `has_timings` a build has a timing cache, which begins as `timings`."""
    packing = _Packing(hash_of)
    cache = packing.take_cache(timings) if has_timings else None
    packed = packing.packed
    if isinstance(job, BuildJob | OutputsJob):
        packed.folder = Path(job.folder)
    travelling = _PACKERS[type(job)](job, packing, cache)
    parcel = Parcel(
        trtopt=__version__,
        job=msgspec.Raw(msgspec.json.encode(travelling)),
        files=packing.hashes,
        limit_s=limit_s,
    )
    packed.parcel = msgspec.json.encode(parcel)
    return packed


def _pack_build(job: BuildJob, packing: _Packing, cache: str | None) -> BuildJob:
    model = Path(job.onnx)
    files = load(model).files
    return msgspec.structs.replace(
        job,
        onnx=packing.take(job.onnx, files),
        plan=_plan(job.plan, packing),
        folder=f"{_FILES}/{_OUT}",
        timing_cache=cache,
        store=None,
    )


def _pack_bench(job: BenchJob, packing: _Packing, _cache: str | None) -> BenchJob:
    artifact = msgspec.structs.replace(job.artifact, plan=_plan(job.artifact.plan, packing))
    return msgspec.structs.replace(
        job, path=packing.take(job.path), artifact=artifact, data=_data(job.data, packing)
    )


def _pack_interleave(job: InterleaveJob, packing: _Packing, _cache: str | None) -> InterleaveJob:
    engines = tuple(
        msgspec.structs.replace(
            engine,
            path=packing.take(engine.path),
            artifact=msgspec.structs.replace(engine.artifact, plan=_plan(engine.artifact.plan, packing)),
        )
        for engine in job.engines
    )
    return msgspec.structs.replace(job, engines=engines, data=_data(job.data, packing))


def _pack_outputs(job: OutputsJob, packing: _Packing, _cache: str | None) -> OutputsJob:
    artifact = msgspec.structs.replace(job.artifact, plan=_plan(job.artifact.plan, packing))
    return msgspec.structs.replace(
        job,
        path=packing.take(job.path),
        artifact=artifact,
        data=_data(job.data, packing) or job.data,
        folder=f"{_FILES}/{_OUT}",
    )


def _plan(plan: BuildPlan, packing: _Packing) -> BuildPlan:
    plugins = tuple(
        msgspec.structs.replace(plugin, path=packing.take(plugin.path)) for plugin in plan.settings.plugins
    )
    return msgspec.structs.replace(plan, settings=msgspec.structs.replace(plan.settings, plugins=plugins))


def _data(data: str | None, packing: _Packing) -> str | None:
    """Files travel; a function of the user's is named, and must be there."""
    files = data_files(Path(data)) if data is not None else []
    return packing.take(data, files) if data is not None and files else data


_PACKERS: dict[type, Callable[[Any, _Packing, str | None], Job]] = {
    BuildJob: _pack_build,
    BenchJob: _pack_bench,
    InterleaveJob: _pack_interleave,
    OutputsJob: _pack_outputs,
    IdentifyJob: lambda job, _packing, _cache: job,
}


# ── on the other host ───────────────────────────────────────────────────────────────────────────────────


def carry_out(parcel: bytes, fetch: Fetch, on_progress: OnProgress) -> tuple[bytes, dict[str, bytes]]:
    """Run a job that has arrived, in a worker process; returns the reply and the files by their hashes."""
    arrived = msgspec.json.decode(parcel, type=Parcel)
    if arrived.trtopt != __version__:
        raise IncompatibleEngineError(
            f"{socket.gethostname()} has trtopt {__version__}, the job comes from trtopt {arrived.trtopt}",
            "install one version of trtopt on all nodes",
        )
    with scratch_folder() as folder:
        here, placeholder = _json_text(str(folder)), _FILES.encode()
        for place, sha256 in arrived.files.items():
            write_atomically(_inside(folder, place), checked(fetch(sha256), sha256, place))
        (folder / _OUT).mkdir()
        (folder / _CACHE).parent.mkdir(exist_ok=True)
        job = msgspec.json.decode(bytes(arrived.job).replace(placeholder, here), type=Job)
        ((_, outcome),) = THIS_HOST.run_all_jobs([job], limit_s=arrived.limit_s, on_progress=on_progress)
        if isinstance(outcome, TrtoptError):
            _check_disk(folder, outcome)
        sent = failure_of(outcome) if isinstance(outcome, TrtoptError) else outcome
        contents = {file.relative_to(folder).as_posix(): file.read_bytes() for file in _written(folder)}
        hashes = {place: _sha256(content) for place, content in contents.items()}
        reply = Reply(
            node=socket.gethostname(),
            outcome=msgspec.Raw(msgspec.json.encode(sent).replace(here, placeholder)),
            files=hashes,
        )
        return msgspec.json.encode(reply), {hashes[place]: content for place, content in contents.items()}


def _check_disk(folder: Path, error: TrtoptError) -> None:
    """Find out whether this host's disk is what a job failed for; another host's may have space."""
    place = f"{folder.parent.parent} of {socket.gethostname()}"
    if shutil.disk_usage(folder).free < _FULL_BYTES:
        raise DeviceError(f"{place} is full: {error.problem}", f"free space in {place}")
    if isinstance(error, OutputError):  # it writes to this folder alone
        raise DeviceError(error.problem, f"see that {place} can be written to")


def failure_of(error: TrtoptError) -> Failure:
    """An error as it travels."""
    return Failure(error=type(error).__name__, problem=error.problem, remedy=error.remedy)


def _written(folder: Path) -> list[Path]:
    out = [file for file in (folder / _OUT).rglob("*") if file.is_file() and not file.name.startswith(".")]
    cache = folder / _CACHE
    return [*out, *([cache] if cache.is_file() else [])]


# ── back again ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Arrived:
    """What a job has come to: its result, the host's name, and its timing cache as a file has it."""

    outcome: Result | TrtoptError
    node: str
    timings: bytes | None


def unpack(packed: Packed, reply: bytes, contents: Mapping[str, bytes]) -> Arrived:
    """Take a reply: its files go into the job's folder, its paths are the user's again."""
    arrived = _decoded(reply, Reply)
    files = {
        place: checked(contents.get(sha256, b""), sha256, place) for place, sha256 in arrived.files.items()
    }
    for place, content in files.items():
        if place != _CACHE and packed.folder is not None:
            write_atomically(_inside(packed.folder, place.removeprefix(f"{_OUT}/")), content)
    text = bytes(arrived.outcome).replace(f"{_FILES}/{_OUT}".encode(), _json_text(str(packed.folder)))
    for place, path in packed.names.items():
        text = text.replace(place.encode(), _json_text(path))
        text = text.replace(place.rpartition("/")[0].encode() + b"/", _json_text(f"{Path(path).parent}/"))
    outcome = _decoded(text, Result | Failure)
    return Arrived(
        outcome=rebuild(outcome.error, outcome.problem, outcome.remedy)
        if isinstance(outcome, Failure)
        else outcome,
        node=arrived.node,
        timings=files.get(_CACHE),
    )


def _decoded(text: bytes, type_: Any) -> Any:
    """A record that has arrived."""
    try:
        return msgspec.json.decode(text, type=type_)
    except msgspec.MsgspecError as error:
        raise ArtifactError(f"a reply arrived damaged: {error}", _DAMAGED) from None


def checked(content: bytes, sha256: str, place: str) -> bytes:
    """What has arrived, if it is what was sent."""
    if _sha256(content) != sha256:
        raise ArtifactError(
            f"{place}: arrived damaged: its hash is not the one that was announced",
            _DAMAGED,
        )
    return content


def _inside(folder: Path, place: str) -> Path:
    """Where a file goes that names its own place."""
    parts = PurePosixPath(place).parts
    if not parts or PurePosixPath(place).is_absolute() or ".." in parts:
        raise ArtifactError(f"{place!r}: leaves the folder that files arrive in", "check who sent it")
    return folder.joinpath(*parts)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _json_text(text: str) -> bytes:
    """As it stands within a JSON string."""
    return msgspec.json.encode(text)[1:-1]


# ── timing caches ───────────────────────────────────────────────────────────────────────────────────────


class Timings:
    """The caches of one build that runs elsewhere; only this process writes to them."""

    def __init__(self, builder: EngineBuilder, job: BuildJob) -> None:
        """Read what the build begins with."""
        self._caches = BuildCaches(builder, job.plan, job.timing_cache, job.store)
        self._caches.start()

    @property
    def file(self) -> Path | None:
        """The file that the build begins with, if there is one yet."""
        return self._caches.begun_with

    def add(self, engine: EngineArtifact, content: bytes | None) -> EngineArtifact:
        """Merge what the build has timed, the `content` of its cache file; returns its record after that."""
        if content is None or engine.clocks is None:
            return engine
        with scratch_folder() as folder:
            file = folder / "timing.cache"
            file.write_bytes(content)
            blob = read_cache(file).blob
        saved = self._caches.save(blob, engine.build_seconds, engine.clocks)
        return msgspec.structs.replace(
            engine,
            timing_cache_out=saved.sha256 if saved else None,
            notes=tuple(dict.fromkeys((*engine.notes, *self._caches.notes))),
        )
