"""Jobs as Ray tasks: the only importer of Ray.

A task is a job's record and the hashes of its files (`transfer`); files travel through Ray's object store. On
its node the task runs the job in a worker process, as the local executor does. Ray places tasks and moves
bytes. What is done about a task that is lost is decided here, so that it is bounded and has a reason.
"""

from __future__ import annotations

import logging
import os
import pkgutil
import secrets
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from trtopt.builder.engine import BuildJob
from trtopt.device.building import EngineBuilder
from trtopt.errors import BackendMissingError, DeviceError, TrtoptError
from trtopt.executors.api import shares_a_host
from trtopt.executors.placement import (
    KILLED_FOR_MEMORY,
    MEASURING,
    Fleet,
    Needs,
    Neighbours,
    Node,
    able,
    candidates,
    check_offers,
    exhausted,
    fleet_of,
)
from trtopt.executors.timings import Timings
from trtopt.executors.transfer import Arrived, Packed, carry_out, pack, unpack
from trtopt.extras import install
from trtopt.files.bounded_reading import sha256_of
from trtopt.logs import LOG, Logged, log_relayed, relaying
from trtopt.records import Identity
from trtopt.version import __version__
from trtopt.workers.jobs import Job, type_of
from trtopt.workers.protocol import Benched, Built, Identified, IdentifyJob, Interleaved, Result
from trtopt.workers.supervisor import DONE, OnProgress

_IN_FLIGHT = 256
"""So many tasks are submitted at a time: enough for Ray to place, few enough for the driver's memory."""
_MAIL_S = 0.2
_LOOK_S = 2.0
_PATIENCE_S = 60.0
"""So long jobs wait while no node can run them: a cluster may replace those that it has lost."""
_ANSWER_S = 10.0
_LOOK = "see `ray status`, and the node's logs"
_NODE = "ray.io/node-id"
_SHOW_GPUS = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}}
"""Some versions of Ray hide GPUs from tasks that take none."""

Message = tuple[int, int, str, str, float | None, bytes]
"""Number of the submission, its job's index, node, phase, fraction; or what was logged, as JSON."""


def _ray() -> Any:
    """Ray itself.

    Raises:
        BackendMissingError: it is not installed.
    """
    try:
        import ray
    except ImportError:
        raise BackendMissingError("Ray is not installed", install("ray")) from None
    return ray


# ── on the nodes ────────────────────────────────────────────────────────────────────────────────────────


class Mailbox:
    """An actor: what running jobs report, until the driver takes it."""

    def __init__(self) -> None:
        self._messages: list[Message] = []

    def put(self, message: Message) -> None:
        """Add a message."""
        self._messages.append(message)

    def take(self) -> list[Message]:
        """Everything since the last time."""
        taken, self._messages = self._messages, []
        return taken


def run_parcel(
    parcel: bytes, files: dict[str, Any], mailbox: Any, number: int, index: int, level: int
) -> tuple[bytes, dict[str, bytes]]:
    """The task: run a job on this node; see `transfer.carry_out`. The log is mailed from `level` on."""
    ray = _ray()
    node = ray.get_runtime_context().get_node_id()
    last: list[Any] = [None, 0.0]
    ray.get(mailbox.put.remote((number, index, node, "receiving", None, b"")))  # if it is lost: where

    def report(_: int, phase: str, fraction: float | None) -> None:
        now = time.monotonic()
        if phase == DONE:  # is there before the next job on this node can report that it has begun
            with suppress(ray.exceptions.RayError):
                ray.get(mailbox.put.remote((number, index, node, phase, fraction, b"")))
        elif phase != last[0] or now - last[1] >= _MAIL_S:
            last[:] = phase, now
            mailbox.put.remote((number, index, node, phase, fraction, b""))

    def send(logged: Logged) -> None:
        mailbox.put.remote((number, index, node, "", None, msgspec.json.encode(logged)))

    def fetch(sha256: str) -> bytes:
        try:
            content: bytes = ray.get(files[sha256])
        except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError):
            raise _is_full(f"a file of the job, on {socket.gethostname()}") from None
        return content

    with relaying(level, send):
        return carry_out(parcel, fetch, report)


