import importlib.util
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.support.paths import ROOT
from trtopt.measure.statistics.comparison import (
    Comparison,
    Noise,
    Ratio,
    ReasonCode,
    Verdict,
    blocks_of,
    compare,
    compare_runs,
    decide,
    in_turns,
    interval,
    noise_of,
    ratio_of_runs,
    ratio_over_loads,
)

SIMULATE = ROOT / "benchmarks" / "verdict-rates" / "simulate.py"


@pytest.fixture(scope="module")
def simulate() -> Iterator[ModuleType]:
    sys.path.insert(0, str(SIMULATE.parent))  # its siblings
    spec = importlib.util.spec_from_file_location("verdict_rates", SIMULATE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTOPT_CACHE_DIR", "")
        spec.loader.exec_module(module)
        yield module
    sys.path.remove(str(SIMULATE.parent))


def blocks(median: float, sigma: float = 0.01, count: int = 10, seed: int = 0) -> list[list[float]]:
    random = np.random.RandomState(seed)
    return (median * np.exp(sigma * random.standard_normal((count, 100)))).tolist()


def ratio(value: float, half: float, sure: float | None = None) -> Ratio:
    return Ratio.of_log(math.log(value), half, half if sure is None else sure)


def codes(comparison: Comparison) -> list[ReasonCode]:
    return [reason.code for reason in comparison.reasons]


# ── the verdict ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("found", "verdict", "code"),
    [
        (ratio(0.95, 0.02), Verdict.FASTER, ReasonCode.BEYOND_THRESHOLD),
        (ratio(1.05, 0.02), Verdict.SLOWER, ReasonCode.BEYOND_THRESHOLD),
        (ratio(1.0101, 0.01), Verdict.SLOWER, ReasonCode.BEYOND_THRESHOLD),
        (ratio(1.0, 0.005), Verdict.SAME, ReasonCode.WITHIN_THRESHOLD),
        (ratio(1.005, 0.002), Verdict.SAME, ReasonCode.REAL_BUT_SMALL),
        (ratio(1.009, 0.005), Verdict.UNDECIDED, ReasonCode.NEAR_THRESHOLD),
        (ratio(1.05, 0.06), Verdict.UNDECIDED, ReasonCode.TOO_NOISY),
        (ratio(1.0, 0.02), Verdict.UNDECIDED, ReasonCode.TOO_NOISY),
        (ratio(1.05, 0.04, 0.06), Verdict.UNDECIDED, ReasonCode.TOO_NOISY),
    ],
)
def test_a_verdict_needs_both_significance_and_the_threshold(
    found: Ratio, verdict: Verdict, code: ReasonCode
) -> None:
    comparison = decide(found, 0.01)
    assert (comparison.verdict, codes(comparison)) == (verdict, [code])


@pytest.mark.parametrize("value", [0.9, 0.95, 0.99, 1.0, 1.005, 1.01, 1.02, 1.1])
@pytest.mark.parametrize("half", [0.002, 0.02])
def test_swapping_the_sides_mirrors_the_verdict(value: float, half: float) -> None:
    mirror = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
    one, other = decide(ratio(value, half), 0.01).verdict, decide(ratio(1 / value, half), 0.01).verdict
    assert other is mirror.get(one, one)


def test_the_threshold_can_be_chosen() -> None:
    assert decide(ratio(1.03, 0.005), 0.05).verdict is Verdict.SAME
    assert decide(ratio(1.03, 0.005), 0.02).verdict is Verdict.SLOWER


