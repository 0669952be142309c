"""What a gate says in the formats of CI services: JUnit's XML, badges and dashboards.

Only what the gate lets pass is a success in any of them; a figure that is not to be trusted is in none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from xml.etree.ElementTree import Element, SubElement, tostring

import msgspec

from trtopt.printable import visible
from trtopt.report.view import GateOutcome, GateRow

Rows = Sequence[GateRow]

_COLOURS: dict[GateOutcome, str] = {
    "failed": "red",
    "slower": "red",
    "wrong": "red",
    "untrustworthy": "orange",
    "undecided": "yellow",
}
"""Of a badge; the gravest first."""


def junit(rows: Rows) -> bytes:
    """A test case for each row: a failure where it is slower or wrong, an error where nothing is shown."""
    names = {"ok": "system-out", "slower": "failure", "wrong": "failure"}
    tags = [names.get(row.outcome, "error") for row in rows]
    counts = {"tests": len(tags), "failures": tags.count("failure"), "errors": tags.count("error")}
    totals = {"name": "trtopt", **{name: str(count) for name, count in counts.items()}}
    suites = Element("testsuites", totals)
    suite = SubElement(suites, "testsuite", totals)
    for tag, row in zip(tags, rows, strict=True):
        case = SubElement(suite, "testcase", classname="trtopt", name=visible(row.name))
        why = {} if row.outcome == "ok" else {"type": row.outcome, "message": visible(row.reason)}
        SubElement(case, tag, why).text = visible(row.reason)
    text: bytes = tostring(suites, "utf-8")
    return b'<?xml version="1.0" encoding="UTF-8"?>\n' + text + b"\n"


def badge(rows: Rows) -> bytes:
    """What a badge of shields.io shows by its `endpoint`."""
    outcomes = [row.outcome for row in rows] or ["undecided"]
    found = [one for one in _COLOURS if one in outcomes]
    message = ", ".join(f"{outcomes.count(one)} {one}" for one in found) or "not slower"
    colour = _COLOURS[found[0]] if found else "brightgreen"
    shown = {"schemaVersion": 1, "label": "trtopt", "message": message, "color": colour}
    return _json({**shown, "isError": bool(found)})


def github_action_benchmark(rows: Rows) -> bytes:
    """Its `customSmallerIsBetter`: milliseconds."""
    entries = []
    for name, row in _measured(rows):
        interval = " to ".join(f"{bound:.4g}" for bound in row.ms[1:])
        said = {"range": interval, "extra": f"{row.outcome}: {visible(row.reason)}"}
        entries.append({"name": name, "unit": "ms", "value": row.ms[0], **said})
    return _json(entries)


def bencher(rows: Rows) -> bytes:
    """Bencher Metric Format: nanoseconds, the unit of its measure `latency`."""
    names = ("value", "lower_value", "upper_value")
    found = {name: zip(names, row.ms, strict=False) for name, row in _measured(rows)}
    return _json({name: {"latency": {key: 1e6 * ms for key, ms in pairs}} for name, pairs in found.items()})


def _measured(rows: Rows) -> Iterator[tuple[str, GateRow]]:
    """What has figures to believe, with names of up to 1024 bytes, which is as many as Bencher takes."""
    for row in rows:
        if row.ms and row.outcome != "untrustworthy":
            yield visible(row.name).encode()[:1024].decode(errors="ignore"), row


def _json(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"


FORMATS: dict[str, tuple[Callable[[Rows], bytes], tuple[bytes, ...]]] = {
    "junit": (junit, (b'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites name="trtopt"',)),
    "badge": (badge, (b'{"schemaVersion":1,"label":"trtopt"',)),
    "github-action-benchmark": (github_action_benchmark, (b'[{"name":"trtopt ', b"[]")),
    "bencher": (bencher, (b'{"trtopt ', b"{}")),
}
"""By the names that `--export` has for them, each with how one knows a file that trtopt wrote."""
