"""Fuzz every reader of files for longer than the tests do.

    python benchmarks/reliability/fuzz.py [--times 10] [--first 1000000] [--jobs 2]

Runs each target of `tests/fuzz/fuzz_targets.py` on so many times the cases of the tests, from case `--first`
on: other numbers than those of the tests. Prints a table, then every fault with the case's number; exits
with 1 if there is one. Needs trtopt with the extras `rtx` and `test`, and no GPU.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "fuzz")]

from fuzz_cases import Counters, run_cases  # noqa: E402
from fuzz_seeds import make_seeds  # noqa: E402
from fuzz_targets import NATIVE, TARGETS  # noqa: E402


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=10, help="how many times the cases of the tests")
    parser.add_argument("--first", type=int, default=1_000_000, help="the first case's number")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    request = parser.parse_args()
    targets = NATIVE | TARGETS
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as seeds, ThreadPoolExecutor(request.jobs) as pool:
        make_seeds(Path(seeds))

        def run(name: str) -> Counters:
            return run_cases(name, Path(seeds), request.first, request.times * targets[name].cases)

        tallies = dict(zip(targets, pool.map(run, targets), strict=True))
    print("| target | cases | read | refused | faults | longest case |\n|---|---|---|---|---|---|")
    for name, counters in tallies.items():
        read, faults = counters.outcomes["read"], len(counters.faults)
        refused = counters.cases - read - faults
        print(f"| {name} | {counters.cases} | {read} | {refused} | {faults} | {counters.longest_s:.2f} s |")
    total = sum(counters.cases for counters in tallies.values())
    print(f"\n{total} cases in {time.monotonic() - began:.0f} s")
    for name, counters in tallies.items():
        for number, fault in counters.faults.items():
            print(f"\n{name}, case {number}:\n{fault}")
    sys.exit(any(counters.faults for counters in tallies.values()))


if __name__ == "__main__":
    main()
