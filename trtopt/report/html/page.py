"""From a folder's contents to the page.

Text reaches the page through the template, which escapes it, or as JSON, from which the page's script makes
text nodes. Control characters are written as escapes on both ways. A Content-Security-Policy lets only the
page's own scripts run, by their hashes, and lets nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

from trtopt.errors import ArtifactError
from trtopt.printable import visible
from trtopt.records import Collected
from trtopt.report.html.blocks import Chart, Section, Table
from trtopt.report.html.fusion import difference_section, fusion_section, precision_section
from trtopt.report.html.latency import batch_section, latency_section
from trtopt.report.html.layers import layers_section
from trtopt.report.html.memory import memory_section
from trtopt.report.html.provenance import commands_section, environment_section
from trtopt.report.html.roofline import roofline_section
from trtopt.report.html.summary import summary_section


@dataclass(frozen=True)
class _Makers:
    """The commands that create the parts a folder lacks."""

    measure: str
    batches: str
    profile: str
    difference: str
    memory: str
    build: str


def _makers(collected: Collected) -> _Makers:
    folder = shlex.quote(collected.folder)
    source = "MODEL.onnx" if collected.manifest is None else folder
    multi_profile = " --batch 1,8,32" if collected.manifest is None else ""
    into = f"--json {shlex.quote(f'{collected.folder}/result.json')}"
    has_one_engine = collected.manifest is not None and len(collected.manifest.engines) == 1
    return _Makers(
        measure=f"trtopt bench {source} {into}",
        batches="trtopt build MODEL.onnx -o ENGINES --batch 1,8,32"
        if has_one_engine
        else f"trtopt bench {source}{multi_profile} {into}",
        profile=f"trtopt profile {source}{_result_with_layers(collected)} -o {folder}",
        difference=f"trtopt profile {source} --against EARLIER -o {folder}",
        memory=f"trtopt profile {source} --memory -o {folder}",
        build="trtopt build MODEL.onnx -o ENGINES",
    )


def _result_with_layers(collected: Collected) -> str:
    """The `--result` flag for a result file with layer times, which need not be measured again."""
    for file, report in collected.results.items():
        if all(point.layers is not None for point in report.points):
            return f" --result {shlex.quote(f'{collected.folder}/{file}')}"
    return ""


def sections(collected: Collected) -> list[Section]:
    """All sections of the page, in order."""
    makers = _makers(collected)
    return [
        summary_section(collected),
        latency_section(collected, makers.measure),
        batch_section(collected, makers.batches),
        layers_section(collected, makers.profile),
        fusion_section(collected, makers.profile),
        precision_section(collected, makers.profile),
        roofline_section(collected, makers.profile),
        memory_section(collected, makers.memory),
        difference_section(collected, makers.difference),
        environment_section(collected, makers.build),
        commands_section(collected),
    ]


def page(collected: Collected, library: str, made: str) -> str:
    """A folder's contents as HTML; see `page_of`."""
    return page_of(collected.name, sections(collected), library, made)


def page_of(title: str, shown: Sequence[Section], library: str, made: str) -> str:
    """A whole page as HTML.

    Args:
        title: its heading.
        shown: its sections, in order.
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
        title=title,
        made=made,
        sections=shown,
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
    """Vega compiles its expressions, hence 'unsafe-eval': they are all in `charts.py` and `treemap.py`."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    )
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-eval' {hashes}"


def _embedded(shown: Sequence[Section]) -> str:
    """Tables and charts by the place of their block, as JSON without characters special to HTML."""
    blocks: dict[str, dict[str, Any]] = {"tables": {}, "charts": {}}
    for section in shown:
        for p, panel in enumerate(section.panels):
            for b, block in enumerate(panel.blocks):
                place = f"{section.id}-{p}-{b}"
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
