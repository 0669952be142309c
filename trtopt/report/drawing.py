"""Charts as one SVG image, below one another: small, legible on light and on dark, without scripts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from trtopt.errors import BackendMissingError
from trtopt.extras import install
from trtopt.report.html.page import printable
from trtopt.report.view import Chart, Spec, View

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
"""As the page's script has it, for both schemes at once."""


def charts_of(view: View) -> Iterator[Chart]:
    """Those that a page shows open."""
    return (block for block in view.on("page") if isinstance(block, Chart) and not block.is_folded)


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
