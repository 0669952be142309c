"""A/A controls: no winner, and how far equal sides are apart."""

import math
from collections import Counter

import numpy as np
import pytest

from trtopt.measure.statistics.comparison import Ratio, ReasonCode, Verdict, compare, decide, noise_of
from trtopt.measure.statistics.control import Pair, evaluate_control, noise_of_controls
from trtopt.measure.statistics.intervals import student


def pairs(count: int, luck: float, seed: int, bias: float = 0.0) -> list[Pair]:
    """A/A pairs of 20 blocks a side; each process draws the placement of its sides anew."""
    random = np.random.RandomState(seed)
    found = []
    for _ in range(count):
        sides = np.exp(0.003 * random.standard_normal((2, 20, 30)))
        sides *= np.exp(luck * random.standard_normal((2, 1, 1)))
        sides[1] *= 1 + bias
        found.append((sides[0].tolist(), sides[1].tolist()))
    return found


def of_ratio(value: float) -> Ratio:
    return Ratio.of_log(math.log(value), 0.001, 0.002)


def test_a_quiet_machine_finds_no_winner_and_says_how_quiet_it_is() -> None:
    control = evaluate_control(pairs(20, luck=0.0, seed=1))
    assert control.count(Verdict.SAME) == 20
    assert control.noise is not None
    assert control.noise.relative < 0.001
    assert control.noise.control.verdict is Verdict.SAME


def test_the_noise_is_what_the_processes_drew() -> None:
    """Two sides with a luck of 1 % each differ by √2 %, at 95 % by t(400) · √2 %."""
    control = evaluate_control(pairs(400, luck=0.01, seed=2))
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
    control = evaluate_control(pairs(20, luck=0.01, seed=3))
    wins = Counter(compare(a, b, noise=control.noise).verdict for a, b in pairs(100, luck=0.01, seed=4))
    assert wins[Verdict.FASTER] + wins[Verdict.SLOWER] <= 5
    assert compare(*pairs(1, luck=0.01, seed=5, bias=0.1)[0], noise=control.noise).verdict is Verdict.SLOWER


def test_a_side_that_wins_on_average_bars_every_verdict() -> None:
    control = evaluate_control(pairs(20, luck=0.001, seed=6, bias=0.03))
    assert control.noise is not None
    assert control.noise.control.verdict is Verdict.SLOWER
    found = compare(*pairs(1, luck=0.0, seed=7, bias=0.3)[0], noise=control.noise)
    assert found.verdict is Verdict.UNDECIDED
    assert ReasonCode.CONTROL_FOUND_WINNER in {reason.code for reason in found.reasons}


def test_one_control_is_as_noisy_as_its_own_interval() -> None:
    single = evaluate_control(pairs(1, luck=0.0, seed=8))
    assert single.noise == noise_of(single.comparisons[0])


def test_too_few_blocks_tell_no_noise() -> None:
    control = evaluate_control([([[1.0]] * 3, [[1.0]] * 3)])
    assert control.noise is None
    assert control.count(Verdict.UNDECIDED) == 1
