"""Precision: checks, casts, quantisations, bisections, and selections by measurement."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from trtopt.errors import UsageError
from trtopt.printable import counted, some_of
from trtopt.records import (
    BatchVerdict,
    BisectReport,
    Candidate,
    CandidateTime,
    CastReport,
    CheckReport,
    KeptNode,
    KeptSet,
    LayerDifference,
    OutputDifference,
    PrecisionVerdict,
    QuantizeReport,
    RegionTime,
)
from trtopt.records.base import Row
from trtopt.report.view import (
    Block,
    Column,
    Lines,
    Note,
    Severity,
    View,
    cells_of,
    names_text,
    plain,
    table,
    view_of,
)
from trtopt.targets import target_named

_TOP_LAYERS = 10
_NAMED = 3
_OF_INTEREST = {"Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "LSTM", "GRU", "RNN", "Attention"}
_RANKED = 5
_OF_FRONT = 10
_TOP_REGIONS = 5


# ── checks ──────────────────────────────────────────────────────────────────────────────────────────────


@view_of.register
def check_view(report: CheckReport) -> View:
    """Outputs and bounds of every subject, and the layers that add most error."""
    lines = []
    for subject in report.subjects:
        at = "" if subject.batch is None else f", batch {subject.batch}"
        lines.append(
            f"{subject.name} ({subject.backend}{at}) against {report.against}, {subject.samples} samples:"
        )
        lines += [f"  {difference_line(item)}" for item in subject.outputs]
        if (task := subject.task) is not None:
            lines.append(f"  {task.metric}: {task.checked:.4f}, the reference {task.reference:.4f}")
        lines += [f"  NOT MET: {item.text}" for item in subject.violations]
    columns: list[Column[LayerDifference]] = [
        Column("added error", lambda one: one.added, ".2e"),
        Column("SQNR dB", lambda one: one.sqnr_db, ".1f"),
        Column("node", lambda one: one.node),
        Column("operator", lambda one: one.op),
        Column("tensor", lambda one: one.tensor, fit="fold"),
    ]
    title = (
        "where the error enters: error energy that the node adds, as a share of the tensor's energy "
        "(no SQNR: no error)"
    )
    blocks: list[Block] = [Lines(lines, is_copied=True)]
    if report.layers:
        blocks.append(table(title, columns, report.layers, top=_TOP_LAYERS, sorted_by="added error"))
    random = Note(Severity.FINDING, "random data: accuracy on real data is unknown; give --data")
    worst = min((one.cosine for subject in report.subjects for one in subject.outputs), default=1.0)
    met = "" if report.passed else "; a bound is not met"
    return View(
        "",
        blocks,
        [*([random] if report.data_is_random else []), *plain(report.notes)],
        f"{counted(len(report.subjects), 'subject')}, cosine {worst:.7f} at least{met}",
        (
            {"subject": subject.name, "batch": subject.batch, **cells_of(output)}
            for subject in report.subjects
            for output in subject.outputs
        ),
    )


def difference_line(item: OutputDifference) -> str:
    """One output's distance from its reference."""
    name, only_one = f"output {item.output}", "values NaN or infinite in one model only"
    if item.values and item.mismatched == item.values:  # other figures would rest on no value
        return f"{name}: all {item.values} {only_one}, none to compare"
    if item.values and item.nonfinite == item.values:
        return f"{name}: all {item.values} values NaN or infinite, none to compare"
    resized = f", not compared where the size differs (batches: {item.resized})" if item.resized else ""
    if resized and not item.values:
        return f"{name}: the size, which depends on data, differs in all batches, none to compare"
    if item.integer:
        equal = f"{item.cosine:.2%} of {item.values} values equal"
        return f"{name}: {equal}, max error {item.max_abs:.3g}{resized}"
    exact = "no error where both are finite" if item.mismatched else "no error"
    sqnr = exact if item.sqnr_db is None else f"SQNR {item.sqnr_db:.1f} dB"
    top1 = f", top-1 agreement {item.top1:.2%}" if item.top1 is not None else ""
    mismatched = f", {item.mismatched} {only_one}" if item.mismatched else ""
    return (
        f"{name}: {sqnr}, cosine {item.cosine:.7f}, max error {item.max_abs:.3g}{top1}{mismatched}{resized}"
    )


