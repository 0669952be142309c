import io
import re

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import floats, lists
from rich.console import Console

from tests.support.examples import report
from trtopt.records import BenchPoint, BenchReport
from trtopt.report.bench import bench_view
from trtopt.report.view import Chart


def measured(latency_ms: np.ndarray) -> BenchPoint:
    whole = report()
    ends = np.cumsum(latency_ms)
    samples = msgspec.structs.replace(
        whole.points[0].latency.samples,
        start_ms=(ends - latency_ms).tolist(),
        end_ms=ends.tolist(),
        inference_stream=[0] * len(ends),
        group=[],
    )
    latency = msgspec.structs.replace(whole.points[0].latency, samples=samples)
    return BenchPoint(batch=whole.points[0].batch, latency=latency)


def reported(*points: BenchPoint) -> BenchReport:
    found: BenchReport = msgspec.structs.replace(report(), points=points)
    device = msgspec.structs.replace(found.environment.device, kind="cpu")
    return msgspec.structs.replace(
        found, environment=msgspec.structs.replace(found.environment, device=device)
    )


def shown(latency_ms: np.ndarray, *, width: int = 400) -> str:
    written = io.StringIO()
    Console(width=width, file=written).print(
        bench_view(reported(measured(latency_ms))).terminal(verbose=True)
    )
    return written.getvalue()


@pytest.mark.parametrize(
    ("trend", "told"),
    [
        (0.0, ("p50 known to ±0.", "p99 known to ±0.")),
        (0.1, ("p50 of 3000 queries, too few for their noise", "p99 of 3000 queries, too few")),
    ],
)
def test_a_verbose_summary_says_how_well_p50_and_p99_are_known(trend: float, told: tuple[str, ...]) -> None:
    noise = np.exp(0.01 * np.random.RandomState(0).standard_normal(3000))
    page = shown(noise * (1 + np.linspace(0, trend, 3000)))
    assert all(text in page for text in told)


STEADY = 1 + 0.001 * np.random.RandomState(0).standard_normal(3000)
TWO_MODES = np.where(np.random.RandomState(1).uniform(size=3000) < 0.4, 1.3 * STEADY, STEADY)
LONG_TAIL = np.where(np.random.RandomState(1).uniform(size=3000) < 0.03, 4 * STEADY, STEADY)
BARS = re.compile("[▁▂▃▄▅▆▇█]+")


def test_an_unsteady_row_shows_its_latencies_in_one_cell_and_a_steady_one_does_not() -> None:
    assert not BARS.search(shown(STEADY))
    ((two,), (tail,)) = (BARS.findall(shown(values, width=80)) for values in (TWO_MODES, LONG_TAIL))
    assert re.fullmatch("█▁{5}[▂-▇]", two)
    assert tail[-1] == "▂"  # 3 % of the queries are as visible as they are few


def test_a_page_opens_the_histograms_of_unsteady_rows_alone() -> None:
    found = reported(measured(STEADY), measured(TWO_MODES))
    histograms = [block for block in bench_view(found).page() if isinstance(block, Chart) and block.is_small]
    assert [one.is_folded for one in histograms] == [True, False]
    (alone,) = (block for block in bench_view(reported(measured(STEADY))).page() if isinstance(block, Chart))
    assert not alone.is_folded


@given(
    lists(floats(1e-6, 1e6), min_size=1, max_size=300).map(np.asarray)
    | floats(1e-6, 1e6).map(lambda value: np.full(100, value))
)
def test_bars_are_of_any_latencies(latency_ms: np.ndarray) -> None:
    found = BARS.findall(shown(latency_ms))
    assert all(len(bars) == 7 and "█" in bars for bars in found)
