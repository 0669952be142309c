"""Open-loop load: when requests arrive, and the highest rate at which latency keeps a limit.

A closed loop sends the next request when the last has finished, so that a slow server gets fewer requests
and its queue never shows. Here arrivals are planned beforehand, and latency counts from the planned arrival.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trtopt.errors import UsageError
from trtopt.measure.statistics.summaries import needed_for
from trtopt.records import LoadPass

MAX_REQUESTS = 200_000
"""In one run, so that its records fit into memory and a result file."""

MAX_LIMIT_MS = 60_000.0
"""Only a wait of that length separates a rate that just keeps a limit from one that does not."""

_UNITS_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


@dataclass(frozen=True)
class Load:
    """Requests at `rate` per second, evenly spaced or as a Poisson process."""

    rate: float
    kind: Literal["constant", "poisson"] = "constant"


def parse_load(text: str) -> Load:
    """The value of `--load`: `RATE` or `poisson:RATE`, in requests per second."""
    kind, separator, number = text.strip().rpartition(":")
    remedy = "give requests per second as RATE or poisson:RATE, such as --load 500 or --load poisson:500"
    if separator and kind != "poisson":
        raise UsageError(f"--load {text}: unknown kind of arrivals {kind!r}", remedy)
    try:
        rate = float(number)
    except ValueError:
        raise UsageError(f"--load {text}: {number!r} is not a number", remedy) from None
    if not 0 < rate < math.inf:
        raise UsageError(f"--load {text}: the rate must be positive and finite", remedy)
    return Load(rate, "poisson" if separator else "constant")


def window_s(load: Load, wanted_s: float) -> float:
    """How long to let requests arrive: as wanted, or until there are `MAX_REQUESTS` of them."""
    return min(wanted_s, MAX_REQUESTS / load.rate)


def arrivals_s(load: Load, duration_s: float, seed: int = 0) -> list[float]:
    """When requests arrive, in seconds from the start, the first at 0; all before `duration_s`.

    Poisson: independent exponential gaps of mean 1 / rate. `RandomState`, whose stream numpy has frozen
    (NEP 19): a seed means the same arrivals with every numpy.
    """
    if duration_s <= 0:
        return []
    if load.kind == "constant":
        count = max(1, math.ceil(duration_s * load.rate - 1e-9))
        return [index / load.rate for index in range(count)]
    random = np.random.RandomState(seed)
    times, last = [0.0], 0.0
    while last < duration_s:
        count = max(16, math.ceil((duration_s - last) * load.rate))
        chunk = last + np.cumsum(random.exponential(1 / load.rate, count))
        times.extend(chunk.tolist())
        last = times[-1]
    return [time for time in times if time < duration_s]


# ── the highest rate that keeps a latency ─────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Goal:
    """The `p`-th percentile of latency, queueing included, is at most `limit_ms`."""

    p: float
    limit_ms: float

    def __str__(self) -> str:
        return f"p{self.p:g}={self.limit_ms:g}ms"


def parse_goal(text: str, flag: str = "--max-latency") -> Goal:
    """The value of `--max-latency`, or of another flag: `p99=5ms`; units are us, ms and s."""
    remedy = f"give a percentile and a limit, such as {flag} p99=5ms (units: us, ms, s)"
    match = re.fullmatch(r"p(\d+(?:\.\d+)?)=(\d+(?:\.\d+)?)(us|ms|s)", text.strip())
    if match is None:
        if re.fullmatch(r"[\d.]+(us|ms|s)", text.strip()):
            remedy = f"say of which percentile: {flag} p99={text.strip()}"
        raise UsageError(f"{flag} {text}: not of the form p99=5ms", remedy)
    p, limit_ms = float(match[1]), float(match[2]) * _UNITS_MS[match[3]]
    if not 0 < p < 100:
        raise UsageError(f"{flag} {text}: percentiles lie between 0 and 100", remedy)
    if _MIN_FOLD * needed_for(p) > MAX_REQUESTS:
        raise UsageError(f"{flag} {text}: no run has enough requests for a p{p:g}", remedy)
    if limit_ms <= 0:
        raise UsageError(f"{flag} {text}: too short for a latency", remedy)
    if limit_ms > MAX_LIMIT_MS:
        raise UsageError(f"{flag} {text}: longer than a minute, the maximum", remedy)
    return Goal(p, limit_ms)


_MIN_REQUESTS = 100
_MIN_FOLD, _GOOD_FOLD, _MAX_LONGER = 1.5, 5.0, 10.0
_MIN_LIMITS = 20.0


def probe_s(goal: Goal, rate: float, duration_s: float) -> float:
    """How long to probe a rate: `duration_s`, or longer for the percentile's sake.

    Five times the requests that the percentile needs (100 at least) also give its interval an upper bound;
    they are waited for up to ten times the duration. One and a half times as many are waited for in any
    case, so that no scatter of arrivals takes the percentile away. After twenty times the limit, which are
    waited for up to ten times the duration as well, it matters little what is still waiting at the end.
    """
    needed = max(needed_for(goal.p), _MIN_REQUESTS)
    good = max(_GOOD_FOLD * needed / rate, _MIN_LIMITS * goal.limit_ms / 1e3)
    return max(duration_s, min(good, _MAX_LONGER * duration_s), _MIN_FOLD * needed / rate)


def may_be_late(goal: Goal, requests: int) -> int:
    """How many of so many requests may exceed the limit before the percentile is above it for certain.

    By linear interpolation the percentile lies between the values of ranks ⌊h⌋ and ⌊h⌋ + 1 (from 0) with
    h = (n - 1) · p / 100; it is above the limit once the value of rank ⌊h⌋ is.
    """
    return requests - 1 - math.floor((requests - 1) * goal.p / 100)


class RateSearch:
    """Finds the highest rate that keeps a goal: measure `next_rate`, then `add` whether it does.

    From the first rate, which should be half of what the closed loop reaches, it doubles while the goal is
    kept and halves while it is not; then it bisects the gap, on the logarithm, until the gap is within
    `resolution`. A rate above one that failed is never tried. Rates down to 1/1024 of the first are tried
    before the goal is called out of reach. `best` is the highest rate so far that keeps it.
    """

    def __init__(self, first_rate: float, *, resolution: float = 0.02, max_probes: int = 20) -> None:
        self.next_rate: float | None = first_rate
        self.best: float | None = None
        self._lowest_failed, self._tried = math.inf, 0
        self._least, self._resolution, self._max_probes = first_rate / 1024, resolution, max_probes

    def add(self, keeps: bool) -> None:
        """Whether `next_rate` keeps the goal."""
        assert self.next_rate is not None
        self._tried += 1
        if keeps:
            self.best = self.next_rate
        else:
            self._lowest_failed = self.next_rate
        if self.best is None:
            following = self._lowest_failed / 2
            is_over = following < self._least
        else:
            has_failed = self._lowest_failed < math.inf
            following = math.sqrt(self.best * self._lowest_failed) if has_failed else self.best * 2
            is_over = self._is_found
        self.next_rate = None if is_over or self._tried >= self._max_probes else following

    @property
    def _is_found(self) -> bool:
        return self.best is not None and self._lowest_failed / self.best <= 1 + self._resolution

    def reason(self, goal: Goal) -> str:
        """Why it ended, for the record."""
        if self._is_found:
            return f"{self.best:g} requests/s keep {goal}, {self._lowest_failed:g} do not"
        if self.best is not None:
            return f"{self.best:g} requests/s keep {goal}, the highest of {self._tried} rates tried that does"
        tried = f"not even {self._lowest_failed:g} requests/s" if self._tried else "no rate was tried that"
        return f"{goal} is out of reach: {tried} keep it"


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
