"""What a gate says in the formats of CI services: JUnit's XML, GitHub's job summary, badges and dashboards.

Only what the gate lets pass is a success in any of them; a figure that is not to be trusted is in none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from xml.etree import ElementTree

import msgspec

from trtopt.printable import visible
from trtopt.report.view import GateOutcome, GateRow, View

_COLOURS: dict[GateOutcome, str] = {
    "failed": "red",
    "slower": "red",
    "untrustworthy": "orange",
    "undecided": "yellow",
}
"""Of a badge; the gravest first."""


@dataclass(frozen=True)
class Format:
    """How a view is written; `begins` is how one knows a file that trtopt wrote. Without, it is appended."""

    write: Callable[[View], bytes]
    begins: tuple[bytes, ...] = ()


def junit(view: View) -> bytes:
    """A test case for each row: a failure where it is slower, an error where nothing else is shown."""
    names = {"ok": "system-out", "slower": "failure"}
    count = Counter(names.get(row.outcome, "error") for row in view.gate)
    totals = {
        "name": "trtopt",
        "tests": str(len(view.gate)),
        "failures": str(count["failure"]),
        "errors": str(count["error"]),
    }
    suites = ElementTree.Element("testsuites", totals)
    suite = ElementTree.SubElement(suites, "testsuite", totals | {"skipped": "0"})
    for row in view.gate:
        case = ElementTree.SubElement(suite, "testcase", classname="trtopt", name=visible(row.name))
        found = ElementTree.SubElement(case, names.get(row.outcome, "error"))
        if row.outcome != "ok":
            found.attrib |= {"type": row.outcome, "message": visible(row.reason)}
        found.text = visible(row.reason)
    text: bytes = ElementTree.tostring(suites, "utf-8")
    return b'<?xml version="1.0" encoding="UTF-8"?>\n' + text + b"\n"


def summary(view: View) -> bytes:
    """Markdown."""
    return f"\n{view.markdown()}\n".encode()


def badge(view: View) -> bytes:
    """What a badge of shields.io shows by its `endpoint`."""
    count = Counter(row.outcome for row in view.gate)
    found = [one for one in _COLOURS if count[one]]
    message = ", ".join(f"{count[one]} {one}" for one in found) or "not slower"
    colour = _COLOURS[found[0]] if found else "brightgreen"
    shown = {"schemaVersion": 1, "label": "trtopt", "message": message, "color": colour}
    return _json({**shown, "isError": bool(found)})


def github_action_benchmark(view: View) -> bytes:
    """Its `customSmallerIsBetter`: milliseconds."""
    return _json(
        [
            {
                "name": visible(row.name),
                "unit": "ms",
                "value": row.value_ms,
                "range": "{:.4g} to {:.4g}".format(*row.bounds_ms) if row.bounds_ms else "",
                "extra": f"{row.outcome}: {visible(row.reason)}",
            }
            for row in _measured(view)
        ]
    )


def bencher(view: View) -> bytes:
    """Bencher Metric Format: nanoseconds, the unit of its measure `latency`."""
    names = ("value", "lower_value", "upper_value")
    return _json(
        {
            visible(row.name): {
                "latency": {
                    name: 1e6 * (ms or 0.0)
                    for name, ms in zip(names, (row.value_ms, *(row.bounds_ms or ())), strict=False)
                }
            }
            for row in _measured(view)
        }
    )


def _measured(view: View) -> list[GateRow]:
    """The rows with a figure that can be believed, and is that of the newest run."""
    return [row for row in view.gate if row.value_ms is not None and row.outcome != "untrustworthy"]


def _json(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"


FORMATS = {
    "junit": Format(junit, (b'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites name="trtopt"',)),
    "summary": Format(summary),
    "badge": Format(badge, (b'{"schemaVersion":1,"label":"trtopt"',)),
    "github-action-benchmark": Format(github_action_benchmark, (b'[{"name":"trtopt ', b"[]")),
    "bencher": Format(bencher, (b'{"trtopt ', b"{}")),
}
"""By the names that `--export` has for them."""
