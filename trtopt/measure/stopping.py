"""When a pass has warmed up and when it has enough: pure, fed one query at a time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """`warmup_s` before samples count, `duration_s` of counting; at least `min_queries` either way."""

    warmup_s: float = 0.2
    duration_s: float = 3.0
    min_warmups: int = 3
    min_queries: int = 10


@dataclass(frozen=True)
class Deadline:
    """Ends a pass once both a time and a number of queries have been reached."""

    seconds: float
    queries: int

    def is_reached(self, elapsed_s: float, queries: int) -> bool:
        """Whether the pass may end."""
        return elapsed_s >= self.seconds and queries >= self.queries

    @property
    def reason(self) -> str:
        """For the record."""
        return f"time limit of {self.seconds:g} s (at least {self.queries} queries)"
