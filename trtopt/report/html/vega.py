"""The treemap of layers and the timelines: in Vega, as Vega-Lite has no treemap and no overview with a brush.

Both find a layer or kernel in the panel's last table by the number of its row: the page's script adds the
names, which may be long.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

from trtopt.records import EngineProfile, KernelReport, ProfiledLayer
from trtopt.report.html.charts import listed, type_scale
from trtopt.report.html.page import Chart, Spec
from trtopt.report.names import kind_text, nodes_text, type_text

_ROOT = "layers"
_LANES = 9
"""Kinds with a lane of their own; the others share one."""

_LANE, _BELOW = 20, 90
"""Pixels of a lane; of the axis, the overview and the legend below, as `timeline.json` has them."""


def treemap(engine: EngineProfile) -> Chart:
    """Areas are times: layers within their kinds, coloured by the type that ran."""
    timed = [layer for layer in engine.layers if layer.ms]
    cells: list[dict[str, Any]] = [{"id": _ROOT}]
    for kind in dict.fromkeys(map(kind_text, timed)):
        cells.append({"id": f"kind {kind}", "parent": _ROOT, "label": kind})
    for number, layer in enumerate(engine.layers):
        if layer.ms:
            cells.append(
                {
                    "id": f"layer {number}",
                    "parent": f"kind {kind_text(layer)}",
                    "row": number,
                    "type": type_text(layer),
                    "ms": layer.ms,
                    "share": layer.ms / engine.sum_ms,
                }
            )
    title = "Time by layer: grouped by kind, coloured by type; a click finds the layer in the table"
    return Chart(title, _program("treemap.json", cells, map(type_text, timed)), _slowest(timed), height=460)


def timeline(engine: EngineProfile) -> Chart:
    """The layers in the order they ran, end to end, in lanes by kind, coloured by type; it zooms."""
    bars, at = [], 0.0
    for number, layer in enumerate(engine.layers):
        if layer.ms:
            bars.append(_bar(at, layer.ms, kind_text(layer), number, type_text(layer)))
            at += layer.ms
    text = _slowest([layer for layer in engine.layers if layer.ms])
    return _timeline("layer", "kind", "Layers in the order they ran, medians end to end", bars, text)


def kernel_timeline(kernels: KernelReport) -> Chart:
    """The launches when they ran, with gaps, in lanes by what their names say they do; it zooms."""
    bars = [
        _bar(row.start_ms, row.ms, row.family, number, row.dtype or "–")
        for number, row in enumerate(kernels.rows)
    ]
    text = listed([f"{group.key}: {group.ms:.4f} ms" for group in kernels.by_name])
    return _timeline("kernel", "family", "Kernels when they ran, medians, with the gaps between", bars, text)


def _slowest(timed: Sequence[ProfiledLayer]) -> str:
    """The slowest layers in a sentence; the table has all of them."""
    slowest = sorted(timed, key=lambda layer: -(layer.ms or 0.0))
    return listed([f"{nodes_text(layer)}: {layer.ms:.4f} ms" for layer in slowest])


def _bar(start: float, ms: float, lane: str, row: int, dtype: str) -> dict[str, Any]:
    return {"from": start, "to": start + ms, "ms": ms, "lane": lane, "row": row, "type": dtype}


def _timeline(what: str, lane: str, title: str, bars: Sequence[dict[str, Any]], text: str) -> Chart:
    by_time: dict[str, float] = {}
    for bar in bars:
        by_time[bar["lane"]] = by_time.get(bar["lane"], 0.0) + bar["ms"]
    own = sorted(by_time, key=lambda name: -by_time[name])[:_LANES]
    lanes = [*own, *(["others"] if len(by_time) > len(own) else [])]
    rows = [bar if bar["lane"] in own else {**bar, "lane": "others"} for bar in bars]
    spec = _program("timeline.json", rows, (row["type"] for row in rows), {"<what>": what, "<lane>": lane})
    end = max((row["to"] for row in rows), default=0.0)
    values = {"lanes": lanes, "end": end, "span": [0, end]}
    for signal in spec["signals"]:
        if signal["name"] in values:
            signal["value"] = values[signal["name"]]
    how = (
        "drag the bar below to zoom, the chart to move; a double click shows all, "
        f"a click finds the {what} in the table"
    )
    return Chart(f"{title}: {how}", spec, text, height=len(lanes) * _LANE + _BELOW, zooms=True)


def _program(
    name: str, rows: Sequence[dict[str, Any]], types: Iterable[str], words: dict[str, str] | None = None
) -> Spec:
    """A file's program with its rows, its scale of colours and its words."""
    text = files(__package__).joinpath(name).read_text("utf-8")
    for placeholder, word in (words or {}).items():
        text = text.replace(placeholder, word)
    spec: Spec = json.loads(text)
    spec["data"][0]["values"] = list(rows)
    next(scale for scale in spec["scales"] if scale["name"] == "color").update(type_scale(types))
    return spec
