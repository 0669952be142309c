"""Charts as one SVG image, below one another: small, legible on light and on dark, without scripts."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from trtopt.errors import BackendMissingError
from trtopt.extras import install
from trtopt.report.html.page import printable
from trtopt.report.view import Chart, Spec, View

SVG_BEGINS = b'<svg data-generator="trtopt" '
_WIDTH = 680
_TITLE_WIDTH = 95
_TEXT, _LINE = "#7d8590", "#7d859055"
"""Grey: on white and on black alike."""

_CONFIG: Spec = {
    "background": None,
    "font": "system-ui, sans-serif",
    "padding": 8,
    "autosize": {"type": "fit", "contains": "padding"},
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
    parts, width, top = [], 0.0, 0.0
    for number, chart in enumerate(charts):
        svg = _drawn(chart)
        # each names its clips alike
        svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>c{number}-", svg)
        parts.append(f'<g transform="translate(0,{top:g})">{svg}</g>')
        width, top = max(width, _size(svg, "width")), top + _size(svg, "height")
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    size = f'width="{width:g}" height="{top:g}" viewBox="0 0 {width:g} {top:g}"'
    return f"{SVG_BEGINS.decode()}{names} {size}>{''.join(parts)}</svg>\n"


def _size(svg: str, side: str) -> float:
    found = re.search(rf'\b{side}="([\d.]+)"', svg)
    assert found is not None
    return float(found[1])


def _drawn(chart: Chart) -> str:
    try:
        from vl_convert import vegalite_to_svg
    except ImportError as error:
        raise BackendMissingError(f"{error.name or error} is not installed", install("report")) from None
    title = {"text": textwrap.wrap(chart.title, _TITLE_WIDTH)}
    sized = printable({**chart.spec, "title": title, "width": _WIDTH, "height": chart.height})
    return str(vegalite_to_svg(sized, config=_CONFIG))
