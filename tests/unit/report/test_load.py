"""What the report says of loads and searches."""

import io

import msgspec
import pytest
from rich.console import Console

from tests.support.examples import report
from trtopt.records import BenchPoint, BenchReport, LoadPass, LoadSearch, RateProbe, Samples
from trtopt.report.bench import bench_view, load_lines, search_line


def load(count: int = 200, **changes: object) -> LoadPass:
    """One request every 2 ms; each waits 0.5 ms, 0.125 of them for the host, and is served in 1 ms."""
    arrival_ms = [2.0 * n for n in range(count)]
    whole = LoadPass(
        arrivals="poisson",
        rate=500.0,
        seed=7,
        contract=report().points[0].latency.contract,
        window_s=count / 500,
        arrived=count,
        most_waiting=3,
        samples=Samples(
            start_ms=[at + 0.5 for at in arrival_ms],
            end_ms=[at + 1.5 for at in arrival_ms],
            enqueue_ms=[0.1] * count,
            gpu_compute_ms=[1.0] * count,
            h2d_ms=[],
            d2h_ms=[],
            inference_stream=[0] * count,
        ),
        arrival_ms=arrival_ms,
        lag_ms=[0.125] * count,
        warmup_reason="",
        stop_reason="requests were still waiting 1 s after the arrivals' end",
        notes=("a note of the load",),
    )
    return msgspec.structs.replace(whole, **changes)


def probe(rate: float, *, kept: bool, latency_ms: float | None = 4.5) -> RateProbe:
    return RateProbe(
        rate=rate,
        requests=1500,
        latency_ms=latency_ms,
        low_ms=4.25,
        high_ms=None,
        achieved_rate=rate,
        kept=kept,
    )


def search(**changes: object) -> LoadSearch:
    whole = LoadSearch(
        goal="p99=5ms",
        arrivals="poisson",
        seed=0,
        contract=report().points[0].latency.contract,
        probes=(probe(500.0, kept=True), probe(1000.0, kept=False, latency_ms=None)),
        rate=500.0,
        again=probe(500.0, kept=True),
        last=load(),
        reason="500 requests/s keep p99=5ms, 510 do not",
    )
    return msgspec.structs.replace(whole, **changes)


def shown(**changes: object) -> str:
    whole: BenchReport = report()
    point: BenchPoint = msgspec.structs.replace(whole.points[0], **changes)
    written = io.StringIO()
    console = Console(width=100, file=written)
    console.print(bench_view(msgspec.structs.replace(whole, points=(point,))).terminal(verbose=True))
    return written.getvalue()


def test_a_load_is_a_row_of_rates_and_percentiles_with_waiting_told_from_service() -> None:
    text = shown(load=load())
    row = next(line for line in text.splitlines() if line.split()[:3] == ["8", "500", "500"])
    assert row.split() == ["8", "500", "500", "1.500", "1.500", "1.500", "0.500", "0.500", "1.000"]
    assert "one request is one query of the whole batch" in text


def test_a_percentile_of_too_few_requests_is_left_out() -> None:
    row = next(line for line in shown(load=load(50)).splitlines() if line.split()[:2] == ["8", "500"])
    assert row.split() == ["8", "500", "500", "1.500", "1.500", "–", "0.500", "–", "1.000"]


def test_how_requests_came_and_how_late_the_host_was_is_reported() -> None:
    assert load_lines(8, load()) == [
        "batch 8: 200 requests, poisson arrivals at 500/s for 0.4 s, seed 7; at most 3 were waiting",
        "batch 8: the host enqueued them late by 0.125 ms in the median and 0.125 ms at most, "
        "which is part of their latency",
    ]


def test_a_target_that_cannot_keep_up_is_named_with_both_rates() -> None:
    line = load_lines(8, load(arrived=800))[-1]
    assert line == (
        "batch 8: the target cannot keep up: 2,000 requests/s arrive, it takes 500; 600 were never served "
        "(requests were still waiting 1 s after the arrivals' end). "
        "Latency grows as long as the load lasts"
    )
    slow = load_lines(8, load(window_s=0.2, arrival_ms=[1.0 * n for n in range(200)]))[-1]
    assert "1,000 requests/s arrive, it takes 501.9. Latency" in slow


def test_a_device_that_failed_is_named_with_what_was_served() -> None:
    line = load_lines(8, load(arrived=201, failure="it fell off the bus"))[-1]
    assert line == (
        "batch 8: the device failed (it fell off the bus): the figures are of the 200 requests served by then"
    )


def test_a_search_shows_every_probe_and_its_outcome() -> None:
    text = shown(load_search=search())
    assert "batch 8: rates tried for p99=5ms, poisson arrivals, seed 0" in " ".join(text.split())
    rows = [line.split() for line in text.splitlines()]
    assert ["500", "1,500", "4.500", "4.250", "to", "?", "500", "yes"] in rows
    assert ["1,000", "1,500", "–", "–", "1,000", "no"] in rows


@pytest.mark.parametrize(("kept", "outcome"), [(True, "also meets it"), (False, "choose a lower rate")])
def test_the_outcome_of_a_search_has_its_uncertainty(kept: bool, outcome: str) -> None:
    line = search_line(8, search(again=probe(500.0, kept=kept)))
    assert line.startswith(
        "batch 8: 500 requests/s keep p99=5ms, 510 do not; with other arrivals p99 is 4.500 ms"
    )
    assert "(95 %: 4.250 to ?)" in line
    assert outcome in line


def test_evenly_spaced_arrivals_are_no_others_the_second_time() -> None:
    assert "; once more p99 is 4.500 ms" in search_line(8, search(arrivals="constant"))


def test_a_search_without_a_probe_is_its_reason_alone() -> None:
    reason = "p99=5ms is out of reach: p99 is 6.000 ms with one query at a time"
    lost = search(probes=(), rate=None, again=None, last=None, reason=reason)
    assert search_line(8, lost) == f"batch 8: {reason}"
    text = shown(load_search=lost)
    assert "is out of reach" in text
    assert "rates tried" not in text


def test_whose_clock_timed_the_stages_is_told_as_it_is() -> None:
    whole = report()
    device = msgspec.structs.replace(whole.environment.device, kind="cpu")
    environment = msgspec.structs.replace(whole.environment, device=device)
    told = []
    for each in (whole, msgspec.structs.replace(whole, environment=environment)):
        written = io.StringIO()
        Console(width=400, file=written).print(bench_view(each).terminal(verbose=True))
        told.append(written.getvalue())
    assert "medians of device events" in told[0]
    assert "medians by the host's clock" in told[1]
    assert "device events" not in told[1]