def _is_full(what: str) -> DeviceError:
    return DeviceError(
        f"{what}: does not fit into Ray's object store, and the disk that it would be moved to is full",
        "free space on the disk of /tmp/ray there, or start the node with a larger object store",
    )


# ── in the driver ───────────────────────────────────────────────────────────────────────────────────────


class _Stored:
    """A file in the object store; it leaves when no job in flight needs it."""

    def __init__(self, ref: Any) -> None:
        self.ref = ref


@dataclass
class _Task:
    """A job, from its first submission to its outcome."""

    index: int
    job: Job
    needs: Needs
    timings: Timings | None = None
    packed: Packed = field(default_factory=Packed)
    stored: list[_Stored] = field(default_factory=list)
    number: int = 0
    nodes: frozenset[str] = frozenset()
    """Where it may run, this time."""
    node: str | None = None
    """Where it runs."""
    reasons: list[str] = field(default_factory=list)
    failed_on: set[str] = field(default_factory=set)

    @property
    def doing(self) -> str:
        """What it does, in words."""
        return type_of(self.job).doing(self.job)


class RayExecutor:
    """Runs jobs on the nodes of a Ray cluster that have this machine's trtopt and TensorRT.

    Several threads may submit jobs at the same time. `work` is what a task runs.
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
        """Look at the nodes of the cluster that this process is connected to.

        Raises:
            DeviceError: not one node can take part; says what each lacks.
        """
        self._ray = _ray()
        self._builder, self._gpu_model, self._retries, self._note = builder, gpu_model, retries, note
        self._task = self._ray.remote(work)
        self._hashes: dict[tuple[str, int, int, int], str] = {}
        self._stored: WeakValueDictionary[str, _Stored] = WeakValueDictionary()
        self._home = self._ray.get_runtime_context().get_node_id()
        self._mailbox = (
            self._ray.remote(Mailbox).options(num_cpus=0, label_selector={_NODE: self._home}).remote()
        )
        self._surveyed: dict[str, tuple[Node, Identity | str]] = {}
        self._unheard: set[str] = set()
        self._fleet = Fleet((), None, {})
        self._alive: tuple[Node, ...] = ()
        self._numbers = count(1)
        self._inbox: dict[int, list[Message]] = {}
        self._neighbours = Neighbours()
        self._lock = threading.RLock()
        self._is_cancelled = threading.Event()
        self._look()
        if not self._alive:
            lacks = "; ".join(f"{name}: {why}" for name, why in self._fleet.refused.items())
            raise DeviceError(
                f"no node of the Ray cluster can take part: {lacks}",
                "install the same trtopt and TensorRT on all nodes, on one GPU model: see --gpu-model",
            )
        assert self._fleet.identity is not None
        where = f"{len(self._alive)} nodes" if len(self._alive) > 1 else "1 node"
        note(f"Ray: jobs run on {where}, GPU model {self._fleet.identity.gpu}")

    # ── the cluster ─────────────────────────────────────────────────────────────────────────────────────

    def _look(self) -> None:
        """Find out which nodes are there, and what new ones are."""
        with self._lock:
            self._look_alone()

    def _look_alone(self) -> None:
        present = {
            one["NodeID"]: Node(one["NodeID"], one["NodeManagerHostname"], one["Resources"])
            for one in self._ray.nodes()
            if one["Alive"]
        }
        new = sorted((node for node in present.values() if node.id not in self._surveyed), key=self._order)
        if new:
            self._surveyed |= self._survey(new)
            before = set(self._fleet.refused.items())
            self._fleet = fleet_of(
                list(self._surveyed.values()), self._builder.backend, self._gpu_model, self._fleet.identity
            )
            for name, why in self._fleet.refused.items():
                if (name, why) not in before:
                    self._note(f"Ray: node {name} does not take part: {why}")
        self._alive = tuple(node for node in self._fleet.nodes if node.id in present)

    def _order(self, node: Node) -> tuple[bool, str]:
        return node.id != self._home, node.id

    def _survey(self, nodes: Sequence[Node]) -> dict[str, tuple[Node, Identity | str]]:
        """What each node is, or why that cannot be found out; found out in a worker process there.

        Versions come first, found by Python alone: another trtopt may take another task. A node whose Ray
        worker was lost meanwhile is asked again by the next jobs.
        """
        tell = self._ray.remote(pkgutil.resolve_name)
        versions = self._answers(
            {node.id: self._glimpse(tell, node).remote("trtopt.version:__version__") for node in nodes}
        )
        alike = [node for node in nodes if versions[node.id] == __version__]
        packed = pack(
            IdentifyJob(backend=self._builder.backend.name), limit_s=_PATIENCE_S, hash_of=self._hash_of
        )
        mail = (self._mailbox, 0, 0, logging.ERROR)
        task = self._ray.remote(run_parcel)
        answers = self._answers(
            {node.id: self._glimpse(task, node).remote(packed.parcel, {}, *mail) for node in alike}
        )
        found: dict[str, tuple[Node, Identity | str]] = {}
        for node in nodes:
            answer: object = answers.get(node.id, versions[node.id])
            if isinstance(answer, str):
                answer = DeviceError(f"has trtopt {answer}, this machine has trtopt {__version__}", _LOOK)
            elif isinstance(answer, tuple):
                answer = unpack(packed, *answer).outcome
            if isinstance(answer, Identified):
                found[node.id] = node, answer.identity
            else:
                found[node.id] = node, getattr(answer, "problem", "unknown")
        return found

    def _glimpse(self, task: Any, node: Node) -> Any:
        """A task on this very node, whatever else runs there."""
        shown = _SHOW_GPUS if node.offers.get("GPU") else None
        return task.options(num_cpus=0, max_retries=0, label_selector={_NODE: node.id}, runtime_env=shown)

    def _answers(self, refs: Mapping[str, Any]) -> dict[str, Any]:
        """What nodes have answered, or the error, by their ids; all are waited for together."""
        found: dict[str, Any] = {}
        if refs:
            self._ray.wait(list(refs.values()), num_returns=len(refs), timeout=2 * _PATIENCE_S)
        for node, ref in refs.items():
            try:
                found[node] = self._ray.get(ref, timeout=1)
            except self._ray.exceptions.GetTimeoutError:
                found[node] = DeviceError(f"does not answer within {2 * _PATIENCE_S:g} s", _LOOK)
            except self._ray.exceptions.RayError as error:
                found[node] = DeviceError(reason_of_loss(error), _LOOK)
                if not isinstance(error, self._ray.exceptions.RayTaskError):
                    self._unheard.add(node)
        return found

    @property
    def at_once(self) -> int:
        """See `Executor.at_once`: a job per GPU, or per node where jobs need no GPU."""
        places = (int(node.offers.get("GPU", 0)) if self._gpus else 1 for node in self._alive)
        return max(1, sum(places))

    def cancel(self) -> None:
        """See `Executor.cancel`."""
        self._is_cancelled.set()

    def require_measuring(self) -> None:
        """See `Executor.require_measuring`."""
        check_offers(self._alive, Needs(self._gpus, is_alone=True), self._fleet.refused)

    @property
    def _gpus(self) -> int:
        """How many a job takes: none where the backend runs on the processor."""
        return int(self._fleet.identity is not None and self._fleet.identity.compute_capability is not None)

    # ── jobs ────────────────────────────────────────────────────────────────────────────────────────────

    def run_all_jobs(
        self, jobs: Sequence[Job], *, limit_s: float | None = None, on_progress: OnProgress
    ) -> Generator[tuple[int, Result | TrtoptError]]:
        """See `Executor.run_all_jobs`.

        A job that is lost with its node or its Ray worker is tried again on another node.

        Raises:
            DeviceError: no node offers what a job needs.
        """
        with self._lock:
            for unheard in self._unheard:
                self._surveyed.pop(unheard, None)
            self._unheard.clear()
            self._look()
        waiting: deque[_Task] = deque()
        for index, job in enumerate(jobs):
            waiting.append(_Task(index, job, Needs(self._gpus, not shares_a_host(job))))
        for needs in {task.needs for task in waiting}:
            check_offers(self._alive, needs, self._fleet.refused)
        return self._run(waiting, limit_s, on_progress)

    def _run(
        self, waiting: deque[_Task], limit_s: float | None, on_progress: OnProgress
    ) -> Generator[tuple[int, Result | TrtoptError]]:
        sent: dict[Any, _Task] = {}
        mailed = looked = could_run = time.monotonic()
        try:
            while waiting or sent:
                if self._is_cancelled.is_set():
                    raise CancelledError
                while waiting and len(sent) < _IN_FLIGHT and self._can_run(waiting[0]):
                    task = waiting.popleft()
                    try:
                        sent[self._submit(task, limit_s)] = task
                    except (TrtoptError, OSError) as error:
                        yield task.index, _as_trtopt(error)
                done = self._done(sent)
                if time.monotonic() - mailed >= _MAIL_S or any(sent[ref].needs.is_alone for ref in done):
                    self._read_mail({task.number: task for task in sent.values()}, on_progress)
                    mailed = time.monotonic()
                for ref in done:
                    task = sent.pop(ref)
                    outcome = self._outcome(task, ref, on_progress)
                    if outcome is None:
                        waiting.appendleft(task)
                        looked = 0.0
                    else:
                        on_progress(task.index, DONE, 1.0)
                        yield task.index, outcome
                if time.monotonic() - looked >= _LOOK_S:
                    looked = time.monotonic()
                    self._look()
                    waiting.extendleft(self._recalled(sent))
                if sent or (waiting and self._can_run(waiting[0])):
                    could_run = time.monotonic()
                elif time.monotonic() - could_run > _PATIENCE_S:
                    yield from self._give_up(waiting)
        finally:
            for ref, task in sent.items():
                self._left(task)
                with suppress(self._ray.exceptions.RayError):
                    self._ray.cancel(ref, force=True)

    def _can_run(self, task: _Task) -> bool:
        return bool(able(self._alive, task.needs))

    def _submit(self, task: _Task, limit_s: float | None) -> Any:
        """Send a job on its way; returns Ray's reference to its result."""
        if not task.packed.parcel:
            self._pack(task, limit_s)
        nodes = candidates(able(self._alive, task.needs), task.failed_on)
        task.number, task.node = next(self._numbers), None
        self._inbox[task.number] = []
        task.nodes = frozenset(node.id for node in nodes)
        task.stored = [self._store(sha256, file) for sha256, file in task.packed.files.items()]
        refs = dict(zip(task.packed.files, (one.ref for one in task.stored), strict=True))
        alone = {MEASURING: 1.0} if task.needs.is_alone else {}
        return self._task.options(
            num_cpus=task.needs.cpus,
            num_gpus=task.needs.gpus,
            resources=alone,
            max_retries=0,
            label_selector={_NODE: f"in({','.join(sorted(task.nodes))})"},
        ).remote(task.packed.parcel, refs, self._mailbox, task.number, task.index, LOG.getEffectiveLevel())

    def _pack(self, task: _Task, limit_s: float | None) -> None:
        job = task.job
        if isinstance(job, BuildJob) and self._builder.uses_timing_cache and self._is_like_this_machine():
            task.timings = Timings(self._builder, job)
        task.packed = pack(
            job,
            limit_s=limit_s,
            hash_of=self._hash_of,
            timings=task.timings.file if task.timings else None,
            has_timings=task.timings is not None,
        )

    def _is_like_this_machine(self) -> bool:
        """Whether this machine's timings are of use to the nodes."""
        device, there = self._builder.device, self._fleet.identity
        return there is not None and (device.name, device.driver, device.cuda) == (
            there.gpu,
            there.driver,
            there.cuda,
        )

    def _store(self, sha256: str, file: Path) -> _Stored:
        with self._lock:
            stored = self._stored.get(sha256)
            if stored is None:
                stored = self._stored[sha256] = _Stored(self._put(file))
            return stored

    def _put(self, file: Path) -> Any:
        try:
            return self._ray.put(file.read_bytes())
        except (self._ray.exceptions.ObjectStoreFullError, self._ray.exceptions.OutOfDiskError):
            raise _is_full(str(file)) from None

    def _hash_of(self, path: Path) -> str:
        status = path.stat()
        stamp = (str(path), status.st_ino, status.st_size, status.st_mtime_ns)
        if stamp not in self._hashes:
            self._hashes[stamp] = sha256_of(path)
        return self._hashes[stamp]

    def _done(self, sent: Mapping[Any, _Task]) -> list[Any]:
        """What has finished, or nothing after a while."""
        if not sent:
            time.sleep(_MAIL_S)
            return []
        refs = list(sent)
        done, _ = self._ray.wait(refs, num_returns=1, timeout=_MAIL_S, fetch_local=False)
        if done:
            done, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
        return list(done)

    def _read_mail(self, sent: Mapping[int, _Task], on_progress: OnProgress) -> None:
        names = {node.id: node.name for node in self._alive}
        for number, index, node, phase, fraction, logged in self._messages(sent):
            if logged:
                _log(msgspec.json.decode(logged, type=Logged), names.get(node, node))
                continue
            sent[number].node = node
            with self._lock:
                if phase == DONE:
                    self._neighbours.finished(number)
                    continue
                self._neighbours.began(number, node, sent[number].doing)
            on_progress(index, f"{phase} on {names.get(node, node)}", fraction)

    def _messages(self, numbers: Iterable[int]) -> list[Message]:
        """What has come about these submissions; that about other threads' waits for them."""
        with self._lock:
            # progress is lost with its actor; results are not
            with suppress(self._ray.exceptions.RayError):
                for message in self._ray.get(self._mailbox.take.remote(), timeout=_PATIENCE_S):
                    self._inbox.get(message[0], []).append(message)
            found = [message for number in numbers for message in self._inbox[number]]
            for number in numbers:
                self._inbox[number] = []
            return found

    def _left(self, task: _Task) -> tuple[str, ...]:
        """A submission is over; returns what else ran on its host meanwhile, in words."""
        with self._lock:
            self._inbox.pop(task.number, None)
            return self._neighbours.ended(task.number)

    def _outcome(self, task: _Task, ref: Any, on_progress: OnProgress) -> Result | TrtoptError | None:
        """What a finished task has come to; None: it was lost, and is to be tried again."""
        try:
            reply, contents = self._ray.get(ref)
            return self._accepted(task, unpack(task.packed, reply, contents), self._left(task))
        except self._ray.exceptions.RayError as error:
            self._read_mail({task.number: task}, on_progress)
            self._left(task)
            reason = reason_of_loss(error)
            if task.node is not None:
                task.failed_on.add(task.node)
                reason += f" (on {self._surveyed[task.node][0].name})"
            task.reasons.append(reason)
            lost = exhausted(task.doing, task.reasons, self._retries)
            if lost is None:
                self._note(f"{task.doing}: lost, and tried again: {task.reasons[-1]}")
            return lost
        except TrtoptError as error:
            return error

    def _accepted(self, task: _Task, arrived: Arrived, beside: tuple[str, ...]) -> Result | TrtoptError:
        """The result with what only the driver knows."""
        result, replace = arrived.outcome, msgspec.structs.replace
        if isinstance(result, Built) and task.timings is not None:
            return Built(engine=task.timings.add(result.engine, arrived.timings))
        if isinstance(result, Benched):
            return replace(result, environment=replace(result.environment, node=arrived.node, beside=beside))
        if isinstance(result, Interleaved):
            environment = replace(result.run.environment, node=arrived.node, beside=beside)
            return Interleaved(run=replace(result.run, environment=environment))
        return result

    def _recalled(self, sent: dict[Any, _Task]) -> list[_Task]:
        """Tasks that wait for nodes that are gone: cancelled, to be submitted again."""
        alive = {node.id for node in self._alive}
        stranded = [ref for ref, task in sent.items() if task.node is None and not task.nodes & alive]
        for ref in stranded:
            with suppress(self._ray.exceptions.RayError):
                self._ray.cancel(ref)
        recalled = [sent.pop(ref) for ref in stranded]
        for task in recalled:
            self._left(task)
        return recalled

    def _give_up(self, waiting: deque[_Task]) -> Iterator[tuple[int, TrtoptError]]:
        """All that can run nowhere any more."""
        while waiting:
            task = waiting.popleft()
            reasons = "; ".join(dict.fromkeys(task.reasons)) or "none took it"
            yield (
                task.index,
                DeviceError(
                    f"{task.doing}: no node is left that can run it: {reasons}",
                    "bring the nodes back and run the command again: what is done is kept",
                ),
            )


