"""Findings of several batch sizes in as few lines as they need: each once, with the range of its figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from trtopt.measure.analysis.findings import (
    clocks_text,
    doubts_of,
    hints_of,
    is_on_host,
    measurements_of,
    remarks,
)
from trtopt.records import BenchReport, Collected, Trust

_NUMBER = re.compile(r"(?<![\w.])[+-]?\d[\d,]*(?:\.\d+)?(?!\w)")


def grouped(findings: Iterable[tuple[int, str]]) -> list[str]:
    """(batch, text) as lines: texts that differ only in figures are one line, with the figures' ranges."""
    alike: dict[str, list[tuple[int, str]]] = {}
    for batch, text in findings:
        alike.setdefault(_NUMBER.sub("#", text), []).append((batch, text))
    return [f"{_batches(batch for batch, _ in same)}: {_merged(same)}" for same in alike.values()]


def _batches(batches: Iterable[int]) -> str:
    sizes = list(map(str, dict.fromkeys(batches)))
    return f"batch {sizes[0]}" if len(sizes) == 1 else f"batches {', '.join(sizes)}"


def _merged(same: list[tuple[int, str]]) -> str:
    columns = zip(*(_NUMBER.findall(text) for _, text in same), strict=True)
    ranges = map(_range, columns)
    return _NUMBER.sub(lambda _: next(ranges), same[0][1])


def _range(figures: Iterable[str]) -> str:
    ordered = sorted(dict.fromkeys(figures), key=lambda figure: float(figure.replace(",", "")))
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"


def distrusted(collected: Collected) -> list[str]:
    """Why figures are not trustworthy or unsteady, a line per reason, the worst first."""
    found = [
        (doubt.trust, point.batch, doubt.text)
        for report in collected.results.values()
        for point in report.points
        for doubt in doubts_of(point, on_host=is_on_host(report))
    ]
    return [
        f"{trust.value}: {line}"
        for trust in (Trust.NONE, Trust.UNSTEADY)
        for line in grouped((batch, text) for worth, batch, text in found if worth is trust)
    ]


def trust_notes(report: BenchReport) -> list[str]:
    """Clocks in one line, then everything that speaks against the figures of one result file."""
    on_host = is_on_host(report)
    clocks = clocks_text([one for point in report.points for one in measurements_of(point)])
    return [clocks, *grouped(_findings(report, on_host=on_host))]


def _findings(report: BenchReport, *, on_host: bool) -> Iterator[tuple[int, str]]:
    for point in report.points:
        for measurement in measurements_of(point):
            stream = " of one stream" if measurement is point.single_stream else ""
            for remark in remarks(measurement):
                yield point.batch, f"{measurement.mode} pass{stream}: {remark}"
        if point.failure is not None:
            yield point.batch, f"passes are missing: {point.failure}"
        for hint in hints_of(point, on_host=on_host):
            yield point.batch, f"{hint.text} → {hint.remedy}"
