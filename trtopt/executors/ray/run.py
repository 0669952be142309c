"""One call's jobs, from their submission to their outcomes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

import msgspec

from trtopt.errors import ArtifactError, DeviceError, TrtoptError
from trtopt.executors.placement import Node, able, candidates, exhausted
from trtopt.executors.ray.cluster import Cluster
from trtopt.executors.ray.courier import Courier, Submission
from trtopt.executors.ray.library import load_ray, on_node, reason_of
from trtopt.executors.ray.mail import MAIL_S, RECEIVING
from trtopt.executors.ray.task import remove_leftovers
from trtopt.logs import Logged, log_relayed
from trtopt.workers.protocol import Result
from trtopt.workers.supervisor import DONE, OnProgress

_IN_FLIGHT = 256
"""So many tasks are submitted at a time: enough for Ray to place, few enough for the driver's memory."""
_LOOK_S = 2.0
_FAREWELL_S = 20.0
"""So long is waited for the end of what is cancelled, and then for the removal of its files."""
_PATIENCE_S = 60.0
"""So long jobs wait while no node can run them: a cluster may replace those that it has lost."""


class Run:
    """Submissions that wait, those that are sent, and what is done about those that are lost."""

    def __init__(
        self,
        cluster: Cluster,
        courier: Courier,
        submissions: Iterable[Submission],
        *,
        limit_s: float | None,
        retries: int,
        on_progress: OnProgress,
        note: Callable[[str], None],
    ) -> None:
        self._ray = load_ray()
        self._cluster, self._courier = cluster, courier
        self._limit_s, self._retries = limit_s, retries
        self._on_progress, self._note = on_progress, note
        self._waiting = deque(submissions)
        self._sent: dict[Any, Submission] = {}
        self._looked = time.monotonic()

    def outcomes(self, is_cancelled: threading.Event) -> Generator[tuple[int, Result | TrtoptError]]:
        """See `Executor.run_all_jobs`."""
        mailed = could_run = time.monotonic()
        try:
            while self._waiting or self._sent:
                if is_cancelled.is_set():
                    raise CancelledError
                yield from self._send()
                done = self._done()
                if time.monotonic() - mailed >= MAIL_S or any(self._sent[ref].needs.is_alone for ref in done):
                    self._read_mail(self._sent.values())
                    mailed = time.monotonic()
                for ref in done:
                    one = self._sent.pop(ref)
                    yield from self._settled(one, self._outcome(one, ref))
                for ref in self._silent():
                    one = self._sent.pop(ref)
                    self._left(one)
                    self._ray.cancel(ref, force=True)
                    yield from self._settled(one, self._lost(one, "its node does not end it in time"))
                if time.monotonic() - self._looked >= _LOOK_S:
                    self._looked = time.monotonic()
                    self._cluster.nodes.look()
                    self._recall()
                if self._sent or (self._waiting and self._places(self._waiting[0])):
                    could_run = time.monotonic()
                elif time.monotonic() - could_run > _PATIENCE_S:
                    yield from self._give_up()
        finally:
            self._cancel()

    def _places(self, one: Submission) -> list[Node]:
        """Where a job may run now."""
        return candidates(able(self._cluster.nodes.alive, one.needs), one.failed_on)

    def _send(self) -> Iterator[tuple[int, TrtoptError]]:
        """Send what waits; yields what cannot be sent."""
        while self._waiting and len(self._sent) < _IN_FLIGHT and (to := self._places(self._waiting[0])):
            one = self._waiting.popleft()
            try:
                self._sent[self._courier.send(one, to, self._limit_s)] = one
            except (TrtoptError, OSError) as error:
                yield one.index, _as_trtopt(error)

    def _done(self) -> list[Any]:
        """What has finished, or nothing after a while."""
        if not self._sent:
            time.sleep(MAIL_S)
            return []
        refs = list(self._sent)
        done, _ = self._ray.wait(refs, num_returns=1, timeout=MAIL_S, fetch_local=False)
        if done:
            done, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
        return list(done)

    def _read_mail(self, submissions: Iterable[Submission]) -> None:
        """Take what submissions report."""
        by_number = {one.number: one for one in submissions}
        neighbours, name_of = self._cluster.neighbours, self._cluster.nodes.name_of
        for message in self._cluster.mail.about(by_number):
            one = by_number[message.number]
            if message.logged:
                _log(msgspec.json.decode(message.logged, type=Logged), name_of(message.node))
                continue
            one.node = message.node
            if message.phase == DONE:
                one.at_work_since = None
                neighbours.finished(one.number)
                continue
            if message.phase != RECEIVING and one.at_work_since is None:
                one.at_work_since = time.monotonic()
            neighbours.began(one.number, message.node, one.doing)
            doing = f"{message.phase} on {name_of(message.node)}"
            self._on_progress(one.index, doing, message.fraction)

    def _left(self, one: Submission) -> tuple[str, ...]:
        """A submission is over; returns what else ran on its host meanwhile, in words."""
        self._cluster.mail.forget(one.number)
        return self._cluster.neighbours.ended(one.number)

    def _outcome(self, one: Submission, ref: Any) -> Result | TrtoptError | None:
        """What a finished task has come to; None: it was lost, and is to be tried again."""
        try:
            reply, contents = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            self._read_mail([one])
            self._left(one)
            return self._lost(one, reason_of(error))
        beside = self._left(one)
        try:
            return self._courier.received(one, reply, contents, beside)
        except ArtifactError as error:  # on its way back
            return self._lost(one, error.problem)
        except TrtoptError as error:
            return error

    def _lost(self, one: Submission, reason: str) -> TrtoptError | None:
        """A submission was lost; None: it is to be tried again."""
        if one.node is not None:
            one.failed_on.add(one.node)
            reason += f" (on {self._cluster.nodes.name_of(one.node)})"
        one.reasons.append(reason)
        error = exhausted(one.doing, one.reasons, self._retries)
        if error is None:
            self._note(f"{one.doing}: lost, and tried again: {reason}")
        return error

    def _settled(
        self, one: Submission, outcome: Result | TrtoptError | None
    ) -> Iterator[tuple[int, Result | TrtoptError]]:
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
        self._read_mail(self._sent.values())  # what has begun stays where it is
        recalled = [ref for ref, one in self._sent.items() if one.node is None and self._has_moved(one)]
        for ref in recalled:
            with suppress(self._ray.exceptions.RayError):
                self._ray.cancel(ref)
        submissions = [self._sent.pop(ref) for ref in recalled]
        for one in submissions:
            self._left(one)
        self._waiting.extendleft(reversed(submissions))

    def _has_moved(self, one: Submission) -> bool:
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
        alive = {node.id for node in self._cluster.nodes.alive}
        nodes = alive & frozenset[str]().union(*(one.nodes for one in self._sent.values()))
        for one in self._sent.values():
            self._left(one)
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


def _as_trtopt(error: TrtoptError | OSError) -> TrtoptError:
    if isinstance(error, TrtoptError):
        return error
    return DeviceError(f"{error.filename}: cannot be sent: {error.strerror}", "see that it can be read")
