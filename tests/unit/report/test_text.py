import io

import msgspec
import numpy as np
import pytest
from rich.console import Console

from tests.support.examples import report
from trtopt.report.bench import bench_view


def shown(latency_ms: np.ndarray) -> str:
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
    point = msgspec.structs.replace(whole.points[0], latency=latency)
    written = io.StringIO()
    Console(width=400, file=written).print(
        bench_view(msgspec.structs.replace(whole, points=(point,))).terminal(verbose=True)
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