def test_nothing_measured_stays_undecided() -> None:
    assert decide(None, 0.01).verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("times", "sigma", "verdict"),
    [
        (2.0, 0.01, Verdict.SLOWER),
        (0.5, 0.01, Verdict.FASTER),
        (2.0, 0.7, Verdict.UNDECIDED),
        (1.03, 0.03, Verdict.UNDECIDED),
        (1.0, 0.001, Verdict.UNDECIDED),
    ],
)
def test_a_disturbed_side_wins_and_loses_only_by_more_than_its_own_scatter(
    times: float, sigma: float, verdict: Verdict
) -> None:
    a, b = blocks(1.0, sigma), blocks(times, sigma, seed=1)
    comparison = compare(a, b, interfered=["A: 5 of 10 groups discarded"])
    assert comparison.verdict is verdict
    assert ReasonCode.DISTURBED in codes(comparison)
    calm = compare(a, b).ratio
    assert comparison.ratio is not None
    assert calm is not None
    assert comparison.ratio.low < calm.low < calm.high < comparison.ratio.high


def test_without_a_known_scatter_a_disturbance_bars_a_verdict() -> None:
    comparison = decide(ratio(2.0, 0.01), 0.01, interfered=["the device failed"])
    assert (comparison.verdict, codes(comparison)) == (Verdict.UNDECIDED, [ReasonCode.DISTURBED])


@pytest.mark.parametrize(("high", "is_within"), [(1.049, True), (1.05, False), (1.2, False)])
def test_a_slowdown_is_ruled_out_by_the_whole_interval(high: float, is_within: bool) -> None:
    found = Ratio(1.0, 0.9, high, 0.8, 1.3)
    assert Comparison(Verdict.UNDECIDED, (), found).rules_out(0.05) is is_within
    assert not Comparison(Verdict.UNDECIDED, (), None).rules_out(0.05)


def test_reasons_hold_the_measured_figures() -> None:
    comparison = decide(ratio(1.05, 0.01), 0.01)
    assert comparison.reasons[0].text == (
        "latency changes by +5.0% (+4.0% to +6.1%): significant, and at least 1.0%"
    )


# ── control ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_control_gives_the_far_end_of_its_interval_as_noise() -> None:
    noise = noise_of(decide(ratio(1.001, 0.004), 0.01))
    assert noise is not None
    assert noise.relative == pytest.approx(1.001 * math.exp(0.004) - 1)


def test_a_control_without_a_ratio_gives_no_noise() -> None:
    assert noise_of(decide(None, 0.01)) is None


def test_a_noisy_control_takes_a_verdict_away() -> None:
    noise = Noise(0.03, decide(ratio(1.0, 0.03), 0.01))
    assert decide(ratio(1.02, 0.005), 0.01).verdict is Verdict.SLOWER
    comparison = decide(ratio(1.02, 0.005), 0.01, noise)
    assert comparison.verdict is Verdict.UNDECIDED
    assert codes(comparison) == [ReasonCode.TOO_NOISY, ReasonCode.CONTROL_NOISE]
    assert comparison.ratio is not None
    assert math.log(comparison.ratio.high / comparison.ratio.value) == pytest.approx(
        math.hypot(0.005, math.log(1.03))
    )


def test_a_quiet_control_leaves_the_verdict() -> None:
    noise = Noise(0.003, decide(ratio(1.0, 0.003), 0.01))
    assert decide(ratio(1.02, 0.005), 0.01, noise).verdict is Verdict.SLOWER


def test_a_control_that_finds_a_winner_bars_any_verdict() -> None:
    noise = noise_of(decide(ratio(1.05, 0.01), 0.01))
    comparison = decide(ratio(2.0, 0.01), 0.01, noise)
    assert comparison.verdict is Verdict.UNDECIDED
    assert codes(comparison) == [ReasonCode.CONTROL_FOUND_WINNER]


# ── blocks ──────────────────────────────────────────────────────────────────────────────────────────────


def test_blocks_are_interleaved_so_that_drift_falls_on_both_sides() -> None:
    for seed in range(20):
        order = "".join("AB"[side] for side in in_turns(2, 10, seed))
        pairs = [order[start : start + 2] for start in range(0, 20, 2)]
        assert sorted(pairs) == ["AB"] * 5 + ["BA"] * 5


