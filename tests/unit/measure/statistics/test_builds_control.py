"""A/A controls: no winner, and how far equal sides are apart."""

import math
from collections import Counter

import numpy as np
import pytest

from tests.support import examples
from trtopt.measure.statistics.builds import Control, noise_of_controls, run_spread
from trtopt.measure.statistics.comparison import (
    Ratio,
    ReasonCode,
    Verdict,
    allowed_between_runs,
    compare,
    compare_runs,
    decide,
    noise_of,
)
from trtopt.measure.statistics.intervals import student

Blocks = list[list[float]]


def pairs(count: int, luck: float, seed: int, bias: float = 0.0) -> list[tuple[Blocks, Blocks]]:
    """A/A pairs of 20 blocks a side; each process draws the placement of its sides anew."""
    random = np.random.RandomState(seed)
    found = []
    for _ in range(count):
        sides = np.exp(0.003 * random.standard_normal((2, 20, 30)))
        sides *= np.exp(luck * random.standard_normal((2, 1, 1)))
        sides[1] *= 1 + bias
        found.append((sides[0].tolist(), sides[1].tolist()))
    return found


def control_of(found: list[tuple[Blocks, Blocks]]) -> Control:
    comparisons = tuple(compare(a, b, loads=range(20)) for a, b in found)
    return Control(comparisons, noise_of_controls(comparisons))


def of_ratio(value: float) -> Ratio:
    return Ratio.of_log(math.log(value), 0.001, 0.002)


def test_a_quiet_machine_finds_no_winner_and_says_how_quiet_it_is() -> None:
    control = control_of(pairs(20, luck=0.0, seed=1))
    assert control.count(Verdict.SAME) == 20
    assert control.noise is not None
    assert control.noise.relative < 0.001
    assert control.noise.control.verdict is Verdict.SAME


def test_the_noise_is_what_the_processes_drew() -> None:
    """Two sides with a luck of 1 % each differ by √2 %, at 95 % by t(400) · √2 %."""
    control = control_of(pairs(400, luck=0.01, seed=2))
    assert control.noise is not None
    assert math.log1p(control.noise.relative) == pytest.approx(student(400) * math.sqrt(2) * 0.01, rel=0.1)
    assert control.count(Verdict.FASTER) + control.count(Verdict.SLOWER) > 100


def test_noise_from_known_ratios() -> None:
    """Log ratios ±0.01: √(Σr²/2) = 0.01, t(2) = 4.303."""
    controls = [decide(of_ratio(math.exp(0.01)), 0.02), decide(of_ratio(math.exp(-0.01)), 0.02)]
    noise = noise_of_controls(controls, threshold=0.02)
    assert noise is not None
    assert noise.relative == pytest.approx(math.expm1(4.303 * 0.01), rel=1e-6)


def test_what_a_process_draws_is_allowed_for_in_the_verdict() -> None:
    control = control_of(pairs(20, luck=0.01, seed=3))
    wins = Counter(compare(a, b, noise=control.noise).verdict for a, b in pairs(100, luck=0.01, seed=4))
    assert wins[Verdict.FASTER] + wins[Verdict.SLOWER] <= 5
    assert compare(*pairs(1, luck=0.01, seed=5, bias=0.1)[0], noise=control.noise).verdict is Verdict.SLOWER


def test_a_side_that_wins_on_average_bars_every_verdict() -> None:
    control = control_of(pairs(20, luck=0.001, seed=6, bias=0.03))
    assert control.noise is not None
    assert control.noise.control.verdict is Verdict.SLOWER
    found = compare(*pairs(1, luck=0.0, seed=7, bias=0.3)[0], noise=control.noise)
    assert found.verdict is Verdict.UNDECIDED
    assert ReasonCode.CONTROL_FOUND_WINNER in {reason.code for reason in found.reasons}


def test_one_control_is_as_noisy_as_its_own_interval() -> None:
    single = control_of(pairs(1, luck=0.0, seed=8))
    assert single.noise == noise_of(single.comparisons[0])


def test_too_few_blocks_tell_no_noise() -> None:
    assert noise_of_controls([compare([[1.0]] * 3, [[1.0]] * 3, loads=range(3))]) is None


# ── between separate runs ───────────────────────────────────────────────────────────────────────────────


def test_runs_that_differ_by_two_percent_either_way_have_that_spread() -> None:
    found = run_spread([[[ms, ms] for ms in (1.02, 1 / 1.02, 1.02, 1 / 1.02)]])
    assert found is not None
    assert found == (pytest.approx(math.log(1.02) * math.sqrt(4 / 3)), 4)


def test_a_separate_run_is_one_load_and_differs_as_loads_do() -> None:
    """Four processes alike, whose loads differ by 2 % either way: so would runs of one load each."""
    found = run_spread([[[1.02, 1 / 1.02] * 5] * 4])
    assert found is not None
    assert found[0] == pytest.approx(math.log(1.02), rel=0.1)


def test_batch_sizes_share_their_spread_but_not_their_level() -> None:
    calm, wild = [[1.0, 1.0]] * 4, [[ms, ms] for ms in (10.2, 10 / 1.02, 10.2, 10 / 1.02)]
    both, alone = run_spread([calm, wild]), run_spread([wild])
    assert both is not None
    assert alone is not None
    assert both[0] == pytest.approx(alone[0] / math.sqrt(2))


def test_three_runs_do_not_show_how_much_runs_differ() -> None:
    assert run_spread([[[1.0, 1.0], [1.1, 1.1], [1.2, 1.2]]]) is None
    assert run_spread([]) is None


def test_few_runs_allow_for_more_than_many_with_the_same_spread() -> None:
    few, many = (allowed_between_runs(examples.run_spread(0.01, runs)) for runs in (4, 40))
    assert few > many > allowed_between_runs(None)
    assert allowed_between_runs(None) == pytest.approx(math.expm1(1.96 * math.sqrt(2) * 0.01), rel=1e-3)


def test_separate_runs_are_judged_by_their_own_device_and_say_by_which() -> None:
    a = [[1.0, 1.001, 0.999, 1.0, 1.0]] * 20
    b = [[0.97 * value for value in block] for block in a]
    default = compare_runs(a, b)
    calm = compare_runs(a, b, run_spread=examples.run_spread(0.002, 20))
    wild = compare_runs(a, b, run_spread=examples.run_spread(0.05, 20))
    assert calm.verdict is Verdict.FASTER
    assert wild.verdict is Verdict.UNDECIDED
    assert "measured on this device in 20 runs" in calm.reasons[-1].text
    assert (
        "this device's own is measured by `trtopt compare ENGINES --control 10`" in default.reasons[-1].text
    )
