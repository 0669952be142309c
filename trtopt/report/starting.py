"""Cold starts and latencies after a pause, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rich.console import RenderableType
from rich.text import Text

from trtopt.records import BenchPoint, ColdStarts, IdlePass
from trtopt.records.bench import FIRST_INFERENCE, SECOND_INFERENCE, START_PHASES
from trtopt.report.tables import plain_table, titled

_MIB = 2**20
_LAZY_SHARE = 0.1
"""Of the time to the first output, from which on late loading of kernels is worth a line."""


def starting_parts(points: Sequence[BenchPoint], *, verbose: bool = False) -> list[RenderableType]:
    """A table for each point with cold starts, then one for each with an idle pass."""
    parts: list[RenderableType] = []
    for point in points:
        if point.cold_start is not None and point.cold_start.starts:
            parts.append(_cold_start_table(point.batch, point.cold_start, verbose=verbose))
            parts += [Text(line) for line in cold_start_lines(point.batch, point.cold_start)]
        if point.idle is not None:
            parts.append(_idle_table(point.batch, point.idle, verbose=verbose))
    return parts


def _cold_start_table(batch: int, cold: ColdStarts, *, verbose: bool) -> RenderableType:
    title = (
        f"batch {batch}: start in a fresh process, medians in ms; "
        f"the engine is {cold.engine_bytes / _MIB:.2f} MiB"
    )
    caption = (
        "process start: Python and trtopt; the page cache held all libraries, the engine's file where warm"
    )
    table = plain_table()
    table.add_column("phase")
    states = list(dict.fromkeys(start.page_cache for start in cold.starts))
    by_state = {state: [one for one in cold.starts if one.page_cache == state] for state in states}
    for state in states:
        table.add_column(f"{state} page cache ({len(by_state[state])} starts)", justify="right")
    for phase in START_PHASES:
        if any(phase in start.ms for start in cold.starts):
            table.add_row(phase, *(_median([one.ms[phase] for one in by_state[state]]) for state in states))
    firsts = ([one.first_result_ms for one in by_state[state]] for state in states)
    table.add_row("to the first output", *map(_median, firsts))
    return titled(title, table, caption if verbose else "")


def _median(values: Sequence[float]) -> str:
    return f"{median(values):.2f}"


def cold_start_lines(batch: int, cold: ColdStarts) -> list[str]:
    """What was not measured, and the setting that the first inference depends on where that matters."""
    lines = [f"batch {batch}: {note}" for note in cold.notes]
    refused = {start.graph_refused for start in cold.starts if start.graph_refused is not None}
    lines += [f"batch {batch}: no graph capture: {reason}" for reason in sorted(refused)]
    first, second, whole = (
        median(values)
        for values in (
            [one.ms[FIRST_INFERENCE] for one in cold.starts],
            [one.ms[SECOND_INFERENCE] for one in cold.starts],
            [one.first_result_ms for one in cold.starts],
        )
    )
    if cold.module_loading == "LAZY" and first - second > _LAZY_SHARE * whole:
        lines.append(
            f"batch {batch}: the first inference takes {first - second:.0f} ms more than the second: "
            "kernels are loaded on first use (CUDA_MODULE_LOADING=LAZY); EAGER loads them with the library"
        )
    return lines


def _idle_table(batch: int, idle: IdlePass, *, verbose: bool) -> RenderableType:
    busy = median(idle.busy_ms)
    title = f"batch {batch}: latency after a pause; {busy:.3f} ms without one"
    caption = "medians; SM clock at the end of the pause and after the query"
    table = plain_table("pause ms", "real ms", "latency ms", "against none", "MHz before", "MHz after")
    for gap in idle.gaps:
        latency = median(gap.latency_ms)
        table.add_row(
            f"{gap.gap_ms:g}",
            f"{median(gap.idle_ms):.2f}",
            f"{latency:.3f}",
            f"{latency / busy:.2f}x" if busy else "–",
            _mhz(gap.sm_mhz_before),
            _mhz(gap.sm_mhz_after),
        )
    return titled(title, table, caption if verbose else "")


def _mhz(readings: Sequence[int | None]) -> str:
    known = [mhz for mhz in readings if mhz is not None]
    return f"{median(known):.0f}" if known else "–"
