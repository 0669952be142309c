"""What turns come to: nothing passes whose verdict is barred, or whose device was slowed down."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from tests.support.interleaved_runs import run
from trtopt.measure.analysis.outcomes import Comparisons
from trtopt.records import InterleavedRun, Loading
from trtopt.workflows.compare.engines import RUNS, _builds_row, evaluate_turns


def turns(b_ms: float, *, slow: Sequence[int] = (), again: bool = False) -> InterleavedRun:
    """Twenty rounds of A, of 1 ms, and B; or of A and A again."""
    sides = {"A": [[1.0] * 5] * 20, "B": [[b_ms] * 5] * 20}
    taken = run(sides, "control" if again else "comparison", slow)
    loads = tuple(
        Loading(round=number, order=(number % 2, 1 - number % 2), took_s=0.1, clock=taken.clocks[0])
        for number in range(20)
    )
    return msgspec.structs.replace(taken, loadings=loads)


def speeds(*runs: InterleavedRun) -> list[str]:
    rows, controls = evaluate_turns(runs, 0.01)
    judged = Comparisons("A", "B", "", 0.01, 0.02, tuple(rows), tuple(controls))
    return [judged.speed(row) for row in judged.rows]


@pytest.mark.parametrize(
    ("runs", "speed"),
    [
        ([turns(0.99)], "ok"),
        ([turns(0.99), turns(1.0, again=True)], "ok"),
        ([turns(0.99), turns(1.1, again=True)], "undecided"),
        ([turns(0.99, slow=range(41))], "untrustworthy"),
        ([turns(1.1, slow=range(41))], "slower"),
    ],
)
def test_a_barred_verdict_and_a_slowed_device_let_nothing_pass(
    runs: list[InterleavedRun], speed: str
) -> None:
    assert speeds(*runs) == [speed]


@pytest.mark.parametrize(("slow", "speed"), [((), "ok"), (range(81), "untrustworthy")])
def test_builds_that_were_slowed_down_do_not_pass(slow: Sequence[int], speed: str) -> None:
    sides = {name: [[1.0] * 5] * 20 for name in ("A1", "B1", "A2", "B2")}
    row = _builds_row(8, [run(sides, "builds", slow)] * RUNS, 0.01)
    judged = Comparisons("A", "B", "", 0.01, 0.02, (row,))
    assert judged.speed(row) == speed
