"""What a scripted device does: see `device.fake`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import TypeVar

from trtopt.device.api import Holder
from trtopt.records import ClockReading, KernelActivity, NvtxRange


@dataclass
class Script:
    """What the device does. Durations in milliseconds, one value per call, the last one repeated.

    Before a copy from pageable memory the host copies for `staging_ms`; after one into it the host waits.
    An event that notes the time keeps the stream busy for `timing_ms`.
    `replayed_layers` tells whether replays of graphs have layer times.
    `fail_at` makes the named call (as in `calls`, say "enqueue") raise on its n-th time, counted from 1.
    `holders` are said to have what is not free.
    `clocks` are what its sensor reads, one after the other, each in `reading_ms` of the host's time; without
    any its clocks are unknown. `kernels` and `graph_kernels` are what its tracer reports of plain runs and of
    replays, run by run, `ranges` those of every run that emits them, and `dropped` how many records it always
    misses.
    """

    compute_ms: Iterable[float] = (1.0,)
    enqueue_ms: Iterable[float] = (0.01,)
    h2d_ms: float = 0.1
    d2h_ms: float = 0.1
    d2d_ms: float = 0.1
    staging_ms: float = 0.05
    timing_ms: float = 0.0
    graphs: bool = True
    memory_bytes: int = 1 << 30
    holders: tuple[Holder, ...] = ()
    layers: Mapping[str, float] = field(default_factory=lambda: {"layer": 1.0})
    replayed_layers: bool = True
    inspector: str | None = None
    fail_at: tuple[str, int] | None = None
    clocks: Iterable[ClockReading] = ()
    reading_ms: float = 1.0
    kernels: Iterable[Sequence[KernelActivity]] = ()
    graph_kernels: Iterable[Sequence[KernelActivity]] = ()
    dropped: int = 0
    ranges: Sequence[NvtxRange] = ()
    application_mhz: int | None = 1980


T = TypeVar("T")


def then_last(values: Iterable[T], last: T) -> Iterator[T]:
    """All values, and then the last of them (or `last`, if there are none) again and again."""
    for last in values:
        yield last
    yield from repeat(last)
