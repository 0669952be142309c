"""Charts as Vega-Lite specifications; colours mean the same on all charts of a page, fonts are the page's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from trtopt.report.html.page import Chart, Spec

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

SIDES = ("#8a96a3", "#f0a050")
"""A, the baseline, and B."""

_BINS = 60
_WIDTHS = 5
_NAMED = 6
Rows = Sequence[dict[str, Any]]


def vega_lite(rows: Rows, **rest: Any) -> Spec:
    """A chart as wide as the page allows."""
    return {
        "$schema": VEGA_LITE,
        "width": "container",
        "height": "container",
        "data": {"values": list(rows)},
        **rest,
    }


def quantity(field: str, title: str, **rest: Any) -> Spec:
    """A numeric channel."""
    return {"field": field, "type": "quantitative", "title": title, **rest}


def name(field: str, title: str | None = None, **rest: Any) -> Spec:
    """A channel of names."""
    return {"field": field, "type": "nominal", "title": title, **rest}


def log(**rest: Any) -> Spec:
    """A logarithmic scale; the axis's title must say so."""
    return {"scale": {"type": "log", "nice": False, **rest}}


def tooltip_fields(*fields: tuple[str, str, str]) -> list[Spec]:
    """A tooltip's lines as (field, title, number format); without a format it is text."""
    return [
        {"field": field, "title": title, **({"format": form, "type": "quantitative"} if form else {})}
        for field, title, form in fields
    ]


def listed(parts: Sequence[str]) -> str:
    """The first few parts in one sentence, for a chart's text."""
    more = len(parts) - _NAMED
    return "; ".join(parts[:_NAMED]) + (f"; and {more} more" if more > 0 else "")


LEGEND = {"orient": "bottom", "columns": 3, "labelLimit": 300}


def histogram(title: str, values: Sequence[float], marks: dict[str, float], colour: str) -> Chart:
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
    lines = [{"what": what, "ms": value} for what, value in marks.items() if value <= top]
    more = f"; not drawn: {undrawn} slower, up to {float(array.max()):.3f} ms" if undrawn else ""
    axis = quantity("from", "latency, ms (does not start at zero)", scale={"zero": False, "nice": False})
    bars = {
        "mark": {"type": "rect", "color": colour},
        "encoding": {
            "x": axis,
            "x2": {"field": "to"},
            "y": quantity("queries", "queries"),
            "y2": {"datum": 0},
            "tooltip": tooltip_fields(
                ("from", "from ms", ".4f"), ("to", "to ms", ".4f"), ("queries", "queries", "d")
            ),
        },
    }
    rules = {
        "data": {"values": lines},
        "encoding": {"x": quantity("ms", "latency, ms (does not start at zero)")},
        "layer": [
            {"mark": {"type": "rule", "strokeDash": [4, 3]}},
            {
                "mark": {"type": "text", "align": "left", "dx": 3, "baseline": "top"},
                "encoding": {"text": {"field": "what"}, "y": {"value": 0}},
            },
        ],
    }
    text = listed([f"{what} {value:.3f} ms" for what, value in marks.items()])
    return Chart(title + more, vega_lite(rows, layer=[bars, rules]), text, height=190, is_small=True)


def lines_over(
    title: str, text: str, rows: Rows, x: Spec, y: Spec, series: Spec, tooltip: list[Spec]
) -> Chart:
    """Lines with their points, one for each value of `series`."""
    encoding = {"x": x, "y": y, "color": series, "tooltip": tooltip}
    mark = {"type": "line", "point": True}
    return Chart(title, vega_lite(rows, mark=mark, encoding=encoding), text, is_small=True)


def curves_over_batches(
    rows: Rows, figures: Iterable[tuple[str, str, str]], legend: Spec = LEGEND
) -> Iterator[Chart]:
    """A chart for each (title, field, unit), with a line for each `series`; none for a single batch size."""
    sizes = sorted({row["batch"] for row in rows})
    several = len({row["series"] for row in rows}) > 1
    x = quantity("batch", "batch size, samples (log scale)", axis={"values": sizes}, **log(base=2))
    for title, field, unit in figures:
        shown = [row for row in rows if row[field]]
        if len(sizes) > 1 and shown:
            tooltip = tooltip_fields(("series", "curve", ""), ("batch", "batch", "d"), (field, unit, ",.4~f"))
            text = [
                (f"{row['series']}, " if several else "") + f"batch {row['batch']}: {row[field]:,.4g} {unit}"
                for row in shown
            ]
            series = name("series", sort=None, legend=legend)
            y = quantity(field, f"{unit} (log scale)", **log())
            yield lines_over(title, listed(text), shown, x, y, series, tooltip)


def shares(title: str, rows: Rows) -> Chart:
    """Stacked bars; rows hold `what`, its `type` and `share` from 0 to 1."""
    count = len({row["what"] for row in rows})
    text = listed([f"{row['what']}: {row['type']} {row['share']:.1%}" for row in rows])
    scale = type_scale(row["type"] for row in rows)
    return Chart(
        title,
        vega_lite(
            rows,
            mark="bar",
            encoding={
                "y": name("what", sort=None),
                "x": quantity("share", "share, %", axis={"format": "%"}, scale={"domain": [0, 1]}),
                "color": name("type", scale=scale, legend=LEGEND),
                "tooltip": tooltip_fields(("what", "", ""), ("type", "type", ""), ("share", "share", ".2%")),
            },
        ),
        text,
        height=80 + 34 * count,
    )


def bars(title: str, rows: Rows, colour: Spec | None = None) -> Chart:
    """One bar per row, in the given order; `colour` encodes it, by default all are of one colour.

    Rows have their `key`, `ms` and `share`, and how many `layers` they stand for.
    """
    return Chart(
        title,
        vega_lite(
            rows,
            mark="bar",
            encoding={
                "y": name("key", sort=None, axis={"labelLimit": 180}),
                "x": quantity("ms", "time, ms"),
                **({"color": colour} if colour is not None else {}),
                "tooltip": tooltip_fields(
                    ("key", "", ""), ("ms", "ms", ".4f"), ("share", "share", ".1%"), ("layers", "layers", "d")
                ),
            },
        ),
        listed([f"{row['key']}: {row['ms']:.4g} ms" for row in rows]),
        height=50 + 22 * len(rows),
        is_small=True,
    )


# ── colours ─────────────────────────────────────────────────────────────────────────────────────────────


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
