"""Analysis of an open-loop run's record. Pure."""

from __future__ import annotations

from trtopt.records import LoadPass

MIN_ACHIEVED_SHARE = 0.98
"""A target that takes up less than this share of the offered rate falls behind: its queue only grows."""


def offered_rate(run: LoadPass) -> float:
    """Requests a second that arrived, by their own count; 0 if none could."""
    return run.arrived / run.window_s if run.window_s > 0 else 0.0


def achieved_rate(run: LoadPass) -> float:
    """Requests a second that the target took up and served.

    Counted until the last one was taken up, or the arrivals' end if that was later: what a request takes once
    taken up is latency, however long, and no sign of falling behind.
    """
    taken_s = max([run.window_s, *(start / 1e3 for start in run.samples.start_ms[-1:])])
    return len(run.samples.start_ms) / taken_s if taken_s > 0 else 0.0


def keeps_up(run: LoadPass) -> bool:
    """Whether all requests were served, about as fast as they came.

    One stall near the end makes the rate look too low; but who falls behind is late all through the second
    half, and ever later.
    """
    starts = run.samples.start_ms
    if len(starts) < run.arrived:
        return False
    later = list(zip(run.arrival_ms, starts, strict=True))[len(starts) // 2 :]
    return achieved_rate(run) >= MIN_ACHIEVED_SHARE * offered_rate(run) or any(
        arrival >= MIN_ACHIEVED_SHARE * start for arrival, start in later
    )
