"""The executor whose jobs are Ray tasks: sent, followed, tried again where they are lost, and taken back.

Ray places them by their resources and moves bytes. A task that is lost is tried again here and not by Ray:
where a node runs out of memory, Ray would do it without end, there again, and without a word.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from trtopt.builder.engine import BuildJob
from trtopt.builder.timing_cache import identity_of
from trtopt.device.building import EngineBuilder
from trtopt.errors import ArtifactError, DeviceError, TrtoptError
from trtopt.executors.api import shares_a_host
from trtopt.executors.placement import (
    MEASURING,
    Needs,
    Neighbours,
    Node,
    able,
    candidates,
    check_offers,
    difference,
    exhausted,
)
from trtopt.executors.ray.connection import NODE_LABEL, finished, is_full, load_ray, on_node, reason_of
from trtopt.executors.ray.node import (
    DELIVERY_S,
    RECEIVING,
    REPORT_S,
    Mailbox,
    remove_leftovers,
    run_parcel,
)
from trtopt.executors.ray.nodes import Nodes
from trtopt.executors.transfer import Packed, Timings, pack, unpack
from trtopt.files.bounded_reading import sha256_of
from trtopt.logs import LOG, Logged, log_relayed
from trtopt.measure.engine import Benched
from trtopt.processes import DONE, OnProgress
from trtopt.records import EngineArtifact, InterleavedRun, Job
from trtopt.records.base import JobResult
from trtopt.workers.jobs import git_revision, type_of
from trtopt.workers.protocol import Message, Progress

_IN_FLIGHT = 256
"""So many tasks are submitted at a time: enough for Ray to place, few enough for the driver's memory."""
_LOOK_S = 2.0
_FAREWELL_S = 20.0
"""So long is waited for the end of what is cancelled, and then for the removal of its files."""
_PATIENCE_S = 60.0
"""So long jobs wait while no node can run them: a cluster may replace those that it has lost."""


class _Stored:
    """A file in the object store; it leaves when nothing holds this any more."""

    def __init__(self, ref: Any) -> None:
        self.ref = ref


@cache
def _hash(path: str, _inode: int, _size: int, _mtime_ns: int) -> str:
    return sha256_of(Path(path))


def _hash_of(path: Path) -> str:
    """A file's SHA-256, computed again only if the file has changed."""
    status = path.stat()
    return _hash(str(path), status.st_ino, status.st_size, status.st_mtime_ns)


@dataclass
class _Submission:
    """A job, from its first submission to its outcome; it has a new number each time that it is sent."""

    index: int
    job: Job[Any]
    needs: Needs
    number: int = 0
    nodes: frozenset[str] = frozenset()
    """Where it may run, this time."""
    node: str | None = None
    """Where it runs."""
    at_work_since: float | None = None
    """When its files were there, by the monotonic clock; None: before that, and once it has its result."""
    reasons: list[str] = field(default_factory=list)
    """Why it was lost, each time."""
    failed_on: set[str] = field(default_factory=set)
    packed: Packed | None = None
    timings: Timings | None = None
    stored: list[_Stored] = field(default_factory=list)

    @property
    def doing(self) -> str:
        """What it does, in words."""
        return type_of(self.job).doing(self.job)


