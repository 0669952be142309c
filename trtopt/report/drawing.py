"""Charts as one SVG image, below one another: small, legible on light and on dark, without scripts."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

from trtopt.errors import BackendMissingError
from trtopt.extras import install
from trtopt.report.html.page import printable
from trtopt.report.view import Chart, Spec, Table, View

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
    "style": {
        "overlay": {"color": _TEXT},
        "treemap-title": {"fill": _TEXT, "fontWeight": "bold"},
        "treemap-label": {"fill": "#10151a", "fontSize": 11},
    },
}
"""As the page's script has it, for both schemes at once."""


def charts_of(view: View) -> Iterator[Chart]:
    """Those that a page shows open, whole: names that it takes from the table below are in them."""
    blocks = list(view.on("page"))
    for block, after in zip_longest(blocks, blocks[1:]):
        if isinstance(block, Chart) and not block.is_folded:
            yield _labelled(block, after) if isinstance(after, Table) else block


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
        from vl_convert import vega_to_svg, vegalite_to_svg
    except ImportError as error:
        raise BackendMissingError(f"{error.name or error} is not installed", install("report")) from None
    title = {"text": textwrap.wrap(chart.title, _TITLE_WIDTH)}
    sized = printable({**chart.spec, "title": title, "width": _WIDTH, "height": chart.height})
    if "vega-lite" in chart.spec["$schema"]:
        return str(vegalite_to_svg(sized, config=_CONFIG))
    # which takes its size from the page, by signals of these names
    signals = [one for one in sized["signals"] if one["name"] not in ("width", "height")]
    return str(vega_to_svg({**sized, "signals": signals, "autosize": "pad", "config": _CONFIG}))


def _labelled(chart: Chart, names: Table) -> Chart:
    """With the names of the rows that cells refer to."""
    if not isinstance(chart.spec["data"], list):
        return chart
    first, *others = chart.spec["data"]
    cells = [
        {**cell, "label": names.rows[cell["row"]][0]} if "row" in cell else cell for cell in first["values"]
    ]
    return replace(chart, spec={**chart.spec, "data": [{**first, "values": cells}, *others]})
