"""Allocator events → a timeline: peaks by phase, what was live at the peak, what was never given back.

The tracking allocator sees what TensorRT asks for itself; inputs and outputs are trtopt's own. What the
driver reports beyond both (CUDA's context, lazily loaded kernels, rounding) is the remainder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtopt.records import AllocationEvent, LiveAllocation, MemoryPass, MemoryTimeline, PhaseMemory

_LOAD = "load"
_UNLOAD = "unload"


@dataclass
class _Phase:
    peak: int = 0
    allocated: int = 0
    freed: int = 0
    calls: int = 0


def timeline(memory: MemoryPass) -> MemoryTimeline:
    """Follow every event in its order. An allocation that failed changes nothing and is counted apart."""
    live: dict[int, AllocationEvent] = {}
    curve = memory.live_bytes
    before = peak = before_unload = 0
    at_peak: tuple[AllocationEvent, ...] = ()
    peak_event: AllocationEvent | None = None
    phases: dict[str, _Phase] = {}
    failed: list[int] = []
    for event, now in zip(memory.events, curve, strict=True):
        phase = phases.setdefault(event.phase, _Phase(peak=before))
        phase.calls += 1
        if event.kind == "allocate" and event.address:
            live[event.address] = event
            phase.allocated += event.size_bytes
        elif event.kind == "allocate":
            failed.append(event.size_bytes)
        elif event.kind == "deallocate" and event.address in live:
            phase.freed += live.pop(event.address).size_bytes
        phase.peak = max(phase.peak, now)
        if now > peak:
            peak, peak_event, at_peak = now, event, tuple(live.values())
        before = now
        if event.phase != _UNLOAD:
            before_unload = now
    return MemoryTimeline(
        peak_bytes=peak,
        peak_phase=peak_event.phase if peak_event else "",
        peak_at_ms=peak_event.at_ms if peak_event else 0.0,
        phases=tuple(
            PhaseMemory(
                phase=name,
                peak_bytes=one.peak,
                allocated_bytes=one.allocated,
                freed_bytes=one.freed,
                calls=one.calls,
            )
            for name, one in phases.items()
        ),
        live_at_peak=_live(at_peak, memory.engine_device_bytes),
        leaked=_live(tuple(live.values()), memory.engine_device_bytes),
        failed_bytes=tuple(failed),
        buffers_bytes=memory.buffers_bytes,
        driver_bytes=memory.driver_used_bytes,
        remainder_bytes=None
        if memory.driver_used_bytes is None
        else memory.driver_used_bytes - before_unload - memory.buffers_bytes,
        at_ms=[event.at_ms for event in memory.events],
        live_bytes=curve,
    )


def _live(events: Sequence[AllocationEvent], activations: int | None) -> tuple[LiveAllocation, ...]:
    """The largest first."""
    found = (
        LiveAllocation(
            size_bytes=event.size_bytes,
            label=_label(event, activations),
            phase=event.phase,
            at_ms=event.at_ms,
        )
        for event in events
    )
    return tuple(sorted(found, key=lambda one: (-one.size_bytes, one.at_ms)))


def _label(event: AllocationEvent, activations: int | None) -> str:
    """What an allocation is for, as far as its phase and size tell."""
    if event.phase == _LOAD:
        return "weights"
    return "activations" if activations and event.size_bytes == activations else "scratch"