# ── casts ───────────────────────────────────────────────────────────────────────────────────────────────


@view_of.register
def cast_view(report: CastReport) -> View:
    """How many nodes are cast to 16 bits, the outputs' errors, and the nodes kept in FP32 with reasons."""
    name = report.precision.upper()
    casts = f"{report.casts} casts" if report.casts >= 0 else f"{-report.casts} fewer casts"
    lines = [
        f"{report.out}: {len(report.lowered)} nodes in {name}, {len(report.kept)} kept in FP32, "
        f"{casts}; {report.seconds:.1f} s"
        f"{'' if report.verified else ' (UNVERIFIED: not run against the original)'}",
        *(f"  {difference_line(item)}" for item in report.differences),
    ]
    if report.samples:
        lines.append(f"values measured on {report.samples} samples of {report.data}")
    groups: dict[tuple[str, str], list[KeptNode]] = defaultdict(list)
    for kept in report.kept:
        groups[kept.rule, kept.op].append(kept)
    for (rule, op), nodes in groups.items():
        named = some_of([node.node for node in nodes], _NAMED)
        lines.append(f"  FP32 by {rule}: {len(nodes)} x {op}, {nodes[0].reason} ({named})")
    if report.vanishing:
        worst = max(report.vanishing, key=lambda weight: weight.values / weight.of)
        lines.append(
            f"  some values of {len(report.vanishing)} weights become 0; at most "
            f"{worst.values / worst.of:.2%}, {worst.values} of {worst.of} of {worst.weight}"
        )
    is_random = report.samples and report.data_is_random
    random = Note(Severity.FINDING, "random data says nothing about real values: give --data")
    notes = [*([random] if is_random else []), *plain(report.notes)]
    lowered: Row = {"op": None, "precision": report.precision, "rule": None, "reason": None}
    rows: list[Row] = [{"node": node, **lowered} for node in report.lowered]
    rows += [{"precision": "fp32", **cells_of(kept)} for kept in report.kept]
    return View("", [Lines(lines, is_copied=True)], notes, rows=rows)


def explain_cast(report: CastReport, node: str) -> list[str]:
    """How one node was cast, or why it was not."""
    for kept in report.kept:
        if kept.node == node:
            return [f"{node} ({kept.op}) stays FP32: {kept.reason} (rule: {kept.rule})"]
    if node in report.lowered:
        return [
            f"{node} becomes {report.precision.upper()}: its operator supports it, and weights and values fit"
        ]
    raise UsageError(f"no floating-point node is named {node!r}", "see the names with --json -")


# ── quantisation ────────────────────────────────────────────────────────────────────────────────────────


@view_of.register
def quantize_view(report: QuantizeReport) -> View:
    """Counts, error, layers left in float with reasons, method, files."""
    layers = Counter(item.op for item in report.decisions if item.quantised)
    counts = ", ".join(f"{count} {op}" for op, count in layers.most_common())
    lines = [
        f"{report.precision} for TensorRT {report.target}: {counts} quantised; "
        f"{report.pairs} activations, {report.weights} weights; {report.seconds:.1f} s"
    ]
    lines += [
        f"output {name}: SQNR {value:.1f} dB against the original on {report.compared} samples"
        for name, value in report.sqnr_db.items()
    ]
    left = [item for item in report.decisions if not item.quantised and item.op in _OF_INTEREST]
    lines += [
        f"kept in {where}: {count} {op} because {reason}"
        for where, kept in (("float", left), ("FP32 among FP16", report.fp32))
        for (op, reason), count in Counter((item.op, item.reason) for item in kept).most_common()
    ]
    if report.method:
        less = f", {report.held} of them held out to choose it" if report.held else ""
        lines.append(f"ranges by {report.method} from {report.samples} samples{less}")
    if report.scores:
        scores = ", ".join(f"{item.method} {item.sqnr_db:.1f}" for item in report.scores)
        lines.append(f"methods on held-out samples, dB: {scores}{_why_not_the_best(report)}")
    calibration = f", {report.calibration_table}" if report.calibration_table else ""
    lines.append(f"written: {report.out}{calibration}")
    rows = map(cells_of, report.decisions)
    return View("", [Lines(lines, is_copied=True)], plain(report.notes), rows=rows)


