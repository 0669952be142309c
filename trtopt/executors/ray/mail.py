"""What running jobs report: from the nodes through a mailbox to the driver."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from trtopt.executors.ray.library import NODE_LABEL, load_ray
from trtopt.logs import Logged
from trtopt.workers.supervisor import DONE

MAIL_S = 0.2
"""Progress is sent, and read, so often."""
RECEIVING = "receiving"
"""The phase in which a job's files arrive."""
_DELIVERY_S = 60.0


class Message(NamedTuple):
    """What a submission reports: its phase, or what was logged, as JSON."""

    number: int
    node: str
    phase: str = ""
    fraction: float | None = None
    logged: bytes = b""


class Mailbox:
    """An actor: it keeps messages until the driver takes them."""

    def __init__(self) -> None:
        self._messages: list[Message] = []

    def put(self, message: Message) -> None:
        """Add a message."""
        self._messages.append(message)

    def take(self) -> list[Message]:
        """Everything since the last time."""
        taken, self._messages = self._messages, []
        return taken


class Sender:
    """Reports from a node about one submission."""

    def __init__(self, mailbox: Any, number: int) -> None:
        """Say that the submission has arrived: if it is lost from now on, the driver knows where."""
        self._ray, self._mailbox, self._number = load_ray(), mailbox, number
        self._node = self._ray.get_runtime_context().get_node_id()
        self._phase, self._sent = RECEIVING, 0.0
        self._deliver(self._phase, None)

    def report(self, _index: int, phase: str, fraction: float | None) -> None:
        """Send progress, as `OnProgress` has it."""
        now = time.monotonic()
        if phase == DONE:  # is there before the next job on this node can report that it has begun
            self._deliver(phase, fraction)
        elif phase != self._phase or now - self._sent >= MAIL_S:
            self._phase, self._sent = phase, now
            self._put(phase, fraction)

    def send(self, logged: Logged) -> None:
        """Send what was logged."""
        self._mailbox.put.remote(
            Message(self._number, self._node, logged=msgspec.json.encode(logged)),
        )

    def _deliver(self, phase: str, fraction: float | None) -> None:
        """Send, and wait until it is there; the job continues where the mailbox is lost."""
        with suppress(self._ray.exceptions.RayError):
            self._ray.get(self._put(phase, fraction), timeout=_DELIVERY_S)

    def _put(self, phase: str, fraction: float | None) -> Any:
        return self._mailbox.put.remote(Message(self._number, self._node, phase, fraction))


class Mail:
    """The driver's end: messages of each submission, for the thread that waits for it."""

    def __init__(self, home: str) -> None:
        """Start the mailbox on the node `home`; Ray starts it again if its process is lost."""
        self._ray = load_ray()
        actor = self._ray.remote(Mailbox)
        self.mailbox = actor.options(num_cpus=0, max_restarts=-1, label_selector={NODE_LABEL: home}).remote()
        self._inbox: dict[int, list[Message]] = {}
        self._lock = threading.Lock()

    def expect(self, number: int) -> None:
        """Keep what comes about a submission."""
        with self._lock:
            self._inbox[number] = []

    def forget(self, number: int) -> None:
        """Drop what comes about a submission."""
        with self._lock:
            self._inbox.pop(number, None)

    def about(self, numbers: Iterable[int]) -> list[Message]:
        """What has come about submissions that are expected."""
        with self._lock:
            # what an actor had is lost with it: it is progress, not results
            with suppress(self._ray.exceptions.RayError):
                for message in self._ray.get(self.mailbox.take.remote(), timeout=_DELIVERY_S):
                    self._inbox.get(message.number, []).append(message)
            found = [message for number in numbers for message in self._inbox[number]]
            for number in numbers:
                self._inbox[number] = []
            return found