def test_the_order_of_blocks_is_left_to_chance_and_the_seed_tells_it() -> None:
    assert in_turns(2, 20, 7) == in_turns(2, 20, 7)
    assert len({in_turns(2, 20, seed) for seed in range(100)}) == 100
    orders = [in_turns(2, 20, seed) for seed in range(1000)]
    first = [sum(order[2 * pair] == 0 for order in orders) for pair in range(20)]
    assert 440 < min(first) <= max(first) < 560  # 16 is a standard deviation


def test_a_run_is_cut_into_twenty_equal_blocks_or_fewer_of_five_values() -> None:
    assert [len(block) for block in blocks_of(list(range(105)))] == [5] * 20
    assert [len(block) for block in blocks_of(list(range(44)))] == [5] * 8
    assert blocks_of([1.0] * 4) == []


def test_the_ratio_of_separate_runs_is_that_of_their_medians_whatever_a_few_blocks_have() -> None:
    a = [[1.0, 2.0, 3.0]] * 20
    b = [[2.0, 4.0, 6.0]] * 17 + [[200.0, 400.0, 600.0]] * 3
    assert ratio_of_runs(a, b) == Ratio(*[pytest.approx(2.0)] * 5)


def test_the_interval_of_separate_runs_holds_their_true_ratio() -> None:
    random = np.random.default_rng(3)
    values = np.exp(0.02 * random.standard_normal((300, 2, 20, 9)))
    found = [ratio_of_runs(a.tolist(), b.tolist()) for a, b in values]
    assert sum(one.low <= 1 <= one.high for one in found) >= 0.94 * len(found)
    assert sum(one.sure_low <= 1 <= one.sure_high for one in found) >= 0.985 * len(found)
    assert sum(one.high - one.low for one in found) / len(found) < 0.03  # a known mean's is 0.015


def test_drift_that_both_sides_share_does_not_hide_a_difference() -> None:
    """Latency grows by a half over the session; B is 3 % slower."""
    trend = np.linspace(1.0, 1.5, 10)
    a = [[value * t for value in block] for block, t in zip(blocks(1.0), trend, strict=True)]
    b = [[value * t for value in block] for block, t in zip(blocks(1.03, seed=1), trend, strict=True)]
    assert compare(a, b).verdict is Verdict.SLOWER
    assert compare_runs(a, b).verdict is Verdict.UNDECIDED


def test_blocks_of_separate_runs_are_not_paired() -> None:
    """What both sides felt alike cancels in pairs only: the interval of separate runs is far wider."""
    trend = np.linspace(1.0, 1.5, 10)
    a, b = (
        [[v * t for v in block] for block, t in zip(blocks(1.0, seed=s), trend, strict=True)] for s in (0, 1)
    )
    paired, apart = compare(a, b).ratio, ratio_of_runs(a, b)
    assert paired is not None
    assert paired.high - paired.low < 0.025
    assert apart.high - apart.low > 0.15


def test_spikes_on_one_side_do_not_make_it_slower() -> None:
    spiked = [[*block[:-2], 50.0, 80.0] for block in blocks(1.0, seed=1)]
    assert compare(blocks(1.0), spiked).verdict is Verdict.SAME


def test_seven_blocks_a_side_are_too_few() -> None:
    few = compare(blocks(1.0, count=7), blocks(2.0, count=7, seed=1))
    assert (few.verdict, codes(few), few.ratio) == (Verdict.UNDECIDED, [ReasonCode.TOO_FEW_BLOCKS], None)
    assert compare(blocks(1.0, count=8), blocks(2.0, count=8, seed=1)).verdict is Verdict.SLOWER