def reason_of_loss(error: BaseException) -> str:
    """What Ray says of a lost task, in one line, without its tracebacks."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        error = cause
    if isinstance(error, TrtoptError):
        return error.problem
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    sentence = first.split(". ")[0].rstrip(".")
    if isinstance(error, _ray().exceptions.OutOfMemoryError):
        return f"{KILLED_FOR_MEMORY}: {sentence}"
    return f"{type(error).__name__}: {sentence}" if sentence else type(error).__name__


def _log(logged: Logged, node: str) -> None:
    """Log what a node has logged, at this machine's time: another one's clock may be off."""
    log_relayed(msgspec.structs.replace(logged, message=f"{node}: {logged.message}", at=time.time()), 0)


def _as_trtopt(error: TrtoptError | OSError) -> TrtoptError:
    if isinstance(error, TrtoptError):
        return error
    return DeviceError(f"{error.filename}: cannot be sent: {error.strerror}", "see that it can be read")


# ── connecting ──────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Make this process a cluster's driver: of the one at `address` or RAY_ADDRESS, or of a new one here.

    Raises:
        BackendMissingError: Ray is not installed.
        DeviceError: there is no cluster at that address, or it refuses this process.
    """
    there = address if address.startswith("ray://") else os.environ.get("RAY_ADDRESS")
    if not there:
        _prepare_own_cluster()
    ray = _ray()
    if ray.is_initialized():  # by the workflow that this one is a part of, or by the user
        yield
        return
    try:
        try:
            options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
            if not there:
                options |= {"include_dashboard": False, "resources": {MEASURING: 1}}
            if not (there and there.startswith("ray://")):  # there the driver's folders are the cluster's
                options["job_config"] = _without_current_folder(ray.job_config.JobConfig())
            _reach(there)
            ray.init(address=there or "local", **options)
        except (ray.exceptions.RayError, ConnectionError, ValueError, RuntimeError, OSError) as error:
            raise DeviceError(
                f"no connection to the Ray cluster at {there or 'this host'}: {reason_of_loss(error)}",
                "check the address with `ray status`; where the cluster has a token, give it in "
                "RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, with RAY_AUTH_MODE=token",
            ) from None
        yield
    finally:
        ray.shutdown()