def _why_not_the_best(report: QuantizeReport) -> str:
    best = report.scores[0]
    if report.method in (None, best.method):
        return ""
    used = next((item.sqnr_db for item in report.scores if item.method == report.method), None)
    if used is None:
        return f"; {report.method} is what --method or the table names"
    lead = f"{best.sqnr_db - used:.1f} dB"
    return (
        f"; {report.method} is used: {best.method} leads by {lead} on only {report.held} samples, which may "
        "lack the rare large values that it clips"
    )


def explain_quantization(report: QuantizeReport, node: str) -> list[str]:
    """The decision on the nodes of that name (with * and ?), its rule and its reason."""
    decisions = [item for item in report.decisions if fnmatchcase(item.node, node)]
    if not decisions:
        raise UsageError(
            f"--explain {node}: no node of that name computes floating-point numbers after rewriting",
            "--json - lists every node with its decision",
        )
    return [
        f"{item.node} ({item.op}): "
        + (f"quantised: {item.reason}" if item.quantised else f"kept in float because {item.reason}")
        + f" [{item.rule}]"
        for item in decisions
    ]


# ── bisection ───────────────────────────────────────────────────────────────────────────────────────────


@view_of.register
def bisect_view(report: BisectReport) -> View:
    """The nodes to keep, the flags that keep them, their cost, and the most sensitive nodes."""
    lines = _bisect_verdict(report)
    for subject in report.subjects:
        at = "" if subject.batch is None else f", batch {subject.batch}"
        lines.append(f"evaluated with {report.backend}{at} on {subject.samples} samples:")
        lines += [f"  {difference_line(item)}" for item in subject.outputs]
    if report.sensitivities:
        lines.append(
            f"most sensitive: error of one node in {report.precision.upper()}, as a multiple of the bound:"
        )
        lines += [
            f"  {item.error:8.3g}  {some_of(item.nodes, _NAMED)}" for item in report.sensitivities[:_RANKED]
        ]
    if report.verdict != "nothing to keep":
        lines.append("trade-off: error as a multiple of the bound, share of the operations kept, nodes kept:")
        lines += [
            f"  {item.error:8.3g}  {item.cost:7.2%}  {len(item.nodes)} nodes: "
            f"{some_of(item.nodes, _NAMED) or 'none'}"
            for item in _near_the_bound(report.front)
        ]
    if report.out:
        lines.append(f"written: {report.out}" + (f", {report.table_file}" if report.table_file else ""))
    rows: list[Row] = [{"nodes": ", ".join(one.nodes), "error": one.error} for one in report.sensitivities]
    return View("", [Lines(lines, is_copied=True)], plain(report.notes), rows=rows)


def _bisect_verdict(report: BisectReport) -> list[str]:
    low, high = report.precision.upper(), "FP32"
    if low not in ("FP16", "BF16") and not target_named(report.target).weakly_typed:
        high = "FP16"  # what is not quantised
    requested = ", ".join(f"--{name.replace('_', '-')} {value:g}" for name, value in report.bounds.items())
    spent = f"{report.evaluations} of at most {report.most_evaluations} evaluations; {report.seconds:.1f} s"
    if report.verdict == "nothing to keep":
        return [
            f"{requested} is met without keeping any node: {len(report.candidates)} nodes in {low}; {spent}"
        ]
    if report.verdict == "not met":
        return [
            f"NOT MET: {requested}, even with all {len(report.candidates)} nodes in {high}; {spent}",
            "  → relax the bounds, or locate the error with trtopt check --layers",
        ]
    size = f"{len(report.best.nodes)} of {len(report.candidates)} nodes"
    fewer = "fewer may suffice: the search used all its evaluations, raise --max-evaluations"
    return [
        f"{requested} is met with {size} kept in {high}, {report.best.cost:.1%} of the operations; {spent}",
        f"{'each of them is needed' if report.minimal else fewer}:",
        *(f"  --exclude {shlex.quote(pattern)}" for pattern in report.patterns),
    ]


