"""Charts as Vega-Lite specifications; colours mean the same on all charts of a page, fonts are the page's.

A chart is declared by its rows and the channels that show their fields. Tooltips, the text for readers who
cannot see it, and what an axis says of its scale follow from the channels.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field as default
from importlib.resources import files
from typing import Any

import numpy as np

from trtopt.records import EngineProfile, KernelReport, ProfiledLayer
from trtopt.report.html.page import Chart, Spec
from trtopt.report.profile import kind_text, nodes_text, type_text
from trtopt.report.view import shown

VEGA_LITE = "https://vega.github.io/schema/vega-lite/v6.json"
"""The identifier of the language; nothing is fetched from there."""

_TYPES = {
    "float32": "#64a0d8",
    "tf32": "#64a0d8",
    "float16": "#68b87e",
    "bfloat16": "#4fb5b5",
    "int8": "#f0a050",
    "float8": "#e08fbd",
    "int4": "#e07f7f",
    "float4": "#ae90d6",
}
"""By the start of a type's name. Light enough for dark labels, dark enough for a white page."""

_OTHER = "#9aa4ae"
_BATCHES = ("#8f7be0", "#4f8fdc", "#2fa3ab", "#4dab5c", "#c99a2c", "#e0703f")
"""From small to large."""

SIDES = {"A": "#8a96a3", "B": "#f0a050"}
"""A is the baseline."""

_BINS = 60
_WIDTHS = 5
_NAMED = 6
_ROOT = "layers"
_LANES = 9
"""Kinds with a lane of their own; the others share one."""

_LANE, _BELOW = 20, 90
"""Pixels of a lane; of the axis, the overview and the legend below, as `timeline.json` has them."""
Row = dict[str, Any]


# ── the language ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Channel:
    """A field of a chart's rows; `form` is the format of its figures, None: it holds names.

    `name` is its name, or its unit, in tooltips and text; `title` stands on its axis where that says more.
    """

    field: str
    name: str = ""
    form: str | None = None
    title: str = ""
    is_log: bool = False
    more: Spec = default(default_factory=dict)
    """What else Vega-Lite's channel has."""

    def encoded(self) -> Spec:
        """As a channel of marks; a logarithmic axis says so."""
        scale: Spec = {"type": "log", "nice": False, **self.more.get("scale", {})} if self.is_log else {}
        return {
            "field": self.field,
            "type": "nominal" if self.form is None else "quantitative",
            "title": ((self.title or self.name) + (" (log scale)" if self.is_log else "")) or None,
            **self.more,
            **({"scale": scale} if scale else {}),
        }

    def as_tooltip(self) -> Spec:
        """As a line of a tooltip."""
        figure = {"format": (self.form or "").replace(".4g", ",.4~f"), "type": "quantitative"}
        return {"field": self.field, "title": self.name, **({} if self.form is None else figure)}

    def as_text(self, row: Row) -> str:
        """A row's value in words."""
        if self.form is None:
            return str(row[self.field])
        if self.form == "d":
            return f"{self.name} {row[self.field]}"
        unit = "" if self.form.endswith("%") else f" {self.name}"
        return f"{shown(row[self.field], self.form)}{unit}"


def chart(
    title: str,
    rows: Sequence[Row],
    says: Sequence[Channel],
    *layers: Spec,
    text: str = "",
    height: int = 260,
    is_small: bool = False,
    **rest: Any,
) -> Chart:
    """A chart as wide as the page allows, of layers in Vega-Lite whose channels may be `Channel`s.

    `says` are the fields in tooltips and, unless `text` is given, in the text; layers with data of their own
    say them themselves.
    """
    told = [layer if "data" in layer else _saying(layer, says) for layer in layers]
    return Chart(
        title,
        _plain(
            {
                "$schema": VEGA_LITE,
                "width": "container",
                "height": "container",
                "data": {"values": list(rows)},
                **(told[0] if len(told) == 1 else {"layer": told}),
                **rest,
            }
        ),
        text or listed([_sentence(row, says) for row in rows]),
        height,
        is_small,
    )


_ENCODING = ("x", "y", "x2", "y2", "color", "size", "text", "yOffset")


