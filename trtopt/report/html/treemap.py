"""A treemap of layers in Vega, as Vega-Lite has none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtopt.records import EngineProfile, ProfiledLayer
from trtopt.report.html.blocks import Chart
from trtopt.report.html.charts import VEGA, listed
from trtopt.report.html.colours import type_scale
from trtopt.report.names import kind_text, nodes_text, type_text

_ROOT = "layers"
_LEGEND = 34
"""Pixels reserved for the legend."""

_AT_THE_BOTTOM = {"orient": "none", "legendX": 0, "legendY": {"signal": f"height - {_LEGEND - 8}"}}
_READABLE = {"width": 46, "height": 14}
"""The smallest cell, in pixels, that gets a label."""


def treemap(engine: EngineProfile) -> Chart:
    """Areas are times: layers within their kinds, coloured by the type that ran."""
    timed = [layer for layer in engine.layers if layer.ms]
    kinds = dict.fromkeys(map(kind_text, timed))
    cells: list[dict[str, Any]] = [{"id": _ROOT}]
    cells += [{"id": f"kind {kind}", "parent": _ROOT, "label": kind} for kind in kinds]
    cells += [_cell(number, layer, engine.sum_ms) for number, layer in enumerate(engine.layers) if layer.ms]
    title = "Time by layer: grouped by kind, coloured by type; a click finds the layer in the table"
    return Chart(title, _spec(cells), slowest_text(timed), height=460)


def slowest_text(timed: Sequence[ProfiledLayer]) -> str:
    """The slowest layers in a sentence; the table has all of them."""
    slowest = sorted(timed, key=lambda layer: -(layer.ms or 0.0))
    return listed([f"{nodes_text(layer)}: {layer.ms:.4f} ms" for layer in slowest])


def _cell(number: int, layer: ProfiledLayer, sum_ms: float) -> dict[str, Any]:
    """A layer's name is the page's script's to add, from the table's row of that number: it may be long."""
    return {
        "id": f"layer {number}",
        "parent": f"kind {kind_text(layer)}",
        "row": number,
        "type": type_text(layer),
        "ms": layer.ms,
        "share": (layer.ms or 0.0) / sum_ms,
    }


def container_size() -> list[dict[str, Any]]:
    """Signals that make a Vega chart as large as its place on the page."""
    return [
        {
            "name": side,
            "init": f"containerSize()[{index}]",
            "on": [{"events": {"source": "window", "type": "resize"}, "update": f"containerSize()[{index}]"}],
        }
        for index, side in enumerate(("width", "height"))
    ]


def _spec(cells: list[dict[str, Any]]) -> dict[str, Any]:
    area = {
        "type": "treemap",
        "field": "ms",
        "sort": {"field": "value", "order": "descending"},
        "round": True,
        "paddingInner": 1,
        "paddingTop": 15,
        "size": [{"signal": "width"}, {"signal": f"height - {_LEGEND}"}],
    }
    return {
        "$schema": VEGA,
        "autosize": "none",
        "padding": 0,
        "signals": container_size(),
        "data": [
            {
                "name": "tree",
                "values": cells,
                "transform": [{"type": "stratify", "key": "id", "parentKey": "parent"}, area],
            },
            {
                "name": "kinds",
                "source": "tree",
                "transform": [{"type": "filter", "expr": "datum.depth == 1"}],
            },
            {
                "name": "leaves",
                "source": "tree",
                "transform": [{"type": "filter", "expr": "datum.depth == 2"}],
            },
        ],
        "scales": [
            {
                "name": "color",
                "type": "ordinal",
                **type_scale(cell["type"] for cell in cells if "type" in cell),
            }
        ],
        "legends": [{"fill": "color", "direction": "horizontal", "columns": 4, **_AT_THE_BOTTOM}],
        "marks": [_rectangles(), _labels("kinds", 0, "title"), _labels("leaves", 3, "label")],
    }


def _rectangles() -> dict[str, Any]:
    figures = "ms: format(datum.ms, '.4f'), share: format(datum.share, '.1%')"
    tooltip = f"{{layer: datum.label, type: datum.type, {figures}}}"
    box = {side: {"field": side} for side in ("x0", "y0", "x1", "y1")}
    return {
        "type": "rect",
        "from": {"data": "leaves"},
        "encode": {
            "enter": {
                "fill": {"scale": "color", "field": "type"},
                "cursor": {"value": "pointer"},
                "tooltip": {"signal": tooltip},
            },
            "update": {
                "x": box["x0"],
                "y": box["y0"],
                "x2": box["x1"],
                "y2": box["y1"],
                "fillOpacity": {"value": 0.85},
            },
            "hover": {"fillOpacity": {"value": 1}},
        },
    }


def _labels(data: str, indent: int, style: str) -> dict[str, Any]:
    """Text at the top left of a cell, cut to its width; hidden where the cell is too small."""
    room = (
        f"datum.x1 - datum.x0 > {_READABLE['width']} && datum.y1 - datum.y0 > {_READABLE['height']} ? 1 : 0"
    )
    return {
        "type": "text",
        "from": {"data": data},
        "interactive": False,
        "style": f"treemap-{style}",
        "encode": {
            "enter": {"text": {"field": "label"}, "baseline": {"value": "top"}},
            "update": {
                "x": {"field": "x0", "offset": indent},
                "y": {"field": "y0", "offset": 3},
                "limit": {"signal": "datum.x1 - datum.x0 - 6"},
                "opacity": {"signal": room},
            },
        },
    }
