"""The check of device memory: what cannot fit is refused, what may not is warned of."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from trtopt.device.api import DeviceMemory
from trtopt.errors import DeviceMemoryError
from trtopt.printable import size_text

_log = logging.getLogger(__name__)
_SHOWN_HOLDERS = 3
LESS_MEMORY = "free the GPU, or give a smaller --batch, --streams or --queue (queries in flight have buffers)"
"""The remedy where a measurement ran out of device memory."""


def require_memory(
    what: str, parts: Mapping[str, int], device_memory: DeviceMemory | None, remedy: str
) -> None:
    """Refuse `what` if the `parts`, bytes by name that it needs at least, are more than is free."""
    if shortage := _shortage(f"{what} needs at least", parts, device_memory):
        raise DeviceMemoryError(shortage, f"end what holds the memory, or {remedy}")


def warn_if_short(what: str, parts: Mapping[str, int], device_memory: DeviceMemory | None) -> None:
    """Warn in the log if the `parts`, an estimate, are more than is free."""
    if shortage := _shortage(f"{what} may need", parts, device_memory):
        _log.warning("%s; continuing, because this is an estimate", shortage)


def _shortage(needs: str, parts: Mapping[str, int], device_memory: DeviceMemory | None) -> str | None:
    """The message if the parts are more than is free; None if they are not, or it is unknown."""
    total = sum(parts.values())
    if device_memory is None or total <= device_memory.free_bytes:
        return None
    of = ", ".join(f"{name} {size_text(nbytes)}" for name, nbytes in parts.items() if nbytes)
    message = f"{needs} {size_text(total)} of device memory ({of}), and {size_text(device_memory.free_bytes)}"
    message += f" of {size_text(device_memory.total_bytes)} are free"
    held = [
        f"{'this process' if holder.pid == os.getpid() else f'process {holder.pid}'}"
        + (f" ({size_text(holder.nbytes)})" if holder.nbytes is not None else "")
        for holder in device_memory.holders[:_SHOWN_HOLDERS]
    ]
    more = len(device_memory.holders) - len(held)
    return message + (f"; held by {', '.join(held)}" if held else "") + (f" and {more} more" if more else "")
