"""The memory timeline: live allocations over time, the peak and its contents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trtopt.records import Collected, EngineProfile, LiveAllocation, MemoryTimeline
from trtopt.report.html.blocks import Block, Cell, Chart, Column, Lines, Missing, Panel, Section, Table
from trtopt.report.html.charts import quantity, tooltip_fields, vega_lite
from trtopt.report.html.layers import engine_panels
from trtopt.report.profile import build_memory_lines, memory_lines

_POINTS = 2000
_MIB = 2**20
_PHASES = (
    Column("phase"),
    *(Column(name, "number", 2) for name in ("peak MiB", "allocated MiB", "freed MiB")),
    Column("calls", "number"),
)
_LIVE = (Column("label"), Column("phase"), Column("MiB", "number", 3), Column("since ms", "number", 2))


def memory_section(collected: Collected, command: str) -> Section | Missing:
    """A panel for each engine whose allocations were traced, at run time or while it was built."""
    panels = [
        Panel(label, list(_blocks(engine)))
        for label, _, engine in engine_panels(collected)
        if engine.memory is not None or engine.build_memory is not None
    ]
    return Section("memory", "Memory", panels) if panels else Missing("memory", command)


def _blocks(engine: EngineProfile) -> Iterator[Block]:
    memory, build = engine.memory, engine.build_memory
    if memory is not None:
        yield Lines(memory_lines(memory))
        yield _chart("Device memory allocated by TensorRT over time", memory)
        yield _phases("By phase; a peak includes allocations of earlier phases", memory)
        yield _allocations("Live at the peak", memory.live_at_peak)
        if memory.leaked:
            yield _allocations("Never freed", memory.leaked)
    if build is not None:
        yield Lines(build_memory_lines(build))
        yield _chart("Device memory allocated by the builder over time", build)
        yield _phases("The build by phase", build)


def _phases(title: str, memory: MemoryTimeline) -> Table:
    rows: list[list[Cell]] = [
        [one.phase, one.peak_bytes / _MIB, one.allocated_bytes / _MIB, one.freed_bytes / _MIB, one.calls]
        for one in memory.phases
    ]
    return Table(title, _PHASES, rows)


def _allocations(title: str, collected: Sequence[LiveAllocation]) -> Table:
    return Table(
        title, _LIVE, [[one.label, one.phase, one.size_bytes / _MIB, one.at_ms] for one in collected]
    )


def _chart(title: str, memory: MemoryTimeline) -> Chart:
    rows = [
        {"at": memory.at_ms[index], "mib": memory.live_bytes[index] / _MIB}
        for index in thinned(memory.live_bytes, _POINTS)
    ]
    peak = [{"at": memory.peak_at_ms, "mib": memory.peak_bytes / _MIB, "phase": memory.peak_phase}]
    x, y = quantity("at", "time since the pass began, ms"), quantity("mib", "live, MiB")
    curve = {
        "mark": {"type": "area", "interpolate": "step-after", "line": True, "opacity": 0.35},
        "encoding": {"tooltip": tooltip_fields(("at", "at ms", ".2f"), ("mib", "live MiB", ".3f"))},
    }
    point = {
        "data": {"values": peak},
        "layer": [
            {"mark": {"type": "point", "filled": True, "size": 60, "color": "#d62728"}},
            {
                "mark": {"type": "text", "align": "left", "dx": 8, "baseline": "middle"},
                "encoding": {"text": {"field": "phase"}},
            },
        ],
        "encoding": {
            "tooltip": tooltip_fields(
                ("phase", "peak in", ""), ("at", "at ms", ".2f"), ("mib", "live MiB", ".3f")
            )
        },
    }
    spec = vega_lite(rows, encoding={"x": x, "y": y}, layer=[curve, point])
    text = (
        f"peak of {memory.peak_bytes / _MIB:.2f} MiB in {memory.peak_phase}, after {memory.peak_at_ms:.1f} ms"
    )
    return Chart(title, spec, text)


def thinned(values: Sequence[int], limit: int) -> list[int]:
    """Indices of at most `limit` values, or somewhat fewer, that keep a curve's shape.

    Each interval keeps its lowest, its highest and its last value.
    """
    if len(values) <= limit:
        return list(range(len(values)))
    array, kept = np.asarray(values), set[int]()
    for stretch in np.array_split(np.arange(len(values)), limit // 3):
        part = array[stretch]
        kept |= {int(stretch[part.argmin()]), int(stretch[part.argmax()]), int(stretch[-1])}
    return sorted(kept)