@pytest.mark.parametrize(
    ("a", "b", "code"),
    [
        ([], [], ReasonCode.TOO_FEW_BLOCKS),
        ([[1.0]] * 8, [[1.0]] * 9, ReasonCode.TOO_FEW_BLOCKS),
        ([[1.0]] * 8, [[1.0]] * 7 + [[]], ReasonCode.TOO_FEW_BLOCKS),
        ([[1.0]] * 8, [[1.0]] * 7 + [[0.0]], ReasonCode.INVALID_SAMPLES),
        ([[1.0]] * 8, [[1.0]] * 7 + [[-1.0, 2.0]], ReasonCode.INVALID_SAMPLES),
        ([[1.0]] * 8, [[1.0]] * 7 + [[1.0, math.nan]], ReasonCode.INVALID_SAMPLES),
        ([[1.0]] * 8, [[1.0]] * 7 + [[math.inf]], ReasonCode.INVALID_SAMPLES),
    ],
)
def test_blocks_that_cannot_be_compared_stay_undecided(
    a: list[list[float]], b: list[list[float]], code: ReasonCode
) -> None:
    comparison = compare(a, b)
    assert (comparison.verdict, codes(comparison), comparison.ratio) == (Verdict.UNDECIDED, [code], None)


def test_separate_runs_are_allowed_their_own_luck() -> None:
    """Two runs' luck of 1 % each: 1.96 · √2 % = 2.8 % at 95 %, 3.6 % at 99 %."""
    a = blocks(1.0, count=20)
    two, five = (compare_runs(a, blocks(median, count=20, seed=1)) for median in (1.02, 1.05))
    assert (two.verdict, five.verdict) == (Verdict.UNDECIDED, Verdict.SLOWER)
    assert codes(five) == [ReasonCode.BEYOND_THRESHOLD, ReasonCode.NOT_INTERLEAVED]
    assert five.reasons[1].text.startswith("separate runs of one engine differ: 2.8% are allowed for that")
    assert two.reasons[0].text.endswith("too noisy to tell 1.0%")  # more samples of these runs would not help
    noisy = compare([[1.0]] * 8, [[0.9]] * 4 + [[1.1]] * 4)
    assert noisy.reasons[0].text.endswith("too noisy to tell 1.0%; take more samples")


def test_pairs_that_disagree_make_no_winner() -> None:
    """B's median is 9 % above A's, but in six of twenty pairs it is A that is slower."""
    a = [[1.0] * 5] * 14 + [[1.1] * 5] * 6
    b = [[1.1] * 5] * 14 + [[1.0] * 5] * 6
    assert compare(a, b).verdict is Verdict.UNDECIDED
    assert compare([[1.0] * 5] * 20, [[1.1] * 5] * 20).verdict is Verdict.SLOWER


# ── loads ───────────────────────────────────────────────────────────────────────────────────────────────


def placed(logs: list[float], rounds: int) -> tuple[list[list[float]], list[list[float]], list[int]]:
    """Blocks of equal engines of which B is slower by that much in each load, for no reason of its own."""
    loads = [load for load in range(len(logs)) for _ in range(rounds)]
    noise = np.random.RandomState(1).standard_normal((2, len(loads), 20)) * 1e-4
    a, b = np.exp(noise[0]), np.exp(noise[1] + np.array(logs)[loads][:, None])
    return a.tolist(), b.tolist(), loads


def test_what_a_load_keeps_is_no_winner_however_many_blocks_show_it() -> None:
    """Five loads of four rounds: B was 0.4 to 2.2 % slower, as equal engines may be five times in a row."""
    a, b, loads = placed([0.02, 0.012, 0.014, 0.004, 0.022], rounds=4)
    assert compare(a, b, loads=loads).verdict is Verdict.UNDECIDED
    assert compare(a, b).verdict is Verdict.SLOWER  # were the blocks independent


def test_one_load_shows_nothing_of_how_loads_differ() -> None:
    a, b, loads = placed([0.014], rounds=20)
    found = compare(a, b, loads=loads)
    assert (found.verdict, codes(found), found.ratio) == (Verdict.UNDECIDED, [ReasonCode.TOO_FEW_LOADS], None)
    assert compare(a, b).verdict is Verdict.SLOWER  # were the blocks independent


def test_what_is_loaded_second_being_slower_cancels_between_an_order_and_its_reverse() -> None:
    a, b, loads = placed([0.016, -0.016] * 10, rounds=1)
    assert compare(a, b, loads=loads).verdict is Verdict.UNDECIDED
    found = compare(a, b, loads=loads, is_reversed=[False, True] * 10)
    assert found.verdict is Verdict.SAME
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(1.0, abs=1e-3)


