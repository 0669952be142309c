"""Result files whose passes are marked: they win by much or not at all; without samples they are refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.support import examples
from tests.support.histories import latency as with_latency
from tests.support.interleaved_runs import block
from trtopt.errors import ArtifactError
from trtopt.measure.analysis.outcomes import compare_reports
from trtopt.records import BenchReport, ClockReading, KernelLaunch, KernelPass, Measurement, to_json
from trtopt.workflows.compare.result_files import read_result

HOT = "too hot"


def report(latency_ms: float, untrustworthy: tuple[str, ...] = ()) -> BenchReport:
    """A result file whose one pass had a hundred queries of one latency."""
    taken = msgspec.structs.replace(
        examples.measurement(), samples=block([latency_ms] * 100), untrustworthy=untrustworthy, failure=None
    )
    point = msgspec.structs.replace(examples.report().points[0], latency=taken, throughput=None)
    point = msgspec.structs.replace(point, failure=None)
    return msgspec.structs.replace(examples.report(), points=(point,))


def verdict(a: BenchReport, b: BenchReport) -> tuple[str, list[str]]:
    (row,) = compare_reports(a, b, threshold=0.01, force=False).rows
    return row.comparison.verdict.value, [reason.text for reason in row.comparison.reasons]


@pytest.mark.parametrize(
    ("latency_ms", "winner"),
    [(0.5, "FASTER"), (0.97, "UNDECIDED"), (1.0, "UNDECIDED"), (1.03, "UNDECIDED"), (2.0, "SLOWER")],
)
def test_a_side_that_is_not_to_be_trusted_differs_by_much_or_gets_no_verdict(
    latency_ms: float, winner: str
) -> None:
    for side, marks in (("A", ((HOT,), ())), ("B", ((), (HOT,)))):
        found, reasons = verdict(report(1.0, marks[0]), report(latency_ms, marks[1]))
        assert found == winner
        assert f"{side} is marked as not to be trusted: {HOT}" in reasons


def test_nothing_passes_that_is_held_against_a_side_which_was_slowed_down_or_failed() -> None:
    whole, faster = report(1.0), report(0.9)
    failed = msgspec.structs.replace(
        faster, points=(msgspec.structs.replace(faster.points[0], failure="lost the device"),)
    )
    assert not compare_reports(whole, faster, threshold=0.01, force=False).not_shown
    for a, b in ((report(1.0, (HOT,)), faster), (whole, report(0.9, (HOT,))), (whole, failed)):
        compared = compare_reports(a, b, threshold=0.01, force=False)
        assert [compared.speed(row) for row in compared.not_shown] == ["untrustworthy"]


@pytest.mark.parametrize(
    ("a_mhz", "throttle", "shown"),
    [(1980, (), True), (1920, (), True), (1500, (), False), (1500, ("sw_power_cap",), True)],
)
def test_a_baseline_at_a_lower_clock_hides_no_slowdown(
    a_mhz: int, throttle: tuple[str, ...], shown: bool
) -> None:
    """Unless its own load lowers it."""
    a, b = (
        with_latency(report(ms), clocks=(ClockReading(at_ms=0.0, sm_mhz=mhz, throttle=why),))
        for ms, mhz, why in ((1.0, a_mhz, throttle), (0.9, 1980, ()))
    )
    assert (not compare_reports(a, b, threshold=0.01, force=False).not_shown) is shown


def waving(median_ms: float, *, spread: float = 0.0, drift: float = 0.0, apart: float = 0.0) -> BenchReport:
    """A run on a CPU of 400 queries; spread, drift and gap between two modes are relative to the median."""
    noise = np.random.RandomState(0).standard_normal(400) * (spread or 0.001)
    at = np.arange(400)
    ms = median_ms * (1 + noise + drift * at / 400 + apart * (at % 2))
    whole = report(1.0)
    taken = block(ms.tolist())
    latency = msgspec.structs.replace(whole.points[0].latency, samples=taken, staged=taken)
    point = msgspec.structs.replace(whole.points[0], latency=latency)
    device = msgspec.structs.replace(whole.environment.device, kind="cpu")
    environment = msgspec.structs.replace(whole.environment, device=device)
    return msgspec.structs.replace(whole, points=(point,), environment=environment)


@pytest.mark.parametrize(
    ("flaw", "word"),
    [
        ({"spread": 0.07}, "unstable: the coefficient of variation is 6."),
        ({"drift": 0.05}, "latency drifted by"),
        ({"apart": 0.04}, "latency has two modes"),
    ],
)
def test_an_unsteady_run_must_differ_by_more_than_its_own_scatter(flaw: dict[str, float], word: str) -> None:
    assert verdict(waving(1.0), waving(1.06))[0] == "SLOWER"
    assert verdict(waving(1.0, **flaw), waving(1.06))[0] == "UNDECIDED"
    for a, b, side in ((waving(1.0, **flaw), waving(1.06), "A"), (waving(1.0), waving(1.06, **flaw), "B")):
        _, reasons = verdict(a, b)
        assert any(f"{side} is marked as not to be trusted: {word}" in reason for reason in reasons)
    assert verdict(waving(1.0, **flaw), waving(3.0, **flaw))[0] == "SLOWER"


def test_a_file_whose_samples_were_all_discarded_is_refused_with_the_reason(tmp_path: Path) -> None:
    empty = msgspec.structs.replace(block([]), gpu_compute_ms=[])
    whole = report(1.0)
    lost: Measurement = msgspec.structs.replace(whole.points[0].latency, mode="latency", samples=empty)
    point = msgspec.structs.replace(whole.points[0], latency=lost)
    file = tmp_path / "lost.json"
    file.write_bytes(to_json(msgspec.structs.replace(whole, points=(point,))))
    with pytest.raises(ArtifactError) as caught:
        read_result(file)
    assert "batch 8: all 2 samples of its latency pass were discarded (hw slowdown)" in caught.value.problem
    assert "measure again" in caught.value.remedy


@pytest.mark.parametrize(("start_ms", "ms"), [([0.0, 0.0], [1.0]), ([], [])])
def test_kernels_whose_columns_do_not_fit_together_are_refused(
    tmp_path: Path, start_ms: list[float], ms: list[float]
) -> None:
    whole, launch = report(1.0), KernelLaunch(kind="kernel", name="k", start_ms=start_ms, ms=ms)
    kernels = KernelPass(runs=1, launches=(launch,))
    point = msgspec.structs.replace(whole.points[0], kernels=kernels)
    file = tmp_path / "kernels.json"
    file.write_bytes(to_json(msgspec.structs.replace(whole, points=(point,))))
    with pytest.raises(ArtifactError, match="columns of kernels are empty or of unlike length"):
        read_result(file)
