"""Charts as Vega-Lite specifications; a type has one colour on all charts of a page, fonts are the page's.

A chart is declared by its rows and the channels that show their fields. Tooltips, the text for readers who
cannot see it, and what an axis says of its scale follow from the channels.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field as default
from typing import Any

from trtopt.errors import BackendMissingError
from trtopt.extras import install
from trtopt.report.html.page import printable
from trtopt.report.view import Chart, Spec, shown

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
_NAMED = 6
Datum = dict[str, Any]


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

    def as_text(self, row: Datum) -> str:
        """A row's value in words."""
        if self.form is None:
            return str(row[self.field])
        if self.form == "d":
            return f"{self.name} {row[self.field]}"
        return f"{shown(row[self.field], self.form)} {self.name}"


def chart(
    title: str,
    rows: Sequence[Datum],
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
    complete = [layer if "data" in layer else _with_tooltip(layer, says) for layer in layers]
    spec: Spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",  # its name: nothing is fetched
        "width": "container",
        "height": "container",
        "data": {"values": list(rows)},
        **(complete[0] if len(complete) == 1 else {"layer": complete}),
        **rest,
    }
    return Chart(
        title, _plain(spec), text or listed([_sentence(row, says) for row in rows]), height, is_small
    )


_ENCODING = ("x", "y", "x2", "y2", "color", "size", "text")


def marks(shape: str, rows: Sequence[Datum] | None = None, says: Sequence[Channel] = (), **rest: Any) -> Spec:
    """A layer of marks of the chart's rows, or of `rows`; `rest` are channels, and how the marks look."""
    encoding = {name: rest.pop(name) for name in _ENCODING if isinstance(rest.get(name), (Channel, dict))}
    data = {} if rows is None else {"data": {"values": list(rows)}}
    return _with_tooltip({**data, "mark": {"type": shape, **rest}, "encoding": encoding}, says)


def _with_tooltip(layer: Spec, says: Sequence[Channel]) -> Spec:
    tooltip = {"tooltip": [one.as_tooltip() for one in says]} if says else {}
    return {**layer, "encoding": {**layer["encoding"], **tooltip}}


def _plain(value: Any) -> Any:
    """With every channel in Vega-Lite's JSON."""
    if isinstance(value, Channel):
        return value.encoded()
    if isinstance(value, dict):
        return {key: item if key == "values" else _plain(item) for key, item in value.items()}
    return list(map(_plain, value)) if isinstance(value, (list, tuple)) else value


def _sentence(row: Datum, says: Sequence[Channel]) -> str:
    """`batch 8: 0.122 ms, 14,614 samples/s`: what it is, and its figures."""
    known = [one for one in says if row.get(one.field) not in (None, "")]
    names = [one.as_text(row) for one in known if one.form in (None, "d")]
    figures = [one.as_text(row) for one in known if one.form not in (None, "d")]
    return ": ".join(filter(None, (", ".join(names), ", ".join(figures))))


def listed(parts: Sequence[str]) -> str:
    """The first few parts in one sentence, for a chart's text."""
    more = len(parts) - _NAMED
    return "; ".join(parts[:_NAMED]) + (f"; and {more} more" if more > 0 else "")


# ── colours ─────────────────────────────────────────────────────────────────────────────────────────────


def coloured(field: str, name: str = "", **more: Any) -> Channel:
    """A field of names as a colour, with a legend."""
    legend = {"orient": "bottom", "columns": 3, "labelLimit": 300}
    return Channel(field, name, more={"title": None, "legend": legend, **more})


def coloured_types(types: Iterable[str]) -> Channel:
    """The field `type` as a colour; the types on show stand in the order of the table above."""
    order = [*_TYPES.values(), _OTHER]
    domain = sorted(set(types), key=lambda dtype: (order.index(_type_colour(dtype)), dtype))
    scale = {"domain": domain, "range": [_type_colour(dtype) for dtype in domain]}
    return coloured("type", "type", scale=scale)


def _type_colour(dtype: str) -> str:
    """The colour of a type; a requested one, in brackets, has that of the type."""
    name = dtype.strip("()")
    return next((colour for start, colour in _TYPES.items() if name.startswith(start)), _OTHER)


# ── as one image ────────────────────────────────────────────────────────────────────────────────────────

SVG_BEGINS = b'<svg data-generator="trtopt" '
_WIDTH = 600
_TITLE_WIDTH = 90
_TEXT, _LINE = "#7d8590", "#7d859055"
"""Grey: on white and on black alike."""

_CONFIG: Spec = {
    "background": None,
    "font": "system-ui, sans-serif",
    "padding": 8,
    "title": {"color": _TEXT, "anchor": "start", "fontWeight": "normal"},
    "axis": {
        **dict.fromkeys(("labelColor", "titleColor"), _TEXT),
        **dict.fromkeys(("gridColor", "domainColor", "tickColor"), _LINE),
        "titleFontWeight": "normal",
        "labelOverlap": True,
    },
    "legend": {"labelColor": _TEXT, "titleColor": _TEXT},
    "view": {"stroke": None},
    "mark": {"color": "#64a0d8"},
    "text": {"color": _TEXT},
    "rule": {"color": _TEXT},
    "style": {"overlay": {"color": _TEXT}},
}
"""As the page's script has it, for both schemes at once: small, legible on light and on dark."""


def svg_of(charts: Sequence[Chart]) -> str:
    """All in one image."""
    try:
        from vl_convert import vegalite_to_svg
    except ImportError as error:
        raise BackendMissingError(f"{error.name or error} is not installed", install("report")) from None
    own = {"color": "independent", "size": "independent"}
    drawn = vegalite_to_svg({"vconcat": list(map(_sized, charts)), "resolve": {"scale": own}}, config=_CONFIG)
    return SVG_BEGINS.decode() + str(drawn).removeprefix("<svg ") + "\n"


def _sized(chart: Chart) -> Spec:
    """With its title in the image."""
    spec = {name: part for name, part in chart.spec.items() if name != "$schema"}
    title = {"text": textwrap.wrap(chart.title, _TITLE_WIDTH)}
    sized: Spec = printable({**spec, "title": title, "width": _WIDTH, "height": chart.height})
    return sized