class RayExecutor:
    """Runs jobs on the nodes of a Ray cluster that have this machine's trtopt and TensorRT.

    Several threads may submit jobs at the same time.
    """

    has_many_hosts = True

    def __init__(
        self,
        builder: EngineBuilder,
        *,
        gpu_model: str | None = None,
        retries: int = 2,
        note: Callable[[str], None] = lambda text: None,
        work: Callable[..., tuple[bytes, dict[str, bytes]]] = run_parcel,
    ) -> None:
        """Look at the nodes of the cluster that this process is connected to; `work` is what a task runs."""
        self._ray = load_ray()
        home = self._ray.get_runtime_context().get_node_id()
        actor = self._ray.remote(Mailbox)  # Ray starts it again if its process is lost
        self.mailbox = actor.options(num_cpus=0, max_restarts=-1, label_selector={NODE_LABEL: home}).remote()
        self.nodes = Nodes(builder.backend, gpu_model, home, note)
        self.task = self._ray.remote(work)
        self.numbers = count(1)
        self.neighbours = Neighbours()
        self.retries, self.note = retries, note
        self.is_cancelled = threading.Event()
        self._builder, self._git_revision = builder, git_revision()
        self._here = identity_of(builder.backend, builder.device)
        self._stored: WeakValueDictionary[str, _Stored] = WeakValueDictionary()
        self._lock = threading.Lock()
        if builder.uses_timing_cache and (
            unlike := difference(self.nodes.identity, self._here, "this machine")
        ):
            note(f"Ray: timing caches are neither read nor saved: nodes have {unlike}")

    @property
    def at_once(self) -> int:
        """See `Executor.at_once`: a job per GPU, or per node where jobs need no GPU."""
        places = (int(node.offers.get("GPU", 0)) if self._gpus else 1 for node in self.nodes.alive)
        return max(1, sum(places))

    def cancel(self) -> None:
        """See `Executor.cancel`."""
        self.is_cancelled.set()

    def require_measuring(self) -> None:
        """See `Executor.require_measuring`."""
        self._check(Needs(self._gpus, is_alone=True))

    def run_all_jobs(
        self, jobs: Sequence[Job[JobResult]], *, limit_s: float | None = None, on_progress: OnProgress
    ) -> Generator[tuple[int, JobResult | TrtoptError]]:
        """See `Executor.run_all_jobs`.

        A job that is lost with its node or its Ray worker is tried again on another node.
        """
        self.nodes.ask_again()
        self.nodes.look()
        submissions = [
            _Submission(index, job, Needs(self._gpus, not shares_a_host(job)))
            for index, job in enumerate(jobs)
        ]
        for needs in {one.needs for one in submissions}:
            self._check(needs)
        return _Run(self, submissions, limit_s, on_progress).outcomes()

    def _check(self, needs: Needs) -> None:
        """Find out that no node of the fleet, present or gone, can run such jobs."""
        check_offers(self.nodes.fleet.nodes, needs, self.nodes.fleet.refused)

    @property
    def _gpus(self) -> int:
        """How many a job takes: none where the backend runs on the processor."""
        return int(self.nodes.identity.compute_capability is not None)

    def send(self, one: _Submission, to: Sequence[Node], limit_s: float | None) -> Any:
        """Send a job to one of `to`; returns Ray's reference to its result."""
        if one.packed is None:
            job, is_like_this_machine = one.job, self._here == self.nodes.identity
            if isinstance(job, BuildJob) and self._builder.uses_timing_cache and is_like_this_machine:
                one.timings = Timings(self._builder, job)
            one.packed = pack(
                job,
                limit_s=limit_s,
                hash_of=_hash_of,
                timings=one.timings.file if one.timings else None,
                has_timings=one.timings is not None,
            )
        one.number, one.node, one.at_work_since = next(self.numbers), None, None
        one.nodes = frozenset(node.id for node in to)
        one.stored = [self._store(sha256, file) for sha256, file in one.packed.files.items()]
        refs = dict(zip(one.packed.files, (stored.ref for stored in one.stored), strict=True))
        return self.task.options(
            num_cpus=one.needs.cpus,
            num_gpus=one.needs.gpus,
            resources={MEASURING: 1.0} if one.needs.is_alone else {},
            max_retries=0,
            label_selector={NODE_LABEL: f"in({','.join(sorted(one.nodes))})"},
        ).remote(one.packed.parcel, refs, self.mailbox, one.number, LOG.getEffectiveLevel())

    def _store(self, sha256: str, file: Path) -> _Stored:
        """Put a file into the object store, once however many jobs read it."""
        with self._lock:
            stored = self._stored.get(sha256)
            if stored is None:
                try:
                    stored = self._stored[sha256] = _Stored(self._ray.put(file.read_bytes()))
                except (self._ray.exceptions.ObjectStoreFullError, self._ray.exceptions.OutOfDiskError):
                    raise is_full(str(file)) from None
            return stored

    def receive(
        self, one: _Submission, reply: bytes, contents: dict[str, bytes], beside: tuple[str, ...]
    ) -> Any:
        """A submission's outcome, with what only the driver knows; its files are in the user's folder."""
        assert one.packed is not None
        arrived = unpack(one.job, one.packed, reply, contents)
        result, replace = arrived.outcome, msgspec.structs.replace
        if isinstance(result, EngineArtifact) and one.timings is not None:
            return one.timings.add(result, arrived.timings)
        if isinstance(result, Benched | InterleavedRun):
            known = {"node": arrived.node, "beside": beside, "git_revision": self._git_revision}
            return replace(result, environment=replace(result.environment, **known))
        return result


