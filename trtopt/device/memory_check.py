"""Whether a device's memory will do: what cannot fit is refused, what may not is warned of."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from trtopt.device.api import Room
from trtopt.errors import DeviceMemoryError

_log = logging.getLogger(__name__)
_SHOWN_HOLDERS = 3


def require(what: str, parts: Mapping[str, int], room: Room | None, remedy: str) -> None:
    """Refuse `what` if the `parts`, bytes by name that it needs at least, are more than is free.

    Raises:
        DeviceMemoryError: they are; says what is needed, what is free, who has the rest, and `remedy`.
    """
    if told := _shortage(f"{what} needs at least", parts, room):
        raise DeviceMemoryError(told, f"end what holds the memory, or {remedy}")


def foresee(what: str, parts: Mapping[str, int], room: Room | None) -> None:
    """Warn in the log if the `parts`, an estimate, are more than is free."""
    if told := _shortage(f"{what} may need", parts, room):
        _log.warning("%s; going on, for that is an estimate", told)


def _shortage(needs: str, parts: Mapping[str, int], room: Room | None) -> str | None:
    """What is to be said if the parts are more than is free; None if they are not, or nobody knows."""
    total = sum(parts.values())
    if room is None or total <= room.free_bytes:
        return None
    of = ", ".join(f"{name} {_size(nbytes)}" for name, nbytes in parts.items() if nbytes)
    told = f"{needs} {_size(total)} of device memory ({of}), and {_size(room.free_bytes)}"
    told += f" of {_size(room.total_bytes)} are free"
    held = [
        f"{'this process' if holder.pid == os.getpid() else f'process {holder.pid}'}"
        + (f" ({_size(holder.nbytes)})" if holder.nbytes is not None else "")
        for holder in room.holders[:_SHOWN_HOLDERS]
    ]
    more = len(room.holders) - len(held)
    return told + (f"; held by {', '.join(held)}" if held else "") + (f" and {more} more" if more else "")


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**30:,.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:,.1f} MiB"
