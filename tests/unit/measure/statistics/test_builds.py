import math

import numpy as np
import pytest

from trtopt.measure.statistics.builds import compare_builds, spread
from trtopt.measure.statistics.comparison import ReasonCode, Verdict


def recipe(
    median: float, between: float, within: float, builds: int, runs: int, seed: int
) -> list[list[float]]:
    random = np.random.RandomState(seed)
    luck = between * random.standard_normal((builds, 1))
    return (median * np.exp(luck + within * random.standard_normal((builds, runs)))).tolist()


def test_variances_are_those_of_the_textbook_table() -> None:
    """Logs 1, 3 | 5, 7 | 9, 11: MSW = 2, MSB = 32, so between² = (32 - 2) / 2 = 15."""
    found = spread([[math.exp(1), math.exp(3)], [math.exp(5), math.exp(7)], [math.exp(9), math.exp(11)]])
    assert found.within == pytest.approx(math.sqrt(2))
    assert found.between == pytest.approx(math.sqrt(15))
    assert found.geometric_mean == pytest.approx(math.exp(6))
    assert (found.builds, found.runs) == (3, 6)


def test_builds_of_unequal_runs_are_weighed_by_their_number() -> None:
    """Logs 0, 2 | 4: MSW = 2, grand mean 2, MSB = 2·1 + 4 = 6, m₀ = 3 - 5/3 = 4/3, between² = 3."""
    found = spread([[1.0, math.exp(2)], [math.exp(4)]])
    assert found.within == pytest.approx(math.sqrt(2))
    assert found.between == pytest.approx(math.sqrt(3))


def test_the_spread_of_many_builds_is_found_again() -> None:
    found = spread(recipe(1.0, 0.02, 0.005, 400, 5, seed=0))
    assert found.between == pytest.approx(0.02, rel=0.08)
    assert found.within == pytest.approx(0.005, rel=0.04)


def test_equal_builds_have_no_spread_between_them() -> None:
    assert spread([[1.0, 1.1], [1.1, 1.0], [1.0, 1.1]]).between == 0.0


def test_one_run_a_build_cannot_tell_builds_from_runs() -> None:
    found = spread([[1.0], [1.1], [1.2]])
    assert (found.between, found.within) == (None, None)
    assert found.text == "3 builds, 3 runs: unknown between builds, unknown between runs of one build"


@pytest.mark.parametrize("builds", [[], [[]], [[1.0], []]])
def test_sides_without_builds_or_runs_are_refused(builds: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="needs"):
        spread(builds)


def test_one_lucky_build_does_not_win() -> None:
    """Every build is measured to 0.1 %; A's differ by 10 %, B has the luck to be two fast ones."""
    a = [[1.0, 1.001], [1.1, 1.101]]
    b = [[0.99, 0.991], [0.98, 0.981]]
    found = compare_builds(a, b)
    assert found.verdict is Verdict.UNDECIDED
    assert [reason.code for reason in found.reasons] == [ReasonCode.TOO_NOISY]


def test_more_runs_do_not_make_up_for_few_builds() -> None:
    a, b = recipe(1.0, 0.02, 0.002, 3, 1000, seed=1), recipe(1.0, 0.02, 0.002, 3, 1000, seed=2)
    found = compare_builds(a, b)
    assert found.verdict is Verdict.UNDECIDED
    assert found.ratio is not None
    assert math.log(found.ratio.high / found.ratio.low) > 0.05


def test_recipes_further_apart_than_their_builds_are_distinguished() -> None:
    a, b = recipe(1.0, 0.003, 0.002, 4, 5, seed=3), recipe(0.95, 0.003, 0.002, 4, 5, seed=4)
    assert compare_builds(a, b).verdict is Verdict.FASTER
    assert compare_builds(b, a).verdict is Verdict.SLOWER


def test_a_single_build_a_side_stays_undecided_and_says_by_how_much_they_differ() -> None:
    found = compare_builds([[1.0, 1.0]], [[1.1, 1.1]])
    assert (found.verdict, found.ratio) == (Verdict.UNDECIDED, None)
    assert [reason.code for reason in found.reasons] == [ReasonCode.TOO_FEW_BUILDS]
    assert "1 and 1 builds, which differ by +10.0%" in found.reasons[0].text


def test_the_interval_is_welchs() -> None:
    """Logs 0, 2 against 5, 9: variances 2 and 8, error² = 1 + 4, ν = 25 / (1 + 16) = 1.47, t(1) = 12.706."""
    side_a, side_b = [[1.0], [math.exp(2)]], [[math.exp(5)], [math.exp(9)]]
    found = compare_builds(side_a, side_b).ratio
    assert found is not None
    assert math.log(found.value) == pytest.approx(6)
    assert math.log(found.high) - 6 == pytest.approx(12.706 * math.sqrt(5))


def test_builds_without_any_spread_are_compared_as_they_are() -> None:
    assert compare_builds([[1.0], [1.0]], [[1.0], [1.0]]).verdict is Verdict.SAME
    assert compare_builds([[1.0], [1.0]], [[1.02], [1.02]]).verdict is Verdict.SLOWER
