"""The roofline: the rate of each layer against the rate its arithmetic intensity allows on this device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trtopt.records import Collected, DevicePeaks, EngineProfile, ProfiledLayer, ProfileReport
from trtopt.report.html.blocks import Block, Chart, Lines, Missing, Panel, Section
from trtopt.report.html.charts import LEGEND, listed, log, name, quantity, tooltip_fields, vega_lite
from trtopt.report.html.colours import type_scale
from trtopt.report.html.layers import engine_panels
from trtopt.report.names import nodes_text, type_text
from trtopt.report.profile import peak_lines, roofline_lines

_X, _Y = "FLOP per byte", "GFLOP/s"
_AXES = {
    # The padding, in pixels, keeps the outermost points off the edge.
    "x": quantity("intensity", f"{_X} (log scale)", **log(padding=12)),
    "y": quantity("rate", f"{_Y} (log scale)", **log(padding=12)),
}
_NO_PEAKS = "The device's peaks are unknown: the chart has no roof, and layers have no floors."


def roofline_section(collected: Collected, command: str) -> Section | Missing:
    """A panel for each engine."""
    panels = [
        Panel(label, list(_blocks(report, engine, points)))
        for label, report, engine in engine_panels(collected)
        if (points := [point for layer in engine.layers if (point := _point(layer)) is not None])
    ]
    return Section("roofline", "Roofline", panels) if panels else Missing("roofline", command)


def _blocks(
    report: ProfileReport, engine: EngineProfile, points: Sequence[dict[str, Any]]
) -> Iterator[Block]:
    yield Lines(roofline_lines(engine))
    yield _chart(points, report.peaks)
    yield Lines(peak_lines(report.peaks) or [_NO_PEAKS])


def _point(layer: ProfiledLayer) -> dict[str, Any] | None:
    cost = layer.cost
    if not layer.ms or cost is None or not cost.flops or not cost.bytes_moved:
        return None
    return {
        "layer": nodes_text(layer),
        "type": layer.dtype or layer.requested_dtype,  # as for floors
        "told": type_text(layer),
        "intensity": cost.flops / cost.bytes_moved,
        "rate": cost.flops / layer.ms * 1e-6,
        "ms": layer.ms,
        "bound": cost.bound,
    }


def _chart(points: Sequence[dict[str, Any]], peaks: DevicePeaks | None) -> Chart:
    colour = name("type", scale=type_scale(point["type"] for point in points), legend=LEGEND)
    layers = {
        "mark": {"type": "point", "filled": True, "opacity": 0.75},
        "encoding": {
            **_AXES,
            "color": colour,
            "size": quantity("ms", "ms", legend=None, scale={"range": [20, 500]}),
            "tooltip": tooltip_fields(
                ("layer", "layer", ""),
                ("told", "type", ""),
                ("ms", "ms", ".4f"),
                ("intensity", _X, ".1f"),
                ("rate", _Y, ",.1f"),
                ("bound", "bound by", ""),
            ),
        },
    }
    roofs = [] if peaks is None else _roofs(points, peaks)
    drawn = {
        "data": {"values": roofs},
        "mark": {"type": "line", "strokeWidth": 1.5},
        "encoding": {**_AXES, "color": colour},
    }
    spec = vega_lite(points, layer=[drawn, layers] if roofs else [layers])
    slowest = sorted(points, key=lambda point: -point["ms"])
    text = listed([f"{point['layer']}: {point['rate']:,.4g} {_Y}, {point['ms']:.4f} ms" for point in slowest])
    return Chart("Layers by intensity and rate; areas are times", spec, text, height=380)


def _roofs(points: Sequence[dict[str, Any]], peaks: DevicePeaks) -> list[dict[str, Any]]:
    """A line for each type that ran: bandwidth up to its ridge, then its peak rate."""
    ran = {point["type"] for point in points}
    bandwidth = peaks.bandwidth.value
    low = min(point["intensity"] for point in points)
    high = max(point["intensity"] for point in points)
    rows = []
    for dtype, peak in peaks.flops.items():
        if dtype not in ran:
            continue
        ridge = peak.value / bandwidth
        for x in (min(low, ridge), ridge, max(high, ridge)):
            rows.append({"type": dtype, "intensity": x, "rate": min(x * bandwidth, peak.value) / 1e9})
    return rows
