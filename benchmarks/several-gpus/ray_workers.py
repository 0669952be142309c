"""The Ray workers that build or measure for this process, and the end of one of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_FORK_SERVER, _RAY_WORKER = "trtopt.processes.fork_server", "ray::"


@dataclass(frozen=True)
class Process:
    """One of this host: its parent, when it began, and its command line."""

    parent: int
    began: int
    command: str


def kill_a_ray_worker() -> int | None:
    """Kill the one with the oldest job; returns the number of the job's own process, if there was one."""
    found = _processes()
    at_work = [
        job
        for job, process in found.items()
        if process.parent in found
        and _FORK_SERVER in found[process.parent].command
        and found[process.parent].parent in found
        and found[found[process.parent].parent].command.startswith(_RAY_WORKER)
        and os.getpid() in _ancestors(job, found)
    ]
    if not at_work:
        return None
    oldest = min(at_work, key=lambda job: found[job].began)
    os.kill(found[found[oldest].parent].parent, signal.SIGKILL)
    return oldest


def _processes() -> dict[int, Process]:
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended
            continue
        found[int(place.name)] = Process(int(fields[1]), int(fields[19]), command)
    return found


def _ancestors(process: int, found: Mapping[int, Process]) -> Iterator[int]:
    while process in found:
        process = found[process].parent
        yield process