def _reach(address: str | None) -> None:
    """Find out whether anything listens there: Ray itself would try for more than a minute.

    Raises:
        OSError: nothing does.
    """
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()


class _NoFolders(list[str]):
    """What Ray would extend by folders of this process."""

    def extend(self, _folders: Iterable[str]) -> None:
        """Leave it unchanged."""


def _without_current_folder(config: Any) -> Any:
    """Keep Ray from having its workers import from the folders that this process was started in."""
    config._py_driver_sys_path = _NoFolders()
    return config


def _prepare_own_cluster() -> None:
    """Have a cluster that this process starts report to no one, and refuse drivers without its token.

    Ray reads the token when it is imported, and keeps it. Versions before 2.52 ignore it.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if "RAY_AUTH_MODE" not in os.environ and "ray" not in sys.modules:
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))


def offer_of(address: str) -> str:
    """What the cluster at an address offers, in one line.

    Raises:
        BackendMissingError, DeviceError: see `connected`.
    """
    with connected(address):
        ray = _ray()
        nodes: Iterable[Mapping[str, Any]] = [one for one in ray.nodes() if one["Alive"]]
        offers = [one["Resources"] for one in nodes]
        total = {name: sum(offer.get(name, 0) for offer in offers) for name in ("CPU", "GPU")}
        measuring = sum(offer.get(MEASURING, 0) == 1 for offer in offers)
        return (
            f"Ray {ray.__version__}: {len(offers)} nodes with {total['CPU']:g} CPUs and "
            f"{total['GPU']:g} GPUs; {measuring} of them can measure"
        )
