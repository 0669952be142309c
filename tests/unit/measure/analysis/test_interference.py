import numpy as np
import pytest

from trtopt.measure.analysis.interference import Modes, drift, evaluate_groups, two_modes
from trtopt.records import ClockReading


def readings(*clocks: int | None, throttle: dict[int, tuple[str, ...]] | None = None) -> list[ClockReading]:
    reasons = throttle or {}
    return [
        ClockReading(at_ms=100.0 * index, sm_mhz=mhz, throttle=reasons.get(index, ()))
        for index, mhz in enumerate(clocks)
    ]


def noise(sigma: float, count: int, seed: int = 0) -> np.ndarray:
    return np.exp(sigma * np.random.RandomState(seed).standard_normal(count))


# ── groups ──────────────────────────────────────────────────────────────────────────────────────────────


def test_groups_at_full_clock_are_all_kept() -> None:
    found = evaluate_groups(readings(1980, 1980, 1965, 1980), 1980)
    assert [bool(reasons) for reasons in found.groups] == [False, False, False]
    assert (found.clocks_known, found.untrustworthy, found.text) == (True, False, "")


def test_a_clock_under_three_quarters_condemns_the_groups_on_both_sides_of_the_reading() -> None:
    found = evaluate_groups(readings(1980, 1980, 1484, 1980, 1980, 1980), 1980)
    assert [bool(reasons) for reasons in found.groups] == [False, True, True, False, False]
    assert found.groups[1] == ("SM clock under 75% of 1980 MHz",)


def test_a_clock_of_exactly_three_quarters_is_kept() -> None:
    assert evaluate_groups(readings(1980, 1485, 1980), 1980).discarded == []


@pytest.mark.parametrize(
    "reason", ["hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"]
)
def test_a_slowdown_condemns_a_group_at_any_clock(reason: str) -> None:
    found = evaluate_groups(readings(1980, 1980, throttle={1: (reason,)}), 1980)
    assert found.groups[0] == (reason.replace("_", " "),)


@pytest.mark.parametrize("reason", ["sw_power_cap", "gpu_idle", "applications_clocks_setting", "sync_boost"])
def test_other_throttle_reasons_condemn_nothing_by_themselves(reason: str) -> None:
    assert evaluate_groups(readings(1980, 1980, throttle={1: (reason,)}), 1980).discarded == []


def test_a_power_cap_that_costs_more_than_a_quarter_of_the_clock_condemns_by_the_clock() -> None:
    throttle: dict[int, tuple[str, ...]] = {1: ("sw_power_cap",)}
    assert evaluate_groups(readings(1980, 1400, throttle=throttle), 1980).discarded == [0]


def test_the_low_clock_of_an_idle_gpu_says_nothing_of_its_groups() -> None:
    found = evaluate_groups(readings(345, 1980, 345, throttle={0: ("gpu_idle",), 2: ("gpu_idle",)}), 1980)
    assert found.discarded == []


def test_a_run_that_lost_more_than_a_fifth_of_its_groups_is_untrustworthy() -> None:
    """A reading at either end touches one group."""
    one_of_five = evaluate_groups(readings(1000, *[1980] * 5), 1980)
    two_of_nine = evaluate_groups(readings(1000, *[1980] * 8, 1000), 1980)
    assert (len(one_of_five.discarded), one_of_five.untrustworthy) == (1, False)
    assert (len(two_of_nine.discarded), two_of_nine.untrustworthy) == (2, True)
    assert two_of_nine.text == ("2 of 9 groups of samples discarded: SM clock under 75% of 1980 MHz (2)")


def test_a_throttled_run_is_untrustworthy() -> None:
    throttle = dict.fromkeys(range(3, 10), ("sw_thermal_slowdown",))
    found = evaluate_groups(readings(*[1980] * 3, *[1300] * 7, throttle=throttle), 1980)
    assert (len(found.discarded), found.untrustworthy) == (7, True)


