"""Timelines in Vega, as Vega-Lite has no overview with a brush as wide as the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trtopt.records import EngineProfile, KernelReport
from trtopt.report.html.blocks import Chart
from trtopt.report.html.charts import VEGA, listed
from trtopt.report.html.colours import type_scale
from trtopt.report.html.treemap import container_size, slowest_text
from trtopt.report.names import kind_text, type_text

_LANES = 9
"""Kinds with a lane of their own; the others share one."""

_LANE, _OVERVIEW, _AXIS, _LEGEND = 20, 22, 42, 26
"""Heights in pixels: of a lane, the overview, the axis with its title, and the legend."""

_LEFT = 150
"""Pixels for the names of lanes; a third of a narrow page at most."""


_HOW = (
    "drag the bar below to zoom, the chart to move; a double click shows all, "
    "a click finds the {what} in the table"
)


@dataclass(frozen=True)
class _Bar:
    """What ran in a lane for a time in ms; its name is that of the row of the panel's last table."""

    start: float
    ms: float
    lane: str
    row: int
    dtype: str


def timeline(engine: EngineProfile) -> Chart:
    """The layers in the order they ran, end to end, in lanes by kind, coloured by type; it zooms."""
    found, at = [], 0.0
    for number, layer in enumerate(engine.layers):
        if layer.ms:
            found.append(_Bar(at, layer.ms, kind_text(layer), number, type_text(layer)))
            at += layer.ms
    text = slowest_text([layer for layer in engine.layers if layer.ms])
    return _chart("layer", "kind", "Layers in the order they ran, medians end to end", found, text)


def kernel_timeline(kernels: KernelReport) -> Chart:
    """The launches when they ran, with gaps, in lanes by what their names say they do; it zooms."""
    found = [
        _Bar(row.start_ms, row.ms, row.family, number, row.dtype or "–")
        for number, row in enumerate(kernels.rows)
    ]
    text = listed([f"{group.key}: {group.ms:.4f} ms" for group in kernels.by_name])
    return _chart("kernel", "family", "Kernels when they ran, medians, with the gaps between", found, text)


def _chart(what: str, lane: str, title: str, bars: Sequence[_Bar], text: str) -> Chart:
    by_time: dict[str, float] = {}
    for bar in bars:
        by_time[bar.lane] = by_time.get(bar.lane, 0.0) + bar.ms
    own = sorted(by_time, key=lambda name: -by_time[name])[:_LANES]
    rows = [
        {
            "from": bar.start,
            "to": bar.start + bar.ms,
            "ms": bar.ms,
            "lane": bar.lane if bar.lane in own else "others",
            "row": bar.row,
            "type": bar.dtype,
        }
        for bar in bars
    ]
    lanes = [*own, *(["others"] if len(by_time) > len(own) else [])]
    height, end = len(lanes) * _LANE, max((bar.start + bar.ms for bar in bars), default=0.0)
    return Chart(
        f"{title}: {_HOW.format(what=what)}",
        _spec(rows, lanes, end, height, _tooltip(what, lane)),
        text,
        height=height + _AXIS + _OVERVIEW + _LEGEND,
        zooms=True,
    )


def _tooltip(what: str, lane: str) -> str:
    return (
        f"{{{what}: datum.label, {lane}: datum.lane, type: datum.type, ms: format(datum.ms, '.4f'), "
        "'starts at ms': format(datum.from, '.4f')}"
    )


def _spec(
    rows: list[dict[str, Any]], lanes: list[str], end: float, height: int, tooltip: str
) -> dict[str, Any]:
    left, wide = {"name": "left", "update": f"min({_LEFT}, width / 3)"}, "max(width - left - 12, 20)"
    color = {"name": "color", "type": "ordinal", **type_scale(row["type"] for row in rows)}
    return {
        "$schema": VEGA,
        "autosize": "none",
        "padding": 0,
        "signals": [
            *container_size(),
            left,
            {"name": "wide", "update": wide},
            {"name": "end", "value": end},
            {"name": "pressed", "value": None, "on": _pressed()},
            {"name": "moved", "value": None, "on": _moved()},
            {"name": "span", "value": [0, end], "on": _span()},
        ],
        "data": [
            {"name": "bars", "values": rows},
            {
                "name": "seen",
                "source": "bars",
                "transform": [{"type": "filter", "expr": "datum.to > span[0] && datum.from < span[1]"}],
            },
        ],
        "scales": [
            color,
            {"name": "lane", "type": "band", "domain": lanes, "range": [0, height], "padding": 0.12},
            {"name": "whole", "zero": False, "domain": [0, end], "range": [0, {"signal": "wide"}]},
            {"name": "zoomed", "zero": False, "domain": {"signal": "span"}, "range": [0, {"signal": "wide"}]},
        ],
        "legends": [
            {
                "fill": "color",
                "direction": "horizontal",
                "orient": "none",
                "columns": 4,
                "legendX": 0,
                "legendY": height + _AXIS + _OVERVIEW + 8,
            }
        ],
        "marks": [_detail(height, tooltip), _overview(height + _AXIS)],
    }


