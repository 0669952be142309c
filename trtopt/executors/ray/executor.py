"""The executor whose jobs are Ray tasks: sent, followed, tried again where they are lost, and taken back.

Ray places them by their resources and moves bytes. A task that is lost is tried again here and not by Ray:
where a node runs out of memory, Ray would do it without end, there again, and without a word.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from trtopt.builder.engine import BuildJob
from trtopt.builder.timing_cache import BuildCaches, identity_of
from trtopt.device.api import EngineBuilder
from trtopt.errors import ArtifactError, DeviceError, TrtoptError
from trtopt.executors.api import shares_a_host
from trtopt.executors.placement import Needs, Node, candidates, check_offers, difference, exhausted
from trtopt.executors.ray.connection import NODE_LABEL, finished, is_full, load_ray, on_node, reason_of
from trtopt.executors.ray.node import DELIVERY_S, RECEIVING, REPORT_S, Mailbox, remove_leftovers, run_parcel
from trtopt.executors.ray.nodes import Nodes
from trtopt.executors.transfer import pack, unpack
from trtopt.logs import LOG, Logged, log_relayed
from trtopt.processes import DONE, OnProgress
from trtopt.records import Job
from trtopt.records.base import JobResult
from trtopt.workers.jobs import git_revision, type_of
from trtopt.workers.worker import Message, Progress

_LOOK_S = 2.0
_FAREWELL_S = 20.0
"""So long is waited for the end of what is cancelled, and then for the removal of its files."""
_PATIENCE_S = 60.0
"""So long jobs wait while no node can run them: a cluster may replace those that it has lost."""


@dataclass(frozen=True, eq=False)
class _Stored:
    """A file in the object store; it leaves when nothing holds this any more."""

    sha256: str
    ref: Any


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
    parcel: bytes | None = None
    caches: BuildCaches | None = None
    """Those of a build whose timings count here."""
    stored: dict[str, _Stored] = field(default_factory=dict)
    """Its files, by their hashes."""

    @property
    def doing(self) -> str:
        """What it does, in words."""
        return type_of(self.job).doing(self.job)


class RayExecutor:
    """Runs jobs on the nodes of a Ray cluster that have this machine's trtopt and TensorRT.

    Several threads may submit jobs at the same time.
    """

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
        self.retries, self.note = retries, note
        self.is_cancelled = threading.Event()
        self._builder, self._git_revision = builder, git_revision()
        self._here = identity_of(builder.backend, builder.device)
        self._stored: WeakValueDictionary[tuple[Any, ...], _Stored] = WeakValueDictionary()
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
        """Find out that measurements can run, before anything is built for them; else what is missing."""
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
        if one.parcel is None:
            is_like_this_machine = self._here == self.nodes.identity
            if isinstance(one.job, BuildJob) and self._builder.uses_timing_cache and is_like_this_machine:
                one.caches = BuildCaches(self._builder, one.job.plan, one.job.timing_cache, one.job.store)
                one.caches.start()
            one.parcel = pack(
                one.job, limit_s=limit_s, hash_of=lambda file: self._store(file, one), caches=one.caches
            )
        one.number, one.node, one.at_work_since = next(self.numbers), None, None
        one.nodes = frozenset(node.id for node in to)
        refs = {stored.sha256: stored.ref for stored in one.stored.values()}
        resources = one.needs.resources
        return self.task.options(
            num_cpus=resources.pop("CPU"),
            num_gpus=resources.pop("GPU"),
            resources=resources,
            max_retries=0,
            label_selector={NODE_LABEL: f"in({','.join(sorted(one.nodes))})"},
        ).remote(one.parcel, refs, self.mailbox, one.number, LOG.getEffectiveLevel())

    def _store(self, file: Path, by: _Submission) -> str:
        """Put a file that a job reads into the object store, once however many do; returns its hash."""
        status = file.stat()
        version = (str(file), status.st_ino, status.st_size, status.st_mtime_ns)
        with self._lock:
            stored = self._stored.get(version)
            if stored is None:
                content = file.read_bytes()
                try:
                    stored = _Stored(sha256(content).hexdigest(), self._ray.put(content))
                except (self._ray.exceptions.ObjectStoreFullError, self._ray.exceptions.OutOfDiskError):
                    raise is_full(str(file)) from None
                self._stored[version] = stored
        by.stored[stored.sha256] = stored
        return stored.sha256

    def receive(self, one: _Submission, reply: bytes, contents: dict[str, bytes]) -> Any:
        """A submission's outcome; its files are in the user's folder."""
        return unpack(one.job, reply, contents, caches=one.caches, git_revision=self._git_revision)


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
                ended = {ref: self._sent.pop(ref) for ref in done}
                yield from self._send()  # nodes are at work again while what has ended is read
                if ended or time.monotonic() - read >= REPORT_S:  # an ended job's reports go with it
                    self._read_reports([*self._sent.values(), *ended.values()])
                    read = time.monotonic()
                for ref, one in ended.items():
                    yield from self._settled(one, self._outcome(one, ref))
                for ref, why in self._stuck():
                    one = self._sent.pop(ref)
                    self._ray.cancel(ref, force=True)
                    yield from self._settled(one, self._lost(one, why))
                if time.monotonic() - self._looked >= _LOOK_S:
                    self._looked = time.monotonic()
                    self._nodes.look()
                if self._sent or (self._waiting and self._places(self._waiting[0])):
                    could_run = time.monotonic()
                elif time.monotonic() - could_run > _PATIENCE_S:
                    yield from self._give_up()
        finally:
            self._cancel()

    def _places(self, one: _Submission) -> list[Node]:
        """Where a job may run now."""
        return candidates(self._nodes.alive, one.needs, one.failed_on)

    def _send(self) -> Iterator[tuple[int, TrtoptError]]:
        """Send as many as there is room for, so that a later node gets the others; yields what cannot be."""
        while self._waiting:
            one = self._waiting[0]
            to = self._places(one)
            if len(self._sent) >= sum(map(one.needs.room_on, to)):
                return
            self._waiting.popleft()
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
                text = f"{self._nodes.name_of(node)}: {message.message}"
                # at this machine's time: another one's clock may be off
                log_relayed(msgspec.structs.replace(message, message=text, at=time.time()), 0)
                continue
            assert isinstance(message, Progress)
            one.node = node
            if message.phase == DONE:
                one.at_work_since = None
                continue
            if message.phase != RECEIVING and one.at_work_since is None:
                one.at_work_since = time.monotonic()
            self._on_progress(one.index, f"{message.phase} on {self._nodes.name_of(node)}", message.fraction)

    def _outcome(self, one: _Submission, ref: Any) -> Any:
        """What a finished task has come to; None: it was lost, and is to be tried again."""
        try:
            reply, contents = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            self._read_reports([one])
            return self._lost(one, reason_of(error))
        try:
            return self._executor.receive(one, reply, contents)
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

    def _stuck(self) -> list[tuple[Any, str]]:
        """What will not end by itself, and why: a node ends a job whose time is up."""
        alive = {node.id for node in self._nodes.alive}
        latest = -math.inf if self._limit_s is None else time.monotonic() - self._limit_s - _PATIENCE_S
        overdue = [ref for ref, one in self._sent.items() if (one.at_work_since or latest) < latest]
        gone = [ref for ref, one in self._sent.items() if one.node is None and not one.nodes & alive]
        return [(ref, "its node does not end it in time") for ref in overdue] + [
            (ref, "the nodes that it waited for are gone") for ref in gone
        ]

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
        with suppress(self._ray.exceptions.RayError):
            for ref in self._sent:
                self._ray.cancel(ref, force=True)
            self._wait(list(self._sent))
            clean = self._ray.remote(remove_leftovers)
            self._wait([on_node(clean, node).remote() for node in nodes])

    def _wait(self, refs: list[Any]) -> None:
        if refs:
            self._ray.wait(refs, num_returns=len(refs), timeout=_FAREWELL_S, fetch_local=False)
