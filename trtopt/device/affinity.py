"""Which of the host's cores this process's threads run on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from itertools import groupby

from trtopt.device.nvml import cores_near
from trtopt.errors import UsageError
from trtopt.records import DeviceInfo

AUTO = "auto"
_RANGE = re.compile(r"\s*(\d{1,5})\s*(?:-\s*(\d{1,5}))?\s*")


def parse_cores(text: str) -> frozenset[int]:
    """The cores that a list such as `0-3,8` names."""
    cores: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise UsageError(
                f"--cpu-affinity {text}: not a list of cores", "write auto, or a list like 0-3,8"
            )
        cores.update(range(first, last + 1))
    return frozenset(cores)


def listed(cores: Iterable[int]) -> str:
    """Cores as a list such as `0-3,8`."""
    parts = []
    for _, run in groupby(enumerate(sorted(cores)), lambda place: place[1] - place[0]):
        block = [core for _, core in run]
        parts.append(str(block[0]) if len(block) == 1 else f"{block[0]}-{block[-1]}")
    return ",".join(parts)


def present_cores() -> tuple[int, ...]:
    """The cores that the calling thread and those it starts may run on; empty if unknown."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def confine(requested: str, device: DeviceInfo) -> None:
    """Keep the calling thread, and the threads that it will start, on the cores that `requested` names.

    `auto` takes those near the device, as far as this process may use them.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise UsageError("--cpu-affinity: this system does not bind threads to cores", "omit the flag")
    before = os.sched_getaffinity(0)
    cores = _near(device) & before if requested == AUTO else parse_cores(requested)
    if not cores:
        raise UsageError(
            f"--cpu-affinity auto: this process may use cores {listed(before)}, none of them near the GPU",
            "name cores, as in --cpu-affinity 0-3, or omit the flag",
        )
    with suppress(OSError, OverflowError):  # none of them is there
        os.sched_setaffinity(0, cores)
    if os.sched_getaffinity(0) != cores:
        os.sched_setaffinity(0, before)
        raise UsageError(
            f"--cpu-affinity {requested}: this process may not use all of these cores",
            f"it may use cores {listed(before)}",
        )


def check_cores(requested: str, device: DeviceInfo) -> None:
    """Find out before the work whether `confine` will do: it is tried and taken back."""
    before = present_cores()
    confine(requested, device)
    os.sched_setaffinity(0, before)


def _near(device: DeviceInfo) -> frozenset[int]:
    if device.kind != "gpu":
        raise UsageError(
            f"--cpu-affinity auto: {device.name} is not a GPU, so no cores are near it",
            "name cores, as in --cpu-affinity 0-3",
        )
    cores = cores_near(device)
    if cores is None:
        raise UsageError(
            f"--cpu-affinity auto: NVML does not report which cores are near the {device.name}",
            "pip install nvidia-ml-py, or name cores, as in --cpu-affinity 0-3",
        )
    return cores