def marks(shape: str, rows: Sequence[Row] | None = None, says: Sequence[Channel] = (), **rest: Any) -> Spec:
    """A layer of marks of the chart's rows, or of `rows`; `rest` are channels, and how the marks look."""
    rest = {name: value for name, value in rest.items() if value is not None}
    encoding = {name: rest.pop(name) for name in _ENCODING if isinstance(rest.get(name), (Channel, dict))}
    tooltip = {"tooltip": [one.as_tooltip() for one in says]} if says else {}
    data = {} if rows is None else {"data": {"values": list(rows)}}
    return {**data, "mark": {"type": shape, **rest}, "encoding": {**encoding, **tooltip}}


def _saying(layer: Spec, says: Sequence[Channel]) -> Spec:
    return {**layer, "encoding": {**layer.get("encoding", {}), "tooltip": [one.as_tooltip() for one in says]}}


def _plain(value: Any) -> Any:
    """With every channel in Vega-Lite's JSON."""
    if isinstance(value, Channel):
        return value.encoded()
    if isinstance(value, dict):
        return {key: item if key == "values" else _plain(item) for key, item in value.items()}
    return list(map(_plain, value)) if isinstance(value, (list, tuple)) else value


def _sentence(row: Row, says: Sequence[Channel]) -> str:
    """`batch 8: 0.122 ms, 14,614 samples/s`: what it is, and its figures."""
    known = [one for one in says if row.get(one.field) not in (None, "")]
    names = [one.as_text(row) for one in known if one.form in (None, "d")]
    figures = [one.as_text(row) for one in known if one.form not in (None, "d")]
    return ": ".join(filter(None, (", ".join(names), ", ".join(figures))))


def listed(parts: Sequence[str]) -> str:
    """The first few parts in one sentence, for a chart's text."""
    more = len(parts) - _NAMED
    return "; ".join(parts[:_NAMED]) + (f"; and {more} more" if more > 0 else "")


LEGEND = {"orient": "bottom", "columns": 3, "labelLimit": 300}
BATCH = Channel(
    "batch", "batch", "d", "batch size, samples", more={"type": "ordinal", "axis": {"labelAngle": 0}}
)


# ── charts that several subjects have ───────────────────────────────────────────────────────────────────


def histogram(title: str, values: Sequence[float], named: Mapping[str, float], colour: str) -> Chart:
    """Counts of values in ms, with named values marked.

    Drawn up to the median plus five times the width of the middle 80 %: a few slow queries would squeeze the
    rest.
    """
    array = np.asarray(values)
    low, middle, high = np.percentile(array, (10, 50, 90))
    top = float(middle + _WIDTHS * (high - low))
    undrawn = int((array > top).sum())
    counts, edges = np.histogram(array[array <= top], bins=_BINS)
    rows = [
        {"from": float(low), "to": float(high), "queries": int(count)}
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
    ]
    lines = [{"what": what, "ms": value} for what, value in named.items() if value <= top]
    more = f"; not drawn: {undrawn} slower, up to {float(array.max()):.3f} ms" if undrawn else ""
    axis = "latency, ms (does not start at zero)"
    start = Channel("from", "from ms", ".4f", axis, more={"scale": {"zero": False, "nice": False}})
    queries = Channel("queries", "queries", "d")
    ms = Channel("ms", "ms", ".4f", axis)
    style: Spec = {"align": "left", "dx": 3, "baseline": "top"}
    return chart(
        title + more,
        rows,
        [start, Channel("to", "to ms", ".4f"), queries],
        marks("rect", color=colour, x=start, x2={"field": "to"}, y=queries, y2={"datum": 0}),
        marks("rule", lines, x=ms, strokeDash=[4, 3]),
        marks("text", lines, x=ms, y={"value": 0}, text={"field": "what"}, **style),
        text=listed([f"{what} {value:.3f} ms" for what, value in named.items()]),
        height=190,
        is_small=True,
    )


def curves_over_batches(
    rows: Sequence[Row], figures: Iterable[tuple[str, str, str]], **colour: Any
) -> Iterator[Chart]:
    """A chart for each (title, field, unit), with a line for each `series`; none for a single batch size.

    `colour` is what its channel has besides.
    """
    sizes = sorted({row["batch"] for row in rows})
    series = coloured("series", "curve", sort=None, **colour)
    batch = Channel(
        "batch", "batch", "d", "batch size, samples", True, {"axis": {"values": sizes}, "scale": {"base": 2}}
    )
    several = [series] if len({row["series"] for row in rows}) > 1 else []
    for title, field, unit in figures:
        drawn = [row for row in rows if row[field]]
        if len(sizes) > 1 and drawn:
            y = Channel(field, unit, ".4g", is_log=True)
            lines = marks("line", point=True, x=batch, y=y, color=series)
            yield chart(title, drawn, [*several, batch, y], lines, is_small=True)