def test_without_nvml_the_clocks_are_unknown_and_nothing_is_discarded() -> None:
    for found in (evaluate_groups([], 1980), evaluate_groups(readings(None, None, None), 1980)):
        assert (found.clocks_known, found.discarded, found.untrustworthy) == (False, [], False)
        assert found.text == "clocks are unknown: nothing could be discarded"


def test_without_an_application_clock_only_slowdowns_condemn() -> None:
    found = evaluate_groups(readings(500, 500, 500, throttle={2: ("hw_slowdown",)}), None)
    assert [bool(reasons) for reasons in found.groups] == [False, True]


# ── drift ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_steady_run_does_not_drift() -> None:
    found = drift(noise(0.03, 2000))
    assert found is not None
    assert not found.notable


def test_a_drifting_run_is_found_with_its_amount() -> None:
    found = drift(noise(0.01, 2000) * np.linspace(1, 1.05, 2000))
    assert found is not None
    assert found.notable
    assert found.relative == pytest.approx(0.05 / 1.025, rel=0.1)


def test_a_run_that_speeds_up_drifts_downwards() -> None:
    found = drift(noise(0.01, 2000) * np.linspace(1.05, 1, 2000))
    assert found is not None
    assert found.notable
    assert found.relative < -0.04


def test_a_drift_of_a_half_percent_is_significant_and_not_notable() -> None:
    found = drift(noise(0.001, 2000) * np.linspace(1, 1.005, 2000))
    assert found is not None
    assert (found.significant, found.notable) == (True, False)


def test_spikes_at_the_end_are_no_drift() -> None:
    values = np.ones(2000)
    values[-30:] = 20
    found = drift(values)
    assert found is not None
    assert (found.relative, found.significant) == (0.0, False)


def test_steady_noise_seldom_seems_to_drift() -> None:
    found = [drift(noise(0.1, 200, seed)) for seed in range(1000)]
    assert sum(one is not None and one.significant for one in found) == 9


def test_nineteen_values_tell_no_drift() -> None:
    assert drift([1.0] * 19) is None
    assert drift([1.0] * 20) is not None


# ── modes ───────────────────────────────────────────────────────────────────────────────────────────────


def test_two_clock_levels_are_two_modes() -> None:
    upper = np.random.RandomState(1).random_sample(2000) < 0.3
    found = two_modes(noise(0.005, 2000) * np.where(upper, 1.1, 1.0))
    assert found == Modes(
        pytest.approx(1.0, abs=0.003), pytest.approx(1.1, abs=0.003), pytest.approx(upper.mean(), abs=0.02)
    )


def shapes(count: int, seed: int) -> dict[str, np.ndarray]:
    random = np.random.RandomState(seed)
    return {
        "log-normal": np.exp(0.05 * random.standard_normal(count)),
        "long tail": np.exp(0.3 * random.standard_normal(count)),
        "exponential": 1 + 0.1 * random.standard_exponential(count),
        "uniform": 1 + random.random_sample(count),
        "coarse clock": np.round(50 + random.standard_normal(count)) / 50,
        "spikes": np.where(random.random_sample(count) < 0.05, 3.0, 1.0) * noise(0.02, count, seed),
        "constant": np.ones(count),
    }


@pytest.mark.parametrize("shape", list(shapes(1, 0)))
def test_one_mode_is_not_taken_for_two(shape: str) -> None:
    found = [two_modes(shapes(500, seed)[shape]) for seed in range(50)]
    assert found == [None] * 50


def test_modes_closer_than_two_percent_do_not_matter() -> None:
    apart = [two_modes(noise(0.001, 1000) * np.where(np.arange(1000) % 2, gap, 1.0)) for gap in (1.015, 1.03)]
    assert apart[0] is None
    assert apart[1] is not None


def test_ninety_nine_values_tell_no_modes() -> None:
    values = noise(0.01, 100) * np.where(np.arange(100) % 2, 2.0, 1.0)
    assert two_modes(values[:99]) is None
    assert two_modes(values) is not None
