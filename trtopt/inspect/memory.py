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

from trtopt.records import MORE_CONTEXTS, AllocationEvent, MemoryPass, MemoryTimeline

_LOAD = "load"
_AFTERWARDS = (MORE_CONTEXTS, "unload")
"""Phases after the driver's memory was queried."""

BUFFERS = "inputs and outputs"


def timeline(memory: MemoryPass) -> MemoryTimeline:
    """Follow every event in its order. An allocation that failed changes nothing and is counted apart.

    Contexts that are made only to be measured count in their own phase, not in the peak.
    """
    live: dict[int, AllocationEvent] = {}
    curve = memory.live_bytes
    before = peak = 0
    held: tuple[AllocationEvent, ...] = ()
    at_peak: tuple[AllocationEvent, ...] = ()
    peak_phase = ""
    phases: dict[str, int] = {}
    failed: list[int] = []
    for event, now in zip(memory.events, curve, strict=True):
        if event.kind == "allocate" and event.address:
            live[event.address] = event
        elif event.kind == "allocate":
            failed.append(event.size_bytes)
        elif event.kind == "deallocate":
            live.pop(event.address, None)
        phases[event.phase] = max(phases.get(event.phase, before), now)
        if now > peak and event.phase != MORE_CONTEXTS:
            peak, peak_phase, at_peak = now, event.phase, tuple(live.values())
        before = now
        if event.phase not in _AFTERWARDS:
            held = tuple(live.values())
    held_bytes = _by_label(held, memory)
    if memory.buffers_bytes:
        held_bytes[BUFFERS] = memory.buffers_bytes
    driver = memory.driver_used_bytes
    return MemoryTimeline(
        peak_bytes=peak,
        peak_phase=peak_phase,
        peak_by_phase=phases,
        at_peak_bytes=_by_label(sorted(at_peak, key=lambda one: -one.size_bytes), memory),
        leaked_bytes=tuple(event.size_bytes for event in live.values()),
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


def _by_label(live: Sequence[AllocationEvent], memory: MemoryPass) -> dict[str, int]:
    sums: dict[str, int] = {}
    for event in live:
        label = _label(event, memory.engine_device_bytes)
        sums[label] = sums.get(label, 0) + event.size_bytes
    return sums


def _label(event: AllocationEvent, activations: int | None) -> str:
    """What an allocation is for, by its phase and size."""
    if event.phase == _LOAD:
        return "weights"
    return "activations" if activations and event.size_bytes == activations else "scratch"
