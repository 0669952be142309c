"""From a folder's contents to the page.

Text reaches the page through the template, which escapes it, or as JSON, from which the page's script makes
text nodes. Control characters are written as escapes on both ways. A Content-Security-Policy lets only the
page's own scripts run, by their hashes, and lets nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from trtopt.errors import ArtifactError
from trtopt.printable import visible
from trtopt.report.html.blocks import Block, Chart, Page, Table


def page_of(shown: Page, library: str, made: str) -> str:
    """A whole page as HTML.

    Args:
        shown: what is on it.
        library: JavaScript that defines `vegaEmbed`; see `plotting_library`.
        made: the program that made the page, and when.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(__package__, "."),
        autoescape=True,
        finalize=_finalise,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["kind"] = lambda block: type(block).__name__
    scripts = [_closed(library), _asset("page.js")]
    return environment.get_template("page.html.jinja").render(
        page=shown,
        made=made,
        style=_asset("page.css"),
        scripts=scripts,
        policy=_policy(scripts),
        data=_embedded(shown),
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
    """Vega compiles its expressions, hence 'unsafe-eval': `treemap.py` and `timeline.py` have them all."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    )
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-eval' {hashes}"


def _embedded(shown: Page) -> str:
    """Tables and charts by the place of their block, as JSON without characters special to HTML."""
    blocks: dict[str, dict[str, Any]] = {"tables": {}, "charts": {}}
    for place, block in _placed(shown):
        if isinstance(block, Table):
            blocks["tables"][place] = _printable(asdict(block))
        elif isinstance(block, Chart):
            blocks["charts"][place] = _printable(block.spec)
    try:
        text = json.dumps(blocks, allow_nan=False, separators=(",", ":"))
    except ValueError:
        raise ArtifactError(
            "the files hold numbers that a page cannot show", "measure again: these files were edited"
        ) from None
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _placed(shown: Page) -> Iterator[tuple[str, Block]]:
    """Every block with its place, which the template counts in the same way."""
    groups = {"answer-0": shown.answer, "charts-0": shown.charts}
    for question in shown.questions:
        groups[f"{question.id}-0"] = question.answer
        for section in question.sections:
            groups |= {f"{section.id}-{p}": panel.blocks for p, panel in enumerate(section.panels)}
    for group, blocks in groups.items():
        yield from ((f"{group}-{number}", block) for number, block in enumerate(blocks))


def _printable(value: Any) -> Any:
    """The value with control characters in texts escaped, and floats in six digits."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _printable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_printable(item) for item in value]
    return value
