"""What a pass's own figures say could be better: each hint measured, and worded with its remedy and flag."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from trtopt.records import Contract

ENQUEUE_SHARE = 0.8
"""trtexec's limit: beyond it the GPU may have to wait for the host."""

MAX_CV = 0.025
"""trtexec's limit for a run's coefficient of variation."""

MIN_STREAMS_GAIN = 1.05
MIN_CLOCK_SHARE = 0.95
"""Boost clocks move by a few percent with temperature; less than this share is another state."""


class HintCode(str, Enum):
    """What a hint is about."""

    ENQUEUE_BOUND = "enqueue-bound"
    COPY_BOUND = "copy-bound"
    UNSTABLE = "unstable"
    STREAMS_GAIN_NOTHING = "streams-gain-nothing"
    CLOCKS_BELOW_APPLICATION = "clocks-below-application"


@dataclass(frozen=True)
class Hint:
    """`text` holds the measured figures, `remedy` what to do and the flag for it."""

    code: HintCode
    text: str
    remedy: str


@dataclass(frozen=True)
class Figures:
    """A pass's medians in milliseconds. None: not measured, and no hint is made of it.

    `latency_cv` is the standard deviation over the mean of compute time. `streams_gain` is the throughput
    with the contract's streams over that with one. `sm_mhz` is the median of readings under load, to
    compare with `application_mhz`. `reference` names the clock used if no application clock is known.
    `power_capped` is whether the device was at its power limit, `other_processes` how many besides this one
    held it at most, `lockable` whether its clocks can be locked.
    """

    enqueue_ms: float | None = None
    compute_ms: float | None = None
    h2d_ms: float | None = None
    d2h_ms: float | None = None
    latency_cv: float | None = None
    streams_gain: float | None = None
    sm_mhz: float | None = None
    application_mhz: float | None = None
    reference: str = "application"
    power_capped: bool = False
    other_processes: int = 0
    lockable: bool = True


def processes_text(count: int) -> str:
    """That so many others hold the GPU."""
    return f"{count} other process{'es' if count > 1 else ''} on the GPU"


def hints(figures: Figures, contract: Contract) -> tuple[Hint, ...]:
    """All hints that the figures give rise to, in a fixed order."""
    found = (
        _enqueue_bound(figures, contract),
        _copy_bound(figures, contract),
        _unstable(figures),
        _streams(figures, contract),
        _clocks(figures),
    )
    return tuple(hint for hint in found if hint is not None)


def _enqueue_bound(figures: Figures, contract: Contract) -> Hint | None:
    if figures.enqueue_ms is None or figures.compute_ms is None:
        return None
    if figures.enqueue_ms <= ENQUEUE_SHARE * figures.compute_ms:
        return None
    text = (
        f"enqueue-bound: enqueueing takes {figures.enqueue_ms:.3f} ms, computing {figures.compute_ms:.3f} ms"
    )
    if contract.graph:
        return Hint(HintCode.ENQUEUE_BOUND, text, "a CUDA graph is in use already: try a larger --batch")
    return Hint(HintCode.ENQUEUE_BOUND, text, "launch the engine as a CUDA graph with --graph")


def _copy_bound(figures: Figures, contract: Contract) -> Hint | None:
    if figures.compute_ms is None:
        return None
    into, out = figures.h2d_ms or 0.0, figures.d2h_ms or 0.0
    if into + out <= figures.compute_ms:
        return None
    copies = f"copies take {into:.3f} ms in and {out:.3f} ms out"
    text = f"copy-bound: {copies}, computing {figures.compute_ms:.3f} ms"
    if contract.queue_ahead == 0:
        return Hint(HintCode.COPY_BOUND, text, "overlap copies with computing: --contract serving")
    remedy = (
        "move less: smaller types, or more of the work on the GPU; --contract trtexec-11 leaves copies out"
    )
    return Hint(HintCode.COPY_BOUND, text, remedy)


def _unstable(figures: Figures) -> Hint | None:
    if figures.latency_cv is None or figures.latency_cv <= MAX_CV:
        return None
    text = f"unstable: the coefficient of variation is {figures.latency_cv:.1%}, over {MAX_CV:.1%}"
    if figures.other_processes:
        text += f", with {processes_text(figures.other_processes)}"
        return Hint(HintCode.UNSTABLE, text, "measure when the GPU is free, or on another one")
    steadier = "lock the clocks with --lock-clocks" if figures.lockable else "stop other work on this machine"
    return Hint(HintCode.UNSTABLE, text, f"{steadier}, or sample for longer with --duration")


def _streams(figures: Figures, contract: Contract) -> Hint | None:
    if contract.streams < 2 or figures.streams_gain is None or figures.streams_gain >= MIN_STREAMS_GAIN:
        return None
    gain = f"{contract.streams} streams give {figures.streams_gain:.2f} times one's throughput"
    text = f"streams gain nothing: {gain}"
    return Hint(HintCode.STREAMS_GAIN_NOTHING, text, "one stream fills the GPU: use --streams 1")


def _clocks(figures: Figures) -> Hint | None:
    if figures.sm_mhz is None or not figures.application_mhz:
        return None
    if figures.sm_mhz >= MIN_CLOCK_SHARE * figures.application_mhz:
        return None
    text = (
        "clocks not at application level: "
        f"SM at {figures.sm_mhz:.0f} MHz, {figures.reference} clock {figures.application_mhz:.0f} MHz"
    )
    if figures.power_capped:
        remedy = (
            "the power limit sets the clock under this load: that is the card's speed; for runs that agree "
            "better lock a clock that it can hold with --lock-clocks MHZ"
        )
        return Hint(HintCode.CLOCKS_BELOW_APPLICATION, text, remedy)
    remedy = "warm up for longer with --warmup, or lock the clocks with --lock-clocks"
    return Hint(HintCode.CLOCKS_BELOW_APPLICATION, text, remedy)
