"""What is kept of a run in turns."""

import msgspec

from tests.support.interleaved_runs import run
from trtopt.measure.loop.interleaved import latency_blocks, notes_of, pooled_ms, valid_rounds
from trtopt.measure.statistics.comparison import Verdict, compare
from trtopt.records import ClockReading

A = [[1.0] * 5 for _ in range(12)]
B = [[1.0] * 5 for _ in range(12)]


def test_a_quiet_run_keeps_every_round() -> None:
    evaluated = valid_rounds(run({"A": A, "B": B}))
    assert [len(turns.blocks) for turns in evaluated.turns] == [12, 12]
    assert evaluated.interfered == ()


def test_a_round_with_a_turn_under_slowdown_is_discarded_from_both_sides() -> None:
    """Reading 6 lies between turns 5 and 6: rounds 2 and 3."""
    a = [[float(number + 1)] for number in range(12)]
    evaluated = valid_rounds(run({"A": a, "B": a}, slow_readings=[6]))
    for turns in evaluated.turns:
        assert latency_blocks(turns) == [[float(n + 1)] for n in range(12) if n not in (2, 3)]
    assert pooled_ms(evaluated.turns[0]) == 7.5


def test_a_throttled_run_gets_no_verdict() -> None:
    slower = [[1.1] * 5 for _ in range(12)]
    evaluated = valid_rounds(run({"A": A, "B": slower}, slow_readings=range(0, 24, 4)))
    assert evaluated.interference.untrustworthy
    a, b = evaluated.turns
    found = compare(latency_blocks(a), latency_blocks(b), interfered=evaluated.interfered)
    assert found.verdict is Verdict.UNDECIDED
    assert any("hw thermal slowdown" in reason.text for reason in found.reasons)
    assert compare(A, slower).verdict is Verdict.SLOWER


def test_a_run_that_was_all_slow_keeps_its_samples_and_is_not_trusted() -> None:
    evaluated = valid_rounds(run({"A": A, "B": B}, slow_readings=range(25)))
    assert [len(turns.blocks) for turns in evaluated.turns] == [12, 12]
    assert evaluated.interfered != ()


def test_slowdowns_and_unknown_clocks_are_noted() -> None:
    assert notes_of([run({"A": A, "B": B})]) == []
    assert "hw thermal slowdown (2)" in notes_of([run({"A": A, "B": B}, slow_readings=[6])])[0]
    unknown = msgspec.structs.replace(run({"A": A, "B": B}), clocks=(ClockReading(at_ms=0.0),) * 25)
    assert notes_of([unknown]) == ["clocks are unknown: not reported"]
