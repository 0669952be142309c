"""Runs cases in processes of their own and counts what became of them."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile

HERE = Path(__file__).resolve().parent
_SILENCE_S = 120
"""No word for so long, of which a case has ten seconds: it hangs in native code."""


@dataclass
class Counters:
    """How a target's cases ended, and by number those that must not end so."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: dict[int, str] = field(default_factory=dict)
    longest_s: float = 0.0

    @property
    def cases(self) -> int:
        """How many there were."""
        return self.outcomes.total()


def run_cases(target: str, seeds: Path, first: int, count: int) -> Counters:
    """Run `count` cases from number `first` on; a process that dies or hangs is replaced."""
    counters, begin, end = Counters(), first, first + count
    while begin < end:
        died_at = _run_process(target, seeds, begin, end - begin, counters)
        begin = end if died_at is None else died_at + 1
    return counters


def _run_process(target: str, seeds: Path, first: int, count: int, counters: Counters) -> int | None:
    """The number of the case that took the process along; None if all were run."""
    with TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, HERE / "fuzz_worker.py", target, seeds, str(first), str(count)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=_read, args=(process, lines), daemon=True).start()
        number, how = first, None
        try:
            while line := lines.get(timeout=_SILENCE_S):
                if line[0] != "[":
                    number = int(line)
                    continue
                outcome, detail, seconds = json.loads(line)
                counters.outcomes[outcome] += 1
                counters.longest_s = max(counters.longest_s, seconds)
                if outcome == "FAULT":
                    counters.faults[number] = detail
        except queue.Empty:
            how = "hung in native code"
            process.kill()
        status = process.wait()
        process.stdout.close()
        if status == 0:
            return None
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - 2000))
        counters.outcomes["FAULT"] += 1
        counters.faults[number] = f"{how or f'died with {status}'}: {errors.read().decode(errors='replace')}"
        return number


def _read(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put("")