def _pressed() -> list[dict[str, Any]]:
    """Where a drag began, with the span of that time."""
    begin = "{on: '%s', x: x() - left, span: span}"
    return [{"events": f"@{mark}:pointerdown", "update": begin % mark} for mark in ("detail", "overview")] + [
        {"events": "window:pointerup", "update": "null"}
    ]


def _moved() -> list[dict[str, Any]]:
    """How far a drag has come, in pixels from the left."""
    return [{"events": "window:pointermove", "update": "pressed ? clamp(x() - left, 0, wide) : null"}]


def _span() -> list[dict[str, Any]]:
    """What is visible, in ms: the overview selects it, the detail moves it, Ctrl and the wheel scale it."""
    first, second = (f"{side}(pressed.x, moved) / wide * end" for side in ("min", "max"))
    selected = f"abs(pressed.x - moved) > 3 ? [{first}, {second}] : span"
    length = "(pressed.span[1] - pressed.span[0])"
    low = f"clamp(pressed.span[0] + (pressed.x - moved) / wide * {length}, 0, end - {length})"
    moved = f"[{low}, {low} + {length}]"
    at = "(span[0] + clamp(x() - left, 0, wide) / wide * (span[1] - span[0]))"
    times = "pow(1.002, event.deltaY)"
    scaled = f"[max(0, {at} + (span[0] - {at}) * {times}), min(end, {at} + (span[1] - {at}) * {times})]"
    return [
        {
            "events": {"signal": "moved"},
            "update": f"!pressed || moved === null ? span : pressed.on === 'overview' ? {selected} : {moved}",
        },
        {"events": [{"type": "wheel", "consume": True, "filter": "event.ctrlKey"}], "update": scaled},
        {"events": "dblclick", "update": "[0, end]"},
    ]


def _detail(height: int, tooltip: str) -> dict[str, Any]:
    bar = {
        "type": "rect",
        "from": {"data": "seen"},
        "encode": {
            "enter": {
                "fill": {"scale": "color", "field": "type"},
                "cursor": {"value": "pointer"},
                "tooltip": {"signal": tooltip},
            },
            "update": {
                "x": {"scale": "zoomed", "field": "from"},
                "width": {"signal": "max(1, scale('zoomed', datum.to) - scale('zoomed', datum.from) - 0.5)"},
                "y": {"scale": "lane", "field": "lane"},
                "height": {"scale": "lane", "band": 1},
                "fillOpacity": {"value": 0.9},
            },
            "hover": {"fillOpacity": {"value": 0.6}},
        },
    }
    axes = [
        {"scale": "zoomed", "orient": "bottom", "title": "time, ms", "tickCount": 8},
        {"scale": "lane", "orient": "left", "labelLimit": {"signal": "left - 10"}, "domain": False},
    ]
    inside = {**_box(0, height), "update": {**_box(0, height)["update"], "x": {"value": 0}}}
    clipped = {"type": "group", "name": "detail", "clip": True, "encode": inside, "marks": [bar]}
    return {"type": "group", "encode": _box(0, height), "axes": axes, "marks": [clipped]}


def _overview(top: int) -> dict[str, Any]:
    bar = {
        "type": "rect",
        "from": {"data": "bars"},
        "interactive": False,
        "encode": {
            "enter": {"fill": {"scale": "color", "field": "type"}, "fillOpacity": {"value": 0.8}},
            "update": {
                "x": {"scale": "whole", "field": "from"},
                "x2": {"scale": "whole", "field": "to"},
                "y": {"value": 4},
                "height": {"value": _OVERVIEW - 8},
            },
        },
    }
    brush = {
        "type": "rect",
        "interactive": False,
        "style": "timeline-brush",
        "encode": {
            "update": {
                "x": {"signal": "scale('whole', span[0])"},
                "x2": {"signal": "scale('whole', span[1])"},
                "y": {"value": 0.5},
                "height": {"value": _OVERVIEW - 1},
            }
        },
    }
    return {
        "type": "group",
        "name": "overview",
        "encode": _box(top, _OVERVIEW),
        "marks": [bar, brush],
    }


def _box(top: int, height: int) -> dict[str, Any]:
    """A group as wide as the chart without its lanes' names; transparent, so that it takes the pointer."""
    return {
        "enter": {"fill": {"value": "transparent"}, "cursor": {"value": "ew-resize"}},
        "update": {
            "x": {"signal": "left"},
            "y": {"value": top},
            "width": {"signal": "wide"},
            "height": {"value": height},
        },
    }
