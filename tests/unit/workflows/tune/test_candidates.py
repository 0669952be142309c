"""Predicted gains: a first guess where nothing is known, what was measured where much is."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from tests.support.ledgers import entry, won
from trtopt.records import LedgerEntry
from trtopt.workflows.tune.candidates import Prediction, predict, predicted_cost_s

GUESS = Prediction(0.1, 0.5)
SHARES = st.floats(0.01, 0.95)


def predicted(history: list[LedgerEntry]) -> Prediction:
    """Of another value of the setting that the history's candidates have."""
    return predict("opt_level=4", GUESS, history)


def test_without_history_the_guess_is_the_prediction() -> None:
    assert predicted([]) == GUESS


def test_what_came_out_as_believed_changes_nothing() -> None:
    found = predicted([won(0.1), entry()])
    assert (found.gain, found.probability) == pytest.approx((0.1, 0.5))


def test_four_outcomes_weigh_as_much_as_the_guess() -> None:
    assert predicted([entry()] * 4).probability == pytest.approx(0.25)
    assert predicted([won(0.3)] * 4).gain == pytest.approx(0.2)


def test_other_settings_of_the_kind_say_nothing() -> None:
    lost = entry(candidate="aux_streams=4", measured_gain=-1.0, verdict="slower")
    assert predicted([lost] * 9) == predicted([])


def test_a_candidate_that_changed_nothing_says_nothing_of_its_kind() -> None:
    unchanged = entry(verdict="unchanged", measured_gain=None)
    assert predicted([unchanged] * 9) == predicted([])


@given(gain=SHARES, probability=SHARES, wins=st.integers(0, 20), losses=st.integers(0, 20), won_by=SHARES)
def test_a_correction_lies_between_the_guess_and_what_was_seen(
    gain: float, probability: float, wins: int, losses: int, won_by: float
) -> None:
    history = [won(won_by)] * wins + [entry(measured_gain=-0.5, verdict="slower")] * losses
    found = predict("opt_level=4", Prediction(gain, probability), history)
    seen = wins / len(history) if history else probability
    assert min(probability, seen) - 1e-9 <= found.probability <= max(probability, seen) + 1e-9
    gained = won_by if wins else gain
    assert min(gain, gained) - 1e-9 <= found.gain <= max(gain, gained) + 1e-9


@given(history=st.lists(st.booleans(), max_size=20))
def test_one_more_success_makes_the_next_more_likely_and_a_failure_less(history: list[bool]) -> None:
    past = [won(0.1) if worked else entry() for worked in history]
    now = predicted(past).probability
    assert predicted([*past, entry()]).probability < now
    assert predicted([*past, won(0.1)]).probability >= now


@given(factor=st.floats(0.1, 10), count=st.integers(1, 50))
def test_costs_shrink_towards_what_they_were(factor: float, count: int) -> None:
    history = [entry(predicted_cost_s=10.0, cost_s=10.0 * factor)] * count
    found = predicted_cost_s(100.0, history)
    assert min(100.0, 100.0 * factor) - 1e-6 <= found <= max(100.0, 100.0 * factor) + 1e-6
    more = predicted_cost_s(100.0, history * 20)
    assert abs(more - 100.0 * factor) <= abs(found - 100.0 * factor) + 1e-6
