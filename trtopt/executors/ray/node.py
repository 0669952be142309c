"""What runs on the nodes of a cluster: jobs in worker processes, what they report, and what cleans up."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import Any

import msgspec

from trtopt.executors.api import THIS_HOST
from trtopt.executors.ray.connection import is_full, load_ray
from trtopt.executors.transfer import carry_out, ending
from trtopt.files.atomic import scratch_folder
from trtopt.logs import relay
from trtopt.workers.jobs import IdentifyJob
from trtopt.workers.worker import Message, Progress

REPORT_S = 0.2
"""Progress is sent, and read, so often."""
RECEIVING = "receiving"
"""The phase in which a job's files arrive."""
DELIVERY_S = 60.0
_IDENTIFY_S = 60.0
_DYING_S = 0.5
"""So long a process that is being killed may still hold its folder."""

Report = tuple[int, str, bytes]
"""The number of a submission, the node that it is on, and a `Message`."""


class Mailbox:
    """An actor: it keeps reports until the driver takes them."""

    def __init__(self) -> None:
        self._reports: list[Report] = []

    def put(self, report: Report) -> None:
        """Add a report."""
        self._reports.append(report)

    def take(self, numbers: list[int]) -> list[Report]:
        """What has come of submissions since the last time."""
        wanted, reports = set(numbers), self._reports
        self._reports = [report for report in reports if report[0] not in wanted]
        return [report for report in reports if report[0] in wanted]


class Reporter:
    """Reports from a node about one submission."""

    def __init__(self, mailbox: Any, number: int) -> None:
        """Say that the submission has arrived: if it is lost from now on, the driver knows where."""
        self._ray, self._mailbox, self._number = load_ray(), mailbox, number
        self._node = self._ray.get_runtime_context().get_node_id()
        self._phase, self._sent = "", 0.0
        self.progress(0, RECEIVING, None)

    def progress(self, _index: int, phase: str, fraction: float | None) -> None:
        """Send progress, as `OnProgress` has it."""
        now = time.monotonic()
        if phase == self._phase and now - self._sent < REPORT_S:
            return
        self._phase, self._sent = phase, now
        sent = self.report(Progress(phase=phase, fraction=fraction))
        if phase == RECEIVING:
            with suppress(self._ray.exceptions.RayError):  # the job continues where the mailbox is lost
                self._ray.get(sent, timeout=DELIVERY_S)

    def report(self, message: Message) -> Any:
        """Send a message."""
        return self._mailbox.put.remote((self._number, self._node, msgspec.msgpack.encode(message)))


def run_parcel(
    parcel: bytes, files: dict[str, Any], mailbox: Any, number: int, level: int
) -> tuple[bytes, dict[str, bytes]]:
    """Run a job on this node; see `transfer.carry_out`. The log is reported from `level` on."""
    reporter = Reporter(mailbox, number)
    with relay(level, reporter.report):
        return carry_out(parcel, lambda sha256: _fetched(files[sha256]), reporter.progress)


def _fetched(ref: Any) -> bytes:
    ray = load_ray()
    try:
        content: bytes = ray.get(ref)
    except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError):
        raise is_full(f"a file of the job, on {socket.gethostname()}") from None
    return content


def identify(backend: str) -> bytes:
    """What this node is: an `Identity`, or why that cannot be found out, as a job ends."""
    job = IdentifyJob(backend=backend)
    ((_, outcome),) = THIS_HOST.run_all_jobs([job], limit_s=_IDENTIFY_S, on_progress=lambda *_: None)
    return msgspec.json.encode(ending(outcome))


def remove_leftovers() -> None:
    """Remove what jobs that were killed have left in this node's temporary folder."""
    time.sleep(_DYING_S)
    with scratch_folder():  # which does that first
        pass
