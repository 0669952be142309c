"""Jobs on their way to another host and back: records as JSON, files by their SHA-256.

On arrival a job's files are written into a scratch folder, each checked by hash, and its paths lead there.
Results and errors name the user's own paths again when they leave. Nothing that travels is code.
"""

from __future__ import annotations

import hashlib
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from trtopt.builder.engine import BuildJob
from trtopt.builder.timing_cache import BuildCaches, read_cache
from trtopt.data.source import data_files
from trtopt.errors import ArtifactError, DeviceError, OutputError, TrtoptError
from trtopt.executors.api import THIS_HOST
from trtopt.files.atomic import scratch_folder, write_atomically
from trtopt.measure.engine import BenchJob, BenchResult, OutputsJob
from trtopt.measure.loop.interleaved import InterleaveJob
from trtopt.onnxio.model_file import load
from trtopt.processes import OnProgress
from trtopt.records import EngineArtifact, InterleavedRun, Job, Record
from trtopt.workers.jobs import ANY_JOB, engines_of
from trtopt.workers.worker import Done, Ending, Failure, ending_of

_OUT = "out"
_CACHE = "cache/timing.cache"
_FULL_BYTES = 1 << 20
"""With less space, what a job's libraries say of their failure may be anything."""
_DAMAGED = "run the command again; if it happens again, check the network and memory of the nodes"

Fetch = Callable[[str], bytes]
"""The bytes with a hash."""


class Parcel(Record, frozen=True, kw_only=True):
    """A job on its way: by their places what it reads of the user's `paths`, and the hashes of its `files`.

    `has_timings`: a build has a timing cache.
    """

    job: msgspec.Raw
    paths: dict[str, str]
    files: dict[str, str]
    has_timings: bool
    limit_s: float | None


class Reply(Record, frozen=True, kw_only=True):
    """A result on its way back: `files` are the hashes of what the job has written, by their places."""

    node: str
    outcome: msgspec.Raw
    files: dict[str, str]


def pack(
    job: Job[Any],
    *,
    limit_s: float | None,
    hash_of: Callable[[Path], str],
    caches: BuildCaches | None = None,
) -> bytes:
    """A job as it travels; `hash_of` hears of each file. With `caches` a build has a timing cache."""
    files: dict[str, Path] = {}
    paths: dict[str, str] = {}
    for number, (path, own) in enumerate(_read_by(job).items()):
        paths[f"{number}/{Path(path).name}"] = path
        files |= {f"{number}/{file.relative_to(Path(path).parent).as_posix()}": file for file in own}
    if caches is not None and caches.begun_with is not None:
        files[_CACHE] = caches.begun_with
    parcel = Parcel(
        job=msgspec.Raw(msgspec.json.encode(job)),
        paths=paths,
        files={place: hash_of(file) for place, file in files.items()},
        has_timings=caches is not None,
        limit_s=limit_s,
    )
    return msgspec.json.encode(parcel)


def _read_by(job: Job[Any]) -> dict[str, Sequence[Path]]:
    """The paths that a job reads, each with the files that belong to it.

    A function of the user's is named, and must be there.
    """
    found: dict[str, Sequence[Path]]
    if isinstance(job, BuildJob):
        found, plans = {job.onnx: load(Path(job.onnx)).files}, [job.plan]
    else:
        engines = engines_of(job)
        found = {engine.path: [Path(engine.path)] for engine in engines}
        plans = [engine.artifact.plan for engine in engines]
    found |= {plugin.path: [Path(plugin.path)] for plan in plans for plugin in plan.settings.plugins}
    data = job.data if isinstance(job, BenchJob | InterleaveJob | OutputsJob) else None
    if data is not None and (files := data_files(Path(data))):
        found[data] = files
    return found


_PATHS = ("onnx", "path", "data")
"""Fields of jobs, and of what is in them, that name files."""


def _with_paths(value: Any, here: Mapping[str, str]) -> Any:
    """A job's builtins with the paths of its files here."""
    if isinstance(value, dict):
        found = {name: _with_paths(one, here) for name, one in value.items()}
        own = {name: found[name] for name in _PATHS if isinstance(found.get(name), str)}
        return found | {name: here.get(path, path) for name, path in own.items()}
    return [_with_paths(one, here) for one in value] if isinstance(value, list) else value


# ── on the other host ───────────────────────────────────────────────────────────────────────────────────