def test_a_difference_beyond_that_of_places_is_found() -> None:
    a, b, loads = placed([0.05 + 0.016 * (-1) ** load for load in range(8)], rounds=2)
    found = compare(a, b, loads=loads, is_reversed=[load % 2 == 1 for load in loads])
    assert found.verdict is Verdict.SLOWER
    assert found.ratio is not None
    assert found.ratio.low == pytest.approx(math.exp(0.05), abs=1e-3)


def test_loads_that_a_neighbour_spoilt_do_not_hide_what_most_of_them_show() -> None:
    """In a third of the loads one side was 40 % slower: the median of the others is known to 1 %."""
    logs = [0.03, 0.03, 0.43, 0.03, 0.03, -0.37] * 6
    a, b, loads = placed(logs, rounds=1)
    assert compare(a, b, loads=loads).verdict is Verdict.SLOWER


@pytest.mark.parametrize("count", [4, 7, 8, 10, 20])
def test_intervals_over_loads_cover_the_truth_as_often_as_they_say(count: int) -> None:
    random = np.random.RandomState(count)
    found = [ratio_over_loads(list(0.01 * random.standard_normal(count))) for _ in range(2000)]
    missed = sum(not one.low <= 1 <= one.high for one in found) / len(found)
    surely = sum(not one.sure_low <= 1 <= one.sure_high for one in found) / len(found)
    assert 0.005 < missed < 0.065  # of few loads an exact interval covers more than it must
    assert surely < 0.017


@given(st.lists(st.integers(-4, 4), min_size=8, max_size=30))
def test_the_interval_is_of_the_shifts_that_signs_do_not_reject(differences: list[int]) -> None:
    low, high = interval(differences, 0.95)
    for shift in (low - 0.5, low + 0.5, high - 0.5, high + 0.5):
        positive = sum(one > shift for one in differences)
        one_sided = min(positive, len(differences) - positive)
        odds = 2 * sum(math.comb(len(differences), heads) for heads in range(one_sided + 1))
        assert (odds / 2 ** len(differences) > 0.05) is (low < shift < high)


def test_too_few_values_have_no_interval() -> None:
    with pytest.raises(ValueError, match="no 99% interval from 7 values"):
        interval([1.0] * 7, 0.99)


# ── known truths ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "effect", "files", "turns"),
    [
        ("quiet: σ 1 %", 0.0, {0}, {0}),
        ("quiet: σ 1 %", 0.1, {3}, {3}),
        ("AR(1) 0.99, σ 3 %", 0.05, {3, 5}, {3}),
        ("spells of 0.4 s, 30 %, 1.3 times", 0.0, {0, 5}, {0}),
        ("spells of 0.4 s, 30 %, 1.3 times", 1.0, {3}, {3}),
        ("bursts of 2 s, a third of the time, 1.4 times", 1.0, {3, 5}, {3}),
    ],
)
def test_simulated_pairs_end_with_these_exit_codes(
    simulate: ModuleType, tmp_path: Path, kind: str, effect: float, files: set[int], turns: set[int]
) -> None:
    found = [simulate.outcome_of(kind, effect, seed, tmp_path) for seed in range(3)]
    assert {one.files for one in found} <= files
    assert {one.turns for one in found} <= turns


def test_the_published_rates_keep_what_the_pages_promise(simulate: ModuleType) -> None:
    text = SIMULATE.with_name("README.md").read_text("utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    rates = {row[0]: row[1:] for row in rows}
    wrong, *found = map(float, rates["trtopt, in turns: FASTER or SLOWER"])
    assert wrong <= 1.0
    assert found[-1] == 100.0
    assert set(simulate.KINDS) <= set(rates)
    recipe = [
        tuple(map(float, cell.split(" / "))) for cell in rates["**all kinds: the recipe: files, then turns**"]
    ]
    assert recipe[0][0] <= 2.3
    assert recipe[-1] == (100.0, 0.0, 0.0)
