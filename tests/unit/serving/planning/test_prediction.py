"""How far trial runs were from their simulations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.support.long import few
from trtopt.serving.planning.prediction import TrialError, beyond, estimate, held_up

COUNT = 5_000


def steady(took_ms: np.ndarray) -> TrialError:
    """Of which simulations say 1 ms for all."""
    return TrialError(took_ms, [np.ones(len(took_ms))] * 3)


def factor(*took_ms: np.ndarray, p: float = 99.0) -> float:
    (told,) = beyond([steady(one) for one in took_ms], [p])
    return told.factor


def stalled(at: int) -> np.ndarray:
    """1.5 ms each, but for a hundred requests from there on."""
    took_ms = np.full(COUNT, 1.5)
    took_ms[at : at + 100] = 400.0
    return took_ms


def test_trial_runs_are_as_far_off_as_their_median() -> None:
    (told,) = beyond([steady(np.full(COUNT, ms)) for ms in (1.0, 1.1, 1.3, 1.8)], [50.0])
    deviation = math.sqrt((0.3**2 + 0.2**2 + 0.0**2 + 0.5**2) / 3)
    assert (told.p, told.trials) == (50.0, 4)
    assert told.factor == pytest.approx(1.2)
    assert told.spread == pytest.approx(deviation / 1.2)
    assert told.error == pytest.approx(deviation / 2 / 1.2)


def test_a_process_that_the_machine_held_up_is_reported() -> None:
    three = [steady(np.full(COUNT, ms)) for ms in (1.4, 1.5, 1.6)]
    found = held_up([three[0], steady(stalled(0)), *three[1:]], [50.0, 99.0])
    assert found is not None
    assert (found[0], found[1].p, found[1].factor) == (1, 99.0, pytest.approx(400.0))
    assert held_up([*three, steady(stalled(0))], [50.0]) is None  # of which it took nothing


@pytest.mark.parametrize(("slowest", "is_held_up"), [(3.7, False), (3.9, True)])
def test_who_is_held_up_is_farther_from_the_next_than_dixon_lets_one_of_four_be(
    slowest: float, is_held_up: bool
) -> None:
    """(3.7 - 1.2) / (3.7 - 1.0) is 0.9259, (3.9 - 1.2) / (3.9 - 1.0) is 0.931."""
    found = held_up([steady(np.full(COUNT, ms)) for ms in (1.0, slowest, 1.1, 1.2)], [50.0])
    assert (found is not None) == is_held_up


def test_of_three_no_one_tells_which_was_held_up() -> None:
    even = np.full(COUNT, 1.5)
    assert held_up([steady(one) for one in (stalled(0), even, even)], [99.0]) is None


def test_who_is_held_up_is_reported_by_the_highest_percentile_that_all_tell() -> None:
    even, late = np.full(500, 1.5), np.full(500, 1.5)
    late[:10] = 9.0
    found = held_up([steady(one) for one in (even, even, late, even)], [50.0, 99.0, 99.9])
    assert found is not None
    assert (found[0], found[1].p) == (2, 99.0)


def test_processes_that_all_stall_somewhere_are_that_late() -> None:
    """Whose stall is in a fiftieth of each, though in no other place of it."""
    assert factor(*(stalled(at) for at in (0, 1_000, 2_000, 4_000))) == pytest.approx(400.0)


def test_processes_that_agree_are_sure() -> None:
    (told,) = beyond([steady(np.full(COUNT, 1.2))] * 4, [50.0])
    assert (told.factor, told.spread, told.error) == pytest.approx((1.2, 0.0, 0.0))


def test_one_trial_run_does_not_tell_how_processes_differ() -> None:
    (told,) = beyond([steady(np.full(COUNT, 1.2))], [50.0])
    assert (told.factor, told.spread, told.error, told.trials) == (pytest.approx(1.2), 0.0, 0.0, 1)


@pytest.mark.long
def test_what_simulations_scatter_as_well_is_no_spread_of_the_processes() -> None:
    def run(seed: int) -> np.ndarray:
        return np.full(50, 1 + 0.05 * np.random.default_rng(seed).standard_normal())

    simulated = [run(seed) for seed in range(200)]
    spreads, errors = [], []
    for seed in range(1_000, 1_400, 4):
        (told,) = beyond([TrialError(run(seed + one), simulated) for one in range(4)], [50.0])
        spreads.append(told.spread)
        errors.append(told.error)
    assert np.median(spreads) < 0.02
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(0.05 / 2, rel=0.2)


def test_a_percentile_is_told_by_no_fewer_requests_than_it_needs() -> None:
    told = beyond([steady(np.ones(2_500)), steady(np.ones(50))], [50.0, 99.0, 99.9, 99.99])
    assert [(one.p, one.trials) for one in told] == [(50.0, 2), (99.0, 1), (99.9, 1)]


def test_requests_without_an_answer_are_a_thousand_times_late() -> None:
    assert factor(np.full(COUNT, np.inf)) == 1000.0


def test_what_a_simulation_cannot_serve_tells_nothing() -> None:
    simulated = np.ones(COUNT)
    simulated[:1000] = np.inf
    (told,) = beyond([TrialError(np.full(COUNT, 2.0), [simulated, np.ones(COUNT)])], [50.0, 99.0])
    assert (told.p, told.factor) == (50.0, 2.0)


@pytest.mark.parametrize(
    ("between", "within"), few((0.1, 0.05), of=[(0.0, 0.1), (0.1, 0.1), (0.1, 0.05), (0.1, 0.01)])
)
def test_a_further_process_falls_into_the_interval(between: float, within: float) -> None:
    """Of 400 plans about 95 %: 92 to 97 in longer trials, in which processes differ by `between` and runs of
    either, measured and simulated, by `within`. Two points more or less are chance.
    """
    random = np.random.default_rng(5)

    def process() -> float:
        return 1 + between * random.standard_normal()

    def run(level: float) -> np.ndarray:
        return np.full(60, level * (1 + within * random.standard_normal()))

    held = 0
    for _ in range(400):
        trials = [TrialError(run(process()), [run(1.0) for _ in range(10)]) for _ in range(4)]
        (known,) = beyond(trials, [50.0])
        predicted = estimate([float(np.median(run(1.0))) for _ in range(10)], known)
        held += predicted.holds(float(np.median(run(process()))))
    assert 0.9 < held / 400 < 0.99
