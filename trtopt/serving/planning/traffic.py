"""When requests arrive, and how long each is: by a process, or as recorded. Pure, and seeded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

from trtopt.errors import DataError, UsageError
from trtopt.measure.load.arrivals import Load, arrivals_s


@dataclass(frozen=True)
class Recorded:
    """Arrivals that were seen, in seconds from the first, with the length of each, empty without any."""

    at_s: tuple[float, ...]
    lengths: tuple[int, ...] = ()

    @property
    def rate(self) -> float:
        """Arrivals a second on average."""
        return (len(self.at_s) - 1) / self.at_s[-1]


Process = Literal["poisson", "constant"] | Recorded


def parse_process(text: str) -> Process:
    """The value of `--arrivals`: `poisson` or `constant`."""
    if text == "poisson":
        return "poisson"
    if text == "constant":
        return "constant"
    raise UsageError(
        f"--arrivals {text}: neither a kind of arrivals nor a file",
        "give poisson, constant, or a file of arrivals, for bursts as well",
    )


def parse_recorded(text: str, name: str) -> Recorded:
    """A file of arrivals: a line for each, its time in seconds and, after a space or comma, its length.

    Empty lines and what follows a # are left out. Times need not begin at zero.
    """
    times: list[float] = []
    lengths: list[int] = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.partition("#")[0].replace(",", " ").split()
        if not fields:
            continue
        try:
            times.append(float(fields[0]))
            lengths += [int(field) for field in fields[1:]]
        except ValueError:
            raise DataError(
                f"{name}:{number}: {line.strip()!r} is not a time in seconds, with an optional length",
                "write one arrival per line, as 0.0125 or 0.0125,384",
            ) from None
        if fault := _against(times, lengths, len(fields)):
            problem, remedy = fault
            raise DataError(f"{name}:{number}: {line.strip()!r} {problem}", remedy)
    if len(times) < 2 or times[-1] == times[0]:
        raise DataError(f"{name}: {len(times)} arrivals are too few for a rate", "record more of them")
    return Recorded(tuple(time - times[0] for time in times), tuple(lengths))


def _against(times: Sequence[float], lengths: Sequence[int], fields: int) -> tuple[str, str] | None:
    """What is wrong with the last arrival of so many fields, and what to do; None: nothing."""
    if not math.isfinite(times[-1]):
        return "has no time that is a number", "write each time in seconds, as 0.0125"
    if len(times) > 1 and times[-1] < times[-2]:
        return "goes back in time", "sort arrivals by time"
    if fields > 2:
        return f"has {fields} fields", "write one arrival per line: its time and, maybe, its length"
    if len(lengths) not in (0, len(times)):
        what = "has no length" if fields == 1 else "has a length"
        return f"{what}, unlike those before it", "give all arrivals a length, or none"
    if lengths and lengths[-1] < 1:
        return f"has the length {lengths[-1]}", "give lengths of 1 at least, or none at all"
    return None


def arrivals_at(process: Process, rate: float, count: int, seed: int) -> NDArray[np.float64]:
    """When about `count` requests arrive at `rate` a second on average, in seconds, the first at 0.

    A record is stretched to the rate; one that is shorter is repeated, and begun at a place by the seed.
    """
    if isinstance(process, Recorded):
        return _recorded(process, rate, count, seed)
    return np.asarray(arrivals_s(Load(rate, process), count / rate, seed))


def lengths_of(process: Process, shares: Mapping[int, float], count: int, seed: int) -> NDArray[np.int64]:
    """How long each request is: as recorded with its arrival, else drawn by the shares of lengths."""
    if isinstance(process, Recorded) and process.lengths:
        return np.asarray(process.lengths, np.int64)[_places(process, count, seed)]
    weights = np.asarray([shares[length] for length in sorted(shares)])
    return RandomState(seed).choice(np.asarray(sorted(shares), np.int64), count, p=weights / weights.sum())


def _places(process: Recorded, count: int, seed: int) -> NDArray[np.int64]:
    """Which of the recorded arrivals the simulated ones are; the whole record begins where it began."""
    length = len(process.at_s)
    begin = RandomState(seed).randint(length) if count < length else 0
    return (begin + np.arange(count)) % length


def _recorded(process: Recorded, rate: float, count: int, seed: int) -> NDArray[np.float64]:
    times = np.asarray(process.at_s)
    gaps = np.append(times[:1], np.diff(times))
    gaps[0] = 1 / process.rate  # between the last one and the first of the next round
    places = _places(process, count, seed)
    at_s = np.cumsum(gaps[places]) * (process.rate / rate)
    started: NDArray[np.float64] = at_s - at_s[0]
    return started
