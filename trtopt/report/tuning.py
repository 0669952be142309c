"""Results of `trtopt tune` and `trtopt optimize`: what was gained, the candidates."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from trtopt.measure.statistics.comparison import allowed_between_runs, spread_source
from trtopt.printable import counted
from trtopt.records import Ledger, LedgerEntry, Optimized, OptimizedPoint, Trust, Tuned
from trtopt.report.view import (
    Block,
    Column,
    Lines,
    Note,
    Severity,
    Table,
    View,
    cells_of,
    columns_of,
    plain,
    table,
    view_of,
)
from trtopt.targets import NOT_TENSORRT, ONNXRUNTIME

_BETTER = {"latency": "lower latency", "p99": "lower p99"}
"""What a share saved is, by objective; a throughput is said in samples per second."""


@view_of.register
def tuned_view(tuned: Tuned) -> View:
    """What was gained and where it is, the ledger, and why it ended."""
    ledger = tuned.ledger
    spent = f"{ledger.spent_s:.0f} s" if ledger.spent_s < 120 else f"{ledger.spent_s / 60:.0f} min"
    tried = f"{counted(len(ledger.entries), 'candidate')} in {spent}"
    blocks: list[Block] = [
        Lines([gain_line(ledger), deploy_line(tuned)]),
        *([ledger_table(ledger)] if ledger.entries else []),
        Lines([f"ended after {tried}: {tuned.stopped}", separate_runs_line(ledger, tuned.folder)]),
    ]
    rows = (
        {"candidate": entry.candidate, "expected_gain": entry.expected_gain, **cells_of(entry)}
        for entry in ledger.entries
    )
    return View("", blocks, plain(tuned.notes), rows=rows)


def gain_line(ledger: Ledger) -> str:
    """What was gained and how sure that is, against the baseline, and by which candidates."""
    gain, before, unit = ledger.gain, ledger.baseline.cost, ledger.baseline.unit
    if not ledger.accepted:
        return f"no candidate is better than the baseline: {before:.4g} {unit}"
    after = before * (1 - gain)
    if ledger.terms.objective == "throughput":
        gained = f"{1 / (1 - gain):.2f} times the baseline's throughput"
        figures = f"{1e3 / after:,.0f} instead of {1e3 / before:,.0f} samples/s"
    else:
        gained = f"{gain:.1%} {_BETTER[ledger.terms.objective]}"
        figures = f"{after:.4g} instead of {before:.4g} {unit}"
    return f"{gained} ({_sureness(ledger)}): {figures}, by {', '.join(ledger.accepted)}"


def _sureness(ledger: Ledger) -> str:
    """The gain's interval, and whether it is significant; or which races it is of, if not of the result's."""
    if ledger.raced is None:
        count = len(ledger.accepted)
        return "by the candidate's race" if count == 1 else f"the product of {count} races"
    low, high = ledger.raced.low, ledger.raced.high
    if ledger.terms.objective == "throughput":
        span = f"{1 / (1 - low):.2f} to {1 / (1 - high):.2f}"
    else:
        span = f"{low:.1%} to {high:.1%}"
    return f"95 %: {span}{'' if ledger.raced.is_faster else ', no significant gain'}"


def deploy_line(tuned: Tuned) -> str:
    """Where the best engine is, and how it was run."""
    terms = tuned.ledger.terms
    streams = f", {tuned.streams} streams" if tuned.streams > 1 else ""
    return (
        f"deploy {tuned.folder}: batch {tuned.batch}{streams}, {terms.backend} on {terms.device.name}"
        f"{'' if tuned.changes else ' (the baseline)'}"
    )


def separate_runs_line(ledger: Ledger, folder: str = "FOLDER") -> str:
    """What a gain, which was measured in turns, is worth in separate runs on this device."""
    spread = ledger.run_spread
    return (
        f"gains were measured in turns; separate runs of one engine differ by up to "
        f"{allowed_between_runs(spread):.1%} ({spread_source(spread, folder)})"
    )


def ledger_table(ledger: Ledger) -> Table:
    """A row per candidate, in the order in which they were tried; gains are shares saved."""
    columns: list[Column[LedgerEntry]] = [
        Column("candidate", lambda one: one.candidate),
        Column("kind", lambda one: one.kind, face="page"),
        Column("expected", lambda one: one.expected_gain, "+.1%"),
        Column("measured", lambda one: one.measured_gain, "+.1%"),
        *columns_of(("95 % from", "to"), lambda one: (one.measured_low, one.measured_high), "+.1%"),
        Column("cosine", lambda one: one.accuracy, ".6f", face="page"),
        Column("s", lambda one: one.cost_s, ".0f"),
        Column("verdict", lambda one: one.verdict),
        Column("reason", lambda one: one.reason, face="page"),
        Column("why", lambda one: one.evidence, face="page"),
    ]
    caption = f"gains are shares saved, for {ledger.terms.objective}; in the order in which they were tried"
    return table("", columns, ledger.entries, caption=caption)


# ── optimize ────────────────────────────────────────────────────────────────────────────────────────────


@view_of.register
def optimized_view(found: Optimized) -> View:
    """The verdict, the batch sizes and the accuracy."""
    columns: list[Column[OptimizedPoint]] = [
        Column("batch", lambda point: f"{point.batch}{point.trust.mark}", ""),
        Column("precision", lambda point: point.precision or "the graph's"),
        Column("p50 ms", lambda point: point.p50_ms, ".3f"),
        Column(f"p{found.percentile:g} ms", lambda point: point.latency_ms, ".3f"),
        Column("samples/s", lambda point: point.samples_per_s, ",.0f"),
    ]
    if found.goal:
        columns.append(Column(found.goal, lambda point: "met" if point.meets_goal else "not met", ""))
    blocks: list[Block] = [
        Lines([verdict_line(found), *_rule_lines(found)]),
        table("", columns, found.points),
        Lines([accuracy_line(found)]),
    ]
    return View("", blocks, _optimized_notes(found), rows=map(cells_of, found.points))


def _optimized_notes(found: Optimized) -> list[Note]:
    notes = list(found.notes)
    if few := [str(point.batch) for point in found.points if point.latency_ms is None]:
        notes.append(
            f"p{found.percentile:g} needs more samples at batch {', '.join(few)}: give a longer --duration"
        )
    if found.findings:
        notes.append(f"{counted(found.findings, 'finding')} by lint: trtopt lint {found.model}")
    doubts = [
        Note(Severity.DOUBT, f"{trust.value} ({trust.mark})", point.batch, "`trtopt bench` shows why")
        for trust in (Trust.NONE, Trust.UNSTEADY)
        for point in found.points
        if point.trust is trust
    ]
    return [*doubts, *plain(notes)]


def verdict_line(found: Optimized) -> str:
    """What to deploy, or what is not met; engines that were not measured are not to be deployed yet."""
    where = f"{found.backend} on {found.device}"
    if not found.is_accurate:
        return f"NOT MET on {where}: {'; '.join(dict.fromkeys(one.text for one in found.violations))}"
    if (best := found.best) is not None:
        keeps = f", keeps {found.goal}" if found.goal else ""
        doubt = "" if best.trust is Trust.FULL else f", which is {best.trust.value}"
        what = f"deploy {found.folder} at batch" if found.has_run_engines else "best batch"
        chosen = found.has_run_engines and best.precision and found.backend.startswith(ONNXRUNTIME)
        of_cpu = f"; {NOT_TENSORRT}" if chosen else ""
        return f"{what} {best.batch} on {where}: {_figures(found, best)}{keeps}{doubt}{of_cpu}"
    nearest = min(found.points, key=lambda point: point.latency_ms or float("inf"))
    return (
        f"NOT MET on {where}: no batch size keeps {found.goal}; "
        f"nearest is batch {nearest.batch}: {_figures(found, nearest)}"
    )


def _rule_lines(found: Optimized) -> Iterator[str]:
    """Why that batch size, and what to do where the engines were not measured."""
    if (best := found.best) is None:
        return
    if found.goal:
        yield f"batch {best.batch} has the most samples/s of those that keep {found.goal}"
    else:
        most = max(found.points, key=lambda point: point.samples_per_s)
        rule = f"batch {best.batch} has the most samples/s for its p50"
        if most != best and best.p50_ms and most.p50_ms:
            more, longer = most.samples_per_s / best.samples_per_s, most.p50_ms / best.p50_ms
            rule += f": batch {most.batch} has {more:.3g} times as many at {longer:.3g} times the p50"
        yield f"{rule}; --slo p99=10ms chooses the most within a bound"
    if not found.has_run_engines:
        yield (
            f"the engines of {found.builder} in {found.folder} were neither measured nor checked: "
            f"trtopt bench {shlex.quote(found.folder)}, on a machine with their GPU"
        )


def _figures(found: Optimized, point: OptimizedPoint) -> str:
    rate, p = f"{point.samples_per_s:,.0f} samples/s", f"p{found.percentile:g}"
    return (
        f"{rate}, {p} needs more samples"
        if point.latency_ms is None
        else f"{rate}, {p} {point.latency_ms:.3f} ms"
    )


def accuracy_line(found: Optimized) -> str:
    """The cosine against the model, and on what."""
    return (
        f"accuracy: cosine {found.cosine:.5f}, at least {found.min_cosine:g} required, "
        f"against {found.model} on {counted(found.samples, 'sample')} of {found.data}"
    )