def carry_out(parcel: bytes, fetch: Fetch, on_progress: OnProgress) -> tuple[bytes, dict[str, bytes]]:
    """Run a job that has arrived, in a worker process; returns the reply and the files by their hashes."""
    arrived = msgspec.json.decode(parcel, type=Parcel)
    with scratch_folder() as folder:
        for place, sha256 in arrived.files.items():
            write_atomically(_inside(folder, place), checked(fetch(sha256), sha256, place))
        out, cache = folder / _OUT, folder / _CACHE
        out.mkdir()
        cache.parent.mkdir(exist_ok=True)
        here = {path: str(_inside(folder, place)) for place, path in arrived.paths.items()}
        job_here = msgspec.json.encode(_with_paths(msgspec.json.decode(arrived.job), here))
        job: Job[Any] = msgspec.json.decode(job_here, type=ANY_JOB)
        back = {f"{Path(mine).parent}/": f"{Path(path).parent}/" for path, mine in here.items()}
        back |= {mine: path for path, mine in here.items()}
        if isinstance(job, BuildJob | OutputsJob):
            back[str(out)] = job.folder
            job = msgspec.structs.replace(job, folder=str(out))
        if isinstance(job, BuildJob):
            cached = str(cache) if arrived.has_timings else None
            job = msgspec.structs.replace(job, timing_cache=cached, store=None)
        ((_, outcome),) = THIS_HOST.run_all_jobs([job], limit_s=arrived.limit_s, on_progress=on_progress)
        if isinstance(outcome, TrtoptError):
            _check_disk(folder, outcome)
        text = msgspec.json.encode(ending(outcome))
        for mine in sorted(back, key=len, reverse=True):  # a file before its folder
            text = text.replace(_json_text(mine), _json_text(back[mine]))
        contents = {file.relative_to(folder).as_posix(): file.read_bytes() for file in _written(folder)}
        hashes = {place: _sha256(content) for place, content in contents.items()}
        reply = Reply(node=socket.gethostname(), outcome=msgspec.Raw(text), files=hashes)
        return msgspec.json.encode(reply), {hashes[place]: content for place, content in contents.items()}


def _check_disk(folder: Path, error: TrtoptError) -> None:
    """Find out whether this host's disk is what a job failed for; another host's may have space."""
    place = f"{folder.parent.parent} of {socket.gethostname()}"
    if shutil.disk_usage(folder).free < _FULL_BYTES:
        raise DeviceError(f"{place} is full: {error.problem}", f"free space in {place}")
    if isinstance(error, OutputError):  # it writes to this folder alone
        raise DeviceError(error.problem, f"see that {place} can be written to")


def ending(outcome: Any) -> Ending:
    """A result, or an error, as it travels."""
    return Failure.of(outcome) if isinstance(outcome, TrtoptError) else Done(result=outcome)


def _written(folder: Path) -> list[Path]:
    out = [file for file in (folder / _OUT).rglob("*") if file.is_file() and not file.name.startswith(".")]
    cache = folder / _CACHE
    return [*out, *([cache] if cache.is_file() else [])]


# ── back again ──────────────────────────────────────────────────────────────────────────────────────────


def unpack(
    job: Job[Any],
    reply: bytes,
    contents: Mapping[str, bytes],
    *,
    caches: BuildCaches | None = None,
    git_revision: str | None = None,
) -> Any:
    """What a job has come to, with what only this host knows: where it ran, and the code that requested it.

    Its files go into the job's folder, and what a build has timed into its `caches`.
    """
    arrived, replace = _decoded(reply, Reply), msgspec.structs.replace
    files = {
        place: checked(contents.get(sha256, b""), sha256, place) for place, sha256 in arrived.files.items()
    }
    if isinstance(job, BuildJob | OutputsJob):
        for place, content in files.items():
            if place != _CACHE:
                write_atomically(_inside(Path(job.folder), place.removeprefix(f"{_OUT}/")), content)
    ended = _decoded(arrived.outcome, ending_of(job))
    if isinstance(ended, Failure):
        return ended.error
    result = ended.result
    if isinstance(result, EngineArtifact) and caches is not None:
        return add_timings(caches, result, files.get(_CACHE))
    if isinstance(result, BenchResult | InterleavedRun):
        known = {"node": arrived.node, "git_revision": git_revision}
        return replace(result, environment=replace(result.environment, **known))
    return result


def _decoded(text: bytes | msgspec.Raw, type_: Any) -> Any:
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


def add_timings(caches: BuildCaches, engine: EngineArtifact, content: bytes | None) -> EngineArtifact:
    """Merge what a build elsewhere has timed, the `content` of its cache file; returns its record after that.

    Only this process writes to the `caches`, which said what the build begins with.
    """
    if content is None or engine.slowed is None:
        return engine
    with scratch_folder() as folder:
        file = folder / "timing.cache"
        file.write_bytes(content)
        blob = read_cache(file).blob
    saved = caches.save(blob, engine.slowed)
    return msgspec.structs.replace(
        engine,
        timing_cache_out=saved.sha256 if saved else None,
        notes=tuple(dict.fromkeys((*engine.notes, *caches.notes))),
    )
