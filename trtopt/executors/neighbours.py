"""What runs on each host, and what ran there together with each job."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock


@dataclass
class Neighbours:
    """Which submissions are on each node at the moment; several threads may tell of theirs."""

    _running: dict[str, dict[int, str]] = field(default_factory=dict)
    _beside: dict[int, dict[str, None]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def began(self, number: int, node: str, doing: str) -> None:
        """Submission `number` is on `node` now."""
        with self._lock:
            there = self._running.setdefault(node, {})
            if number in there:
                return
            self._beside[number] = dict.fromkeys(there.values())
            for other in there:
                self._beside[other][doing] = None
            there[number] = doing

    def finished(self, number: int) -> None:
        """Submission `number` is not at work any more."""
        with self._lock:
            for there in self._running.values():
                there.pop(number, None)

    def ended(self, number: int) -> tuple[str, ...]:
        """Submission `number` has ended; returns what else ran on its host meanwhile, in words."""
        self.finished(number)
        with self._lock:
            return tuple(self._beside.pop(number, ()))