def _near_the_bound(front: Sequence[KeptSet]) -> Sequence[KeptSet]:
    first = next((place for place, item in enumerate(front) if item.error <= 1), len(front))
    start = max(0, min(first - _OF_FRONT // 2, len(front) - _OF_FRONT))
    return front[start : start + _OF_FRONT]


# ── selection by measurement ────────────────────────────────────────────────────────────────────────────


def verdict_view(verdict: PrecisionVerdict) -> View:
    """Times by batch size and candidate, the choice with its reason, accuracy, and where the time went."""
    rows = [(batch, one) for batch in verdict.batches for one in batch.times]
    columns: list[Column[tuple[BatchVerdict, CandidateTime]]] = [
        Column("batch", lambda row: row[0].batch, ""),
        Column("precision", lambda row: row[1].candidate, fit="fold"),
        Column("build s", lambda row: row[1].build_seconds, ".1f"),
        Column("p50 ms", lambda row: row[1].latency_ms, ".3f"),
        Column("change", lambda row: _change(row[1]), "+.1%"),
        Column(
            "verdict", lambda row: against.verdict if (against := row[1].against_baseline) else "baseline"
        ),
        Column("choice", lambda row: "selected" if row[1].candidate == row[0].chosen else ""),
    ]
    title = (
        f"precisions interleaved on {verdict.device}, contract {verdict.contract}, "
        f"threshold {verdict.threshold:.1%}"
    )
    choices = [
        f"batch {item.batch}: {item.chosen} is selected: {item.reason}{_accuracy_of(verdict, item.chosen)}"
        for item in verdict.batches
    ]
    regions = [
        block
        for batch in verdict.batches
        for name, found in batch.regions.items()
        for block in _regions(batch, name, found)
    ]
    blocks: list[Block] = [
        Lines(choices),
        table(title, columns, rows),
        Lines([_accuracy(item) for item in verdict.candidates if item.differences]),
        *regions,
    ]
    return View("", blocks, plain(verdict.notes))


def _change(item: CandidateTime) -> float | None:
    against = item.against_baseline
    return against.ratio - 1 if against is not None and against.ratio is not None else None


def _accuracy_of(verdict: PrecisionVerdict, chosen: str) -> str:
    """The SQNR of the selected graph's worst output, and the bounds that it was to meet."""
    differences = [item for one in verdict.candidates if one.name == chosen for item in one.differences]
    ratios = [item.sqnr_db for item in differences if item.sqnr_db is not None]
    bounds = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in verdict.bounds.items())
    return f"; SQNR {min(ratios):.1f} dB, {bounds or 'no bound'}" if ratios else ""


def _accuracy(candidate: Candidate) -> str:
    """The output furthest from the model's own, and whether it misses a bound."""
    worst = min(candidate.differences, key=lambda item: item.cosine)
    in_float = f" ({len(candidate.left)} nodes left in float)" if candidate.left else ""
    broken = "; not accurate enough, not measured" if candidate.violations else ""
    return f"{candidate.name}{in_float}: {difference_line(worst)}{broken}"


def _regions(batch: BatchVerdict, name: str, regions: Sequence[RegionTime]) -> Iterator[Block]:
    """The regions that change most, by the layer pass, whose sums exceed latencies."""
    *covered, outside = regions
    title = f"batch {batch.batch}: where {name} gains and loses, ms of layers by region"
    columns: list[Column[RegionTime]] = [
        Column("region", lambda one: names_text(one.nodes) or "everything else", fit="cut"),
        Column("float", lambda one: one.float_ms, ".4f"),
        Column("Q/DQ", lambda one: one.quantised_ms, ".4f"),
        Column("change", lambda one: one.change_ms, "+.4f"),
    ]
    covered.sort(key=lambda item: -abs(item.change_ms))
    yield table(title, columns, [*covered[:_TOP_REGIONS], outside])
    hidden = len(covered) - _TOP_REGIONS
    merged = sum(item.regions for item in covered if item.regions > 1)
    lines = [f"{hidden} more regions are in the manifest"] if hidden > 0 else []
    lines += [f"{merged} regions share layers with others and are shown together"] if merged else []
    yield Lines(lines)