class _Run:
    """One call's jobs: those that wait, that are sent, and what is done about the lost."""

    def __init__(
        self,
        executor: RayExecutor,
        submissions: Iterable[_Submission],
        limit_s: float | None,
        on_progress: OnProgress,
    ) -> None:
        self._ray, self._executor, self._nodes = load_ray(), executor, executor.nodes
        self._limit_s, self._on_progress = limit_s, on_progress
        self._waiting = deque(submissions)
        self._sent: dict[Any, _Submission] = {}
        self._looked = time.monotonic()

    def outcomes(self) -> Generator[tuple[int, Any]]:
        """See `Executor.run_all_jobs`."""
        read = could_run = time.monotonic()
        try:
            while self._waiting or self._sent:
                if self._executor.is_cancelled.is_set():
                    raise CancelledError
                yield from self._send()
                done = finished(list(self._sent), REPORT_S, fetch_local=False)
                if not self._sent:
                    time.sleep(REPORT_S)
                if done or time.monotonic() - read >= REPORT_S:  # an ended job's reports go with it
                    self._read_reports(self._sent.values())
                    read = time.monotonic()
                for ref in done:
                    one = self._sent.pop(ref)
                    yield from self._settled(one, self._outcome(one, ref))
                for ref in self._silent():
                    one = self._sent.pop(ref)
                    self._executor.neighbours.ended(one.number)
                    self._ray.cancel(ref, force=True)
                    yield from self._settled(one, self._lost(one, "its node does not end it in time"))
                if time.monotonic() - self._looked >= _LOOK_S:
                    self._looked = time.monotonic()
                    self._nodes.look()
                    self._recall()
                if self._sent or (self._waiting and self._places(self._waiting[0])):
                    could_run = time.monotonic()
                elif time.monotonic() - could_run > _PATIENCE_S:
                    yield from self._give_up()
        finally:
            self._cancel()

    def _places(self, one: _Submission) -> list[Node]:
        """Where a job may run now."""
        return candidates(able(self._nodes.alive, one.needs), one.failed_on)

    def _send(self) -> Iterator[tuple[int, TrtoptError]]:
        """Send what waits; yields what cannot be sent."""
        while self._waiting and len(self._sent) < _IN_FLIGHT and (to := self._places(self._waiting[0])):
            one = self._waiting.popleft()
            try:
                self._sent[self._executor.send(one, to, self._limit_s)] = one
            except TrtoptError as error:
                yield one.index, error
            except OSError as error:
                problem = f"{error.filename}: cannot be sent: {error.strerror}"
                yield one.index, DeviceError(problem, "see that it can be read")

    def _read_reports(self, submissions: Iterable[_Submission]) -> None:
        """Take what submissions report. What an actor had is lost with it: it is progress, not results."""
        by_number = {one.number: one for one in submissions}
        reports: list[tuple[int, str, bytes]] = []
        with suppress(self._ray.exceptions.RayError):
            reports = self._ray.get(self._executor.mailbox.take.remote(list(by_number)), timeout=DELIVERY_S)
        for number, node, encoded in reports:
            one, message = by_number[number], msgspec.msgpack.decode(encoded, type=Message)
            if isinstance(message, Logged):
                _log(message, self._nodes.name_of(node))
                continue
            assert isinstance(message, Progress)
            one.node = node
            if message.phase == DONE:
                one.at_work_since = None
                self._executor.neighbours.finished(number)
                continue
            if message.phase != RECEIVING and one.at_work_since is None:
                one.at_work_since = time.monotonic()
            self._executor.neighbours.began(number, node, one.doing)
            self._on_progress(one.index, f"{message.phase} on {self._nodes.name_of(node)}", message.fraction)

    def _outcome(self, one: _Submission, ref: Any) -> Any:
        """What a finished task has come to; None: it was lost, and is to be tried again."""
        try:
            reply, contents = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            self._read_reports([one])
            self._executor.neighbours.ended(one.number)
            return self._lost(one, reason_of(error))
        beside = self._executor.neighbours.ended(one.number)
        try:
            return self._executor.receive(one, reply, contents, beside)
        except ArtifactError as error:  # on its way back
            return self._lost(one, error.problem)
        except TrtoptError as error:
            return error

    def _lost(self, one: _Submission, reason: str) -> TrtoptError | None:
        """A submission was lost; None: it is to be tried again."""
        if one.node is not None:
            one.failed_on.add(one.node)
            reason += f" (on {self._nodes.name_of(one.node)})"
        one.reasons.append(reason)
        error = exhausted(one.doing, one.reasons, self._executor.retries)
        if error is None:
            self._executor.note(f"{one.doing}: lost, and tried again: {reason}")
        return error

    def _settled(self, one: _Submission, outcome: Any) -> Iterator[tuple[int, Any]]:
        """Yield an outcome; what has none yet waits again."""
        if outcome is None:
            self._waiting.appendleft(one)
            self._looked = 0.0
        else:
            self._on_progress(one.index, DONE, 1.0)
            yield one.index, outcome

    def _silent(self) -> list[Any]:
        """What its node should have ended long ago, which it does when a job's time is up."""
        if self._limit_s is None:
            return []
        latest = time.monotonic() - self._limit_s - _PATIENCE_S
        return [ref for ref, one in self._sent.items() if (one.at_work_since or latest) < latest]

    def _recall(self) -> None:
        """Take back what waits for its turn where its nodes are gone, or others may have it too."""
        self._read_reports(self._sent.values())  # what has begun stays where it is
        recalled = [ref for ref, one in self._sent.items() if one.node is None and self._has_moved(one)]
        for ref in recalled:
            with suppress(self._ray.exceptions.RayError):
                self._ray.cancel(ref)
        self._waiting.extendleft(reversed([self._sent.pop(ref) for ref in recalled]))

    def _has_moved(self, one: _Submission) -> bool:
        """Whether a job has places that it had not when it was sent, or none any more of those."""
        places = {node.id for node in self._places(one)}
        return bool(places - one.nodes) or not one.nodes & places

    def _give_up(self) -> Iterator[tuple[int, TrtoptError]]:
        """All that can run nowhere any more."""
        while self._waiting:
            one = self._waiting.popleft()
            reasons = "; ".join(dict.fromkeys(one.reasons)) or "none took it"
            yield (
                one.index,
                DeviceError(
                    f"{one.doing}: no node is left that can run it: {reasons}",
                    "bring the nodes back and run the command again: what is done is kept",
                ),
            )

    def _cancel(self) -> None:
        """End what is sent, and have its nodes remove what it leaves in their temporary folders."""
        if not self._sent:
            return
        alive = {node.id for node in self._nodes.alive}
        nodes = alive & frozenset[str]().union(*(one.nodes for one in self._sent.values()))
        for one in self._sent.values():
            self._executor.neighbours.ended(one.number)
        with suppress(self._ray.exceptions.RayError):
            for ref in self._sent:
                self._ray.cancel(ref, force=True)
            self._wait(list(self._sent))
            clean = self._ray.remote(remove_leftovers)
            self._wait([on_node(clean, node).remote() for node in nodes])

    def _wait(self, refs: list[Any]) -> None:
        if refs:
            self._ray.wait(refs, num_returns=len(refs), timeout=_FAREWELL_S, fetch_local=False)


def _log(logged: Logged, node: str) -> None:
    """Log what a node has logged, at this machine's time: another one's clock may be off."""
    log_relayed(msgspec.structs.replace(logged, message=f"{node}: {logged.message}", at=time.time()), 0)
