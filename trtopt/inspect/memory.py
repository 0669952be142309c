"""Allocator events → a timeline: peaks by phase, what was live at the peak, what was never released.

The tracking allocator sees what TensorRT requests; inputs and outputs are trtopt's own. What the
driver reports beyond both (CUDA's context, lazily loaded kernels, rounding) is the remainder.

| label | what it is |
|---|---|
| `weights` | allocated while the engine was loaded. |
| `activations` | of exactly the size that the engine states for a context. |
| `scratch` | anything else while running: TensorRT does not separate plugins' memory from its own. |
| `inputs and outputs` | trtopt's own buffers |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtopt.records import (
    MORE_CONTEXTS,
    AllocationEvent,
    LiveAllocation,
    MemoryPass,
    MemoryTimeline,
    PhaseMemory,
)

_LOAD = "load"
_AFTERWARDS = (MORE_CONTEXTS, "unload")
"""Phases after the driver's memory was queried."""

BUFFERS = "inputs and outputs"


@dataclass
class _Phase:
    peak: int = 0
    allocated: int = 0
    freed: int = 0
    calls: int = 0


def timeline(memory: MemoryPass) -> MemoryTimeline:
    """Follow every event in its order. An allocation that failed changes nothing and is counted apart.

    Contexts that are made only to be measured count in their own phase, not in the peak.
    """
    live: dict[int, AllocationEvent] = {}
    curve = memory.live_bytes
    before = peak = 0
    held: tuple[AllocationEvent, ...] = ()
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
        if now > peak and event.phase != MORE_CONTEXTS:
            peak, peak_event, at_peak = now, event, tuple(live.values())
        before = now
        if event.phase not in _AFTERWARDS:
            held = tuple(live.values())
    held_bytes = _by_label(held, memory)
    driver = memory.driver_used_bytes
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
        driver_bytes=driver,
        remainder_bytes=None if driver is None else driver - sum(held_bytes.values()),
        at_ms=[event.at_ms for event in memory.events],
        live_bytes=curve,
        held_bytes=held_bytes,
        context_bytes=memory.context_bytes,
        engine_file_bytes=memory.engine_file_bytes,
        host_bytes=memory.host_bytes,
        failure=memory.failure,
    )


def _by_label(held: Sequence[AllocationEvent], memory: MemoryPass) -> dict[str, int]:
    sums: dict[str, int] = {}
    for event in held:
        label = _label(event, memory.engine_device_bytes)
        sums[label] = sums.get(label, 0) + event.size_bytes
    return sums | ({BUFFERS: memory.buffers_bytes} if memory.buffers_bytes else {})


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
    """What an allocation is for, by its phase and size."""
    if event.phase == _LOAD:
        return "weights"
    return "activations" if activations and event.size_bytes == activations else "scratch"
