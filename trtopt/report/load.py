"""Loads and rate searches as tables, each with its remarks."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from trtopt.measure.analysis.findings import loads_of
from trtopt.measure.load.arrivals import achieved_rate, keeps_up, offered_rate
from trtopt.measure.statistics.summaries import percentile, summarise
from trtopt.records import BenchPoint, LoadPass, LoadSearch
from trtopt.report.tables import plain_table, shown, titled

_LOAD_COLUMNS = (
    *("batch", "offered/s", "achieved/s", "p50 ms", "p95 ms", "p99 ms"),
    *("wait p50", "wait p99", "serve p50"),
)


def load_parts(points: Sequence[BenchPoint], *, verbose: bool = False) -> list[RenderableType]:
    """Searches first, then one row per load; remarks where verbose. Empty without loads."""
    parts: list[RenderableType] = []
    for point in points:
        search = point.load_search
        if search is not None:
            parts += [_search_table(point.batch, search)] if search.probes else []
            parts.append(Text(search_line(point.batch, search)))
    loads = [(point.batch, load) for point in points for load in loads_of(point)]
    if loads:
        parts.append(_load_table(loads, verbose=verbose))
    if verbose:
        parts += [Text(line) for batch, load in loads for line in load_lines(batch, load)]
    return parts


def _load_table(loads: Sequence[tuple[int, LoadPass]], *, verbose: bool) -> RenderableType:
    title = "under load: one request is one query of the whole batch"
    caption = "p50 to p99: from the planned arrival to the output; wait: until enqueued; serve: from then on"
    table = plain_table(*_LOAD_COLUMNS)
    table.padding = (0, 1, 0, 0)
    for batch, load in loads:
        table.add_row(
            str(batch),
            _rate(offered_rate(load)),
            _rate(achieved_rate(load)),
            *(shown(percentile(load.latency_ms, p), ".3f") for p in (50, 95, 99)),
            *(shown(percentile(load.waiting_ms, p), ".3f") for p in (50, 99)),
            shown(percentile(load.service_ms, 50), ".3f"),
        )
    return titled(title, table, caption if verbose else "")


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def load_lines(batch: int, load: LoadPass) -> list[str]:
    """Remarks on a load: how requests arrived, how late the host was, whether the target kept up."""
    served, lag = len(load.samples.start_ms), summarise(load.lag_ms)
    seed = f", seed {load.seed}" if load.arrivals == "poisson" else ""
    lines = [
        f"{load.arrived:,} requests, {load.arrivals} arrivals at {load.rate:g}/s for {load.window_s:.3g} s"
        f"{seed}; at most {load.most_waiting:,} were waiting",
        f"the host enqueued them late by {lag.median:.3f} ms in the median and {lag.maximum:.3f} ms at "
        "most, which is part of their latency",
    ]
    lines += load.untrustworthy
    if load.failure is not None:
        lines.append(
            f"the device failed ({load.failure}): the figures are of the {served:,} requests served by then"
        )
    elif not keeps_up(load):
        offered, achieved = _rate(offered_rate(load)), _rate(achieved_rate(load))
        text = f"the target cannot keep up: {offered} requests/s arrive, it takes {achieved}"
        if served < load.arrived:
            text += f"; {load.arrived - served:,} were never served ({load.stop_reason})"
        lines.append(f"{text}. Latency grows as long as the load lasts")
    return [f"batch {batch}: {line}" for line in lines]


def _search_table(batch: int, search: LoadSearch) -> RenderableType:
    seed = f", seed {search.seed}" if search.arrivals == "poisson" else ""
    title = f"batch {batch}: rates tried for {search.goal}, {search.arrivals} arrivals{seed}"
    is_slowed = any(probe.untrustworthy for probe in search.probes)
    caption = "a rate that certainly misses it is stopped early" + (
        "; !: the device was slowed" if is_slowed else ""
    )
    goal = search.goal.partition("=")[0]
    table = plain_table("rate/s", "requests", f"{goal} ms", "95 % interval", "achieved/s", "met")
    for probe in search.probes:
        is_measured = probe.latency_ms is not None
        table.add_row(
            _rate(probe.rate),
            f"{probe.requests:,}",
            _bound(probe.latency_ms) if is_measured else "–",
            f"{_bound(probe.low_ms)} to {_bound(probe.high_ms)}" if is_measured else "–",
            _rate(probe.achieved_rate),
            ("yes" if probe.kept else "no") + ("!" if probe.untrustworthy else ""),
        )
    return titled(title, table, caption)


def _bound(value: float | None) -> str:
    return "?" if value is None else f"{value:.3f}"


def search_line(batch: int, search: LoadSearch) -> str:
    """The outcome with its uncertainty, and whether a run with other arrivals confirms it."""
    line, again = f"batch {batch}: {search.reason}", search.again
    if again is None or again.latency_ms is None:
        return line
    interval = f"95 %: {_bound(again.low_ms)} to {_bound(again.high_ms)}"
    outcome = "which also meets it" if again.kept else "which misses it: choose a lower rate"
    name = search.goal.partition("=")[0]
    repeat = "with other arrivals" if search.arrivals == "poisson" else "once more"
    return f"{line}; {repeat} {name} is {again.latency_ms:.3f} ms ({interval}), {outcome}"
