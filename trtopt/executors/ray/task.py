"""What runs on nodes: the task, which runs a job in a worker process of its node, and what cleans up."""

from __future__ import annotations

import time
from typing import Any

from trtopt.executors.ray.mail import Sender
from trtopt.executors.ray.object_store import fetched
from trtopt.executors.transfer import carry_out
from trtopt.files.atomic import scratch_folder
from trtopt.logs import relaying

_DYING_S = 0.5
"""So long a process that is being killed may still hold its folder."""


def run_parcel(
    parcel: bytes, files: dict[str, Any], mailbox: Any, number: int, level: int
) -> tuple[bytes, dict[str, bytes]]:
    """Run a job on this node; see `transfer.carry_out`. The log is mailed from `level` on."""
    sender = Sender(mailbox, number)
    with relaying(level, sender.send):
        return carry_out(parcel, lambda sha256: fetched(files[sha256]), sender.report)


def remove_leftovers() -> None:
    """Remove what jobs that were killed have left in this node's temporary folder."""
    time.sleep(_DYING_S)
    with scratch_folder():  # which does that first
        pass