def shares(title: str, rows: Sequence[Row]) -> Chart:
    """Stacked bars; rows hold `what`, its `type` and `share` from 0 to 1."""
    what, dtype = Channel("what", more={"sort": None}), coloured_types(row["type"] for row in rows)
    axis = {"axis": {"format": "%"}, "scale": {"domain": [0, 1]}}
    share = Channel("share", "share", ".1%", "share, %", more=axis)
    bars = marks("bar", y=what, x=share, color=dtype)
    return chart(title, rows, [what, dtype, share], bars, height=80 + 34 * len({row["what"] for row in rows}))


def times(
    title: str,
    rows: Sequence[Row],
    what: str,
    order: Sequence[str],
    colour: Channel | None = None,
    *,
    floors: Mapping[str, float] | None = None,
    is_small: bool = False,
) -> Chart:
    """Bars of `ms` by the names in the field `what`, in that order, with a mark at each known floor.

    `colour` stacks them by type, or puts them side by side where it is the side of a comparison.
    """
    y = Channel(what, what, more={"sort": list(order), "axis": {"labelLimit": 180}, "title": None})
    ms = Channel("ms", "ms", ".4f", "time, ms (line: floor)" if floors else "time, ms")
    is_of_sides = colour is not None and colour.field == "side"
    offset = Channel("side", more={"sort": list(SIDES)}) if is_of_sides else None
    layers = [marks("bar", y=y, x=ms, color=colour, yOffset=offset)]
    text = ""
    if not is_of_sides:
        totals = {one: sum(row["ms"] for row in rows if row[what] == one) for one in order}
        known = {one: f", floor {floor:.4f} ms" for one, floor in (floors or {}).items()}
        text = listed([f"{one}: {total:.4f} ms{known.get(one, '')}" for one, total in totals.items()])
    if floors:
        floor = Channel("floor", "floor, ms", ".4f", ms.title)
        values = [{what: one, "floor": value} for one, value in floors.items()]
        style: Spec = {"thickness": 3, "size": 18, "style": "overlay"}
        layers.append(marks("tick", values, [y, floor], y=y, x=floor, **style))
    others = [Channel("share", "share", ".1%"), Channel("layers", "layers", "d")]
    says = [y, *([] if colour is None else [colour]), ms, *(one for one in others if one.field in rows[0])]
    height = 70 + (30 if is_of_sides else 22) * len(order)
    return chart(title, rows, says, *layers, text=text, height=height, is_small=is_small)


# ── the treemap of layers and the timelines ─────────────────────────────────────────────────────────────────

# In Vega, as Vega-Lite has no treemap and no overview with a brush. Both find a layer or kernel in the
# panel's last table by the number of its row: the page's script adds the names, which may be long.


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


# ── colours ─────────────────────────────────────────────────────────────────────────────────────────────


def coloured(field: str, name: str = "", **more: Any) -> Channel:
    """A field of names as a colour, with a legend."""
    return Channel(field, name, more={"title": None, "legend": LEGEND, **more})


def coloured_types(types: Iterable[str], **more: Any) -> Channel:
    """The field `type` as a colour."""
    return coloured("type", "type", scale=type_scale(types), **more)


def type_colour(dtype: str) -> str:
    """The colour of a type; a requested one, in brackets, has that of the type."""
    name = dtype.strip("()")
    return next((colour for start, colour in _TYPES.items() if name.startswith(start)), _OTHER)


def type_scale(types: Iterable[str]) -> Spec:
    """A colour scale for the types on show, in the order of the table above."""
    order = [*_TYPES.values(), _OTHER]
    domain = sorted(set(types), key=lambda dtype: (order.index(type_colour(dtype)), dtype))
    return {"domain": domain, "range": [type_colour(dtype) for dtype in domain]}


def batch_scale(batches: Iterable[int]) -> Spec:
    """A colour scale of labels `batch N`, for all batch sizes of the page, from small to large."""
    sizes = sorted(set(batches))
    return {"domain": [f"batch {size}" for size in sizes], "range": _spread(len(sizes))}


def _spread(count: int) -> Sequence[str]:
    """That many colours, as far apart as they can be; beyond the table's length they repeat."""
    if count > len(_BATCHES):
        return [_BATCHES[place % len(_BATCHES)] for place in range(count)]
    last = len(_BATCHES) - 1
    return [_BATCHES[round(place * last / max(count - 1, 1))] for place in range(count)]
