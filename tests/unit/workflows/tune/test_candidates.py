"""Predicted gains: the prior where nothing is known, what was measured where much is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.support.ledgers import entry, won
from trtopt.measure.statistics.comparison import RUN_LUCK, RunSpread
from trtopt.records import LedgerEntry
from trtopt.workflows.tune.candidates import (
    Prediction,
    Prior,
    predict,
    predicted_cost_s,
    rank_correlation,
    score,
    spread_of,
)

PRIOR = Prior(0.1, 0.5)
SPREAD = 0.015
SHARES = st.floats(0.01, 0.95)


def predicted(history: list[LedgerEntry]) -> Prediction:
    """Of another value of the setting that the history's candidates have."""
    return predict("opt_level=4", PRIOR, PRIOR, history, SPREAD)


def test_without_history_the_prior_is_the_prediction() -> None:
    found = predicted([])
    assert (found.gain, found.probability) == (0.1, 0.5)
    assert found.low < 0 < found.gain < found.high


def test_what_came_out_as_believed_changes_nothing() -> None:
    found = predicted([won(0.1), entry()])
    assert (found.gain, found.probability) == pytest.approx((0.1, 0.5))


def test_four_outcomes_weigh_as_much_as_the_prior() -> None:
    assert predicted([entry()] * 4).probability == pytest.approx(0.25)
    assert predicted([won(0.3)] * 4).gain == pytest.approx(0.2)


def test_other_settings_of_the_kind_say_nothing() -> None:
    lost = entry(candidate="execution_mode=parallel", measured_gain=-1.0, verdict="slower")
    assert predicted([lost] * 9) == predicted([])


def test_a_candidate_that_changed_nothing_says_nothing_of_its_kind() -> None:
    unchanged = entry(verdict="unchanged", measured_gain=None)
    assert predicted([unchanged] * 9) == predicted([])


@given(
    gain=SHARES,
    probability=st.floats(0.01, 0.6),
    wins=st.integers(0, 20),
    losses=st.integers(0, 20),
    won_by=SHARES,
    own=st.booleans(),
)
def test_a_correction_lies_between_the_prior_and_what_was_seen(
    gain: float, probability: float, wins: int, losses: int, won_by: float, own: bool
) -> None:
    """Whether the kind's other candidates showed it, or the candidate itself on other models."""
    prior = Prior(gain, probability, 0.1, 0.3)
    believed = {"prior_gain": gain, "prior_probability": probability, "prior_loss": 0.1, "prior_risk": 0.3}
    lost = entry(measured_gain=-0.5, verdict="slower", **believed)
    history = [won(won_by, **believed)] * wins + [lost] * losses
    found = predict(lost.candidate if own else "opt_level=4", prior, prior, history, SPREAD)
    total = len(history)
    for value, before, seen in (
        (found.probability, probability, wins / total if total else probability),
        (found.risk, 0.3, losses / total if total else 0.3),
    ):
        assert min(before, seen) * 0.9 - 1e-9 <= value <= max(before, seen) + 1e-9
    gained = won_by if wins else gain
    assert min(gain, gained) - 1e-9 <= found.gain <= max(gain, gained) + 1e-9
    assert 0.1 - 1e-9 <= found.loss <= 0.5 + 1e-9
    assert found.probability + found.risk <= 0.95 + 1e-9
    assert -1 <= found.low < found.high


def test_its_own_outcomes_weigh_more_than_those_of_its_kind() -> None:
    slow = entry(candidate="threads=1", measured_gain=-0.9, verdict="slower", prior_risk=0.2, prior_loss=0.05)
    unlikely = Prior(0.1, 0.1)
    own = predict("threads=1", unlikely, unlikely, [slow] * 4, SPREAD)
    assert own.risk == pytest.approx(0.84)
    assert own.loss == pytest.approx(0.73)
    assert own.low < predict("threads=1", unlikely, unlikely, [], SPREAD).low


def test_a_loss_is_believed_sooner_than_a_failure_to_gain() -> None:
    """Over models what harms is much the same, and what helps is not."""
    slow = entry(
        candidate="opt_level=4", measured_gain=-1.0, verdict="slower", prior_loss=0.05, prior_risk=0.2
    )
    once = predicted([slow])
    assert once.loss > (0.05 + 1.0) / 2 - 1e-9
    assert once.probability > 0.35


def test_intervals_hold_their_share_of_what_is_drawn_from_the_model_itself() -> None:
    """The mixture that is believed in: its quantiles, against draws."""
    found = predict("x", Prior(0.2, 0.3, 0.3, 0.4), PRIOR, [], spread=0.02)
    draw = np.random.default_rng(0)
    which = draw.random(20000)
    drawn = np.where(
        which < 0.3,
        draw.normal(0.2, 0.1, which.size),
        np.where(which < 0.7, -draw.exponential(0.3, which.size), draw.normal(0, 0.02, which.size)),
    )
    assert np.mean((drawn >= found.low) & (drawn <= found.high)) == pytest.approx(0.8, abs=0.01)


def test_noise_is_learned_from_candidates_that_changed_nothing() -> None:
    gains = np.random.default_rng(0).normal(0, 0.2, 400)
    noisy = [entry(measured_gain=float(gain), verdict="undecided") for gain in gains]
    assert spread_of([entry(measured_gain=0.001)] * 40, None) < 0.01
    found = spread_of(noisy, None)
    assert found == pytest.approx(0.2, abs=0.02)
    disturbed = [entry(measured_gain=-50.0, verdict="undecided")] * 40
    assert spread_of([*noisy, *disturbed], None) == pytest.approx(found, rel=0.2)


def test_before_any_was_tried_noise_is_that_of_separate_runs_on_this_device() -> None:
    assert spread_of([], RunSpread(0.03, 10)) == pytest.approx(math.sqrt(2) * 0.03)
    assert spread_of([], None) == pytest.approx(math.sqrt(2) * RUN_LUCK)


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


def test_the_score_counts_errors_ranks_and_intervals_of_what_was_measured() -> None:
    entries = [
        won(0.05, predicted_gain=0.1, probability=0.5),
        entry(measured_gain=-0.04, predicted_gain=0.02, probability=0.5),
        entry(measured_gain=0.0, predicted_gain=0.04, probability=0.5),
        entry(measured_gain=None, verdict="failed"),
    ]
    found = score(entries, "all")
    assert found is not None
    assert (found.count, found.accepted) == (3, 1)
    assert found.mean_absolute_error == pytest.approx((0.0 + 0.05 + 0.02) / 3)
    assert found.rank_correlation == pytest.approx(1.0)
    assert found.intervals_held == pytest.approx(2 / 3)


def test_a_candidate_far_behind_counts_as_a_loss_of_all() -> None:
    found = score([entry(measured_gain=-80.0, predicted_gain=0.0)], "all")
    assert found is not None
    assert found.mean_absolute_error == 1.0


def test_nothing_measured_has_no_score() -> None:
    assert score([entry(measured_gain=None, verdict="failed")], "all") is None


def test_ranks_share_their_mean_and_few_or_equal_ones_have_no_correlation() -> None:
    assert rank_correlation([1, 2, 2, 3], [1, 5, 5, 9]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert rank_correlation([1, 2], [1, 2]) is None
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None
