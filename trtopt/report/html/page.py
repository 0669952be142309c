"""The parts of a page, and how they become HTML.

Text reaches the page through the template, which escapes it, or as JSON, from which the page's script makes
text nodes. Control characters are written as escapes on both ways. A Content-Security-Policy lets only the
page's own scripts run, by their hashes, and lets nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal
from zlib import crc32

from trtopt.errors import ArtifactError, BackendMissingError
from trtopt.extras import install
from trtopt.printable import visible
from trtopt.report.view import Block, Chart, Table, cell_text

_EXPORTS = "window.vegaEmbed = vegaEmbed;"


# ── what a page consists of ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Section:
    """A reader's question, answered by a panel for each subject, such as an engine or a result file.

    `opened` is the panel that shows at first; empty: the first one.
    """

    id: str
    title: str
    panels: Mapping[str, Sequence[Block]]
    opened: str = ""


@dataclass(frozen=True)
class Mark:
    """Whether the figures are trustworthy, in a word and a sentence."""

    level: Literal["good", "caution", "bad"]
    text: str


@dataclass(frozen=True)
class Figure:
    """One headline figure and its label."""

    name: str
    value: str
    remark: str = ""
    unit: str = ""


@dataclass(frozen=True)
class Page:
    """A whole page: title, facts of its subject, the answer above the fold, the sections below it.

    The answer is `figures`, `answer` and the next `steps`, beside `charts`.
    """

    title: str
    facts: Sequence[str]
    mark: Mark
    figures: Sequence[Figure]
    answer: Sequence[Block]
    sections: Sequence[Section]
    charts: Sequence[Chart] = ()
    steps: Sequence[str] = ()


# ── as HTML ─────────────────────────────────────────────────────────────────────────────────────────────


def library_name() -> str:
    """What `plotting_library` is kept under: another name for another vl-convert, or other exports."""
    from importlib.metadata import version

    try:
        import jinja2  # noqa: F401
        import vl_convert  # noqa: F401  (what the page is made with: told before any work)
    except ImportError as error:
        raise BackendMissingError(f"{error.name or error} is not installed", install("report")) from None
    return f"vega-{version('vl-convert-python')}-{crc32(_EXPORTS.encode()):08x}.js"


def plotting_library() -> str:
    """JavaScript that defines `vegaEmbed`; takes one to two seconds to bundle.

    Vega, as vl-convert bundles it: 0.9 MB against plotly.js's 4.8 MB and Bokeh's 1.3 MB. All three are
    maintained and work offline.
    """
    from vl_convert import javascript_bundle

    return javascript_bundle(_EXPORTS)


def page_of(shown: Page, library: str, made: str) -> str:
    """A whole page as HTML.

    Args:
        shown: what is on it.
        library: JavaScript that defines `vegaEmbed`; see `plotting_library`.
        made: the program that made the page, and when.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader(__package__, "."),
        autoescape=True,
        finalize=_finalise,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    data: dict[str, list[Any]] = {"tables": [], "charts": []}

    def placed(block: Table | Chart) -> int:
        """Where the page's script finds it."""
        kind, of_block = ("tables", _table(block)) if isinstance(block, Table) else ("charts", block.spec)
        data[kind].append(printable(of_block))
        return len(data[kind]) - 1

    environment.filters |= {"kind": lambda block: type(block).__name__, "placed": placed}
    scripts = [_closed(library), _asset("page.js")]
    return environment.get_template("page.html.jinja").render(
        page=shown,
        made=made,
        style=_asset("page.css"),
        scripts=scripts,
        policy=_policy(scripts),
        newline=Markup("\n"),
        data=lambda: _embedded(data),  # called last
    )


def _finalise(value: Any) -> Any:
    """Escape everything that the template prints, except text marked as HTML."""
    return value if hasattr(value, "__html__") or not isinstance(value, str) else visible(value)


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def _closed(script: str) -> str:
    """A script that cannot end its element early."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _policy(scripts: Sequence[str]) -> str:
    """Vega compiles the expressions of charts, hence 'unsafe-eval'."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    )
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-eval' {hashes}"


def _embedded(data: dict[str, list[Any]]) -> str:
    """As JSON without characters special to HTML."""
    try:
        text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    except ValueError:
        raise ArtifactError(
            "the files hold numbers that a page cannot show", "measure again: these files were edited"
        ) from None
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _table(block: Table) -> dict[str, Any]:
    """The columns that the page has, the rows, which it sorts, and the text of each figure."""
    columns, rows = block.on("page")
    names = [column.name for column in columns]
    return {
        "title": "; ".join(filter(None, (block.title, block.caption))),
        "columns": [
            {"name": name, "is_text": column.form is None or any(isinstance(row[n], str) for row in rows)}
            for n, (name, column) in enumerate(zip(names, columns, strict=True))
        ],
        "rows": rows,
        "texts": [
            [
                None if isinstance(cell, str) else cell_text(column, cell)
                for column, cell in zip(columns, row, strict=True)
            ]
            for row in rows
        ],
        "details": block.details,
        "sorted_by": names.index(block.sorted_by) if block.sorted_by in names else None,
    }


def printable(value: Any) -> Any:
    """The value with control characters in texts escaped, and floats in six digits."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: printable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [printable(item) for item in value]
    return value
