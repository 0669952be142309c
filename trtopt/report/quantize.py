"""A quantisation as text: the summary, and the decision on one node."""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatchcase

from trtopt.errors import UsageError
from trtopt.records.precision import Decision, QuantizeReport

_OF_INTEREST = {"Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "LSTM", "GRU", "RNN", "Attention"}


def quantize_summary(report: QuantizeReport) -> list[str]:
    """The report as lines of text: counts, error, layers left in float with reasons, method, files."""
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
    lines += _left_in_float(report.decisions)
    lines += [
        f"kept in FP32 among FP16: {count} {op} because {reason}"
        for (op, reason), count in Counter((item.op, item.reason) for item in report.fp32).most_common()
    ]
    if report.method:
        less = f", {report.held} of them held out to choose it" if report.held else ""
        lines.append(f"ranges by {report.method} from {report.samples} samples{less}")
    if report.scores:
        scores = ", ".join(f"{item.method} {item.sqnr_db:.1f}" for item in report.scores)
        lines.append(f"methods on held-out samples, dB: {scores}{_why_not_the_best(report)}")
    table = f", {report.calibration_table}" if report.calibration_table else ""
    lines.append(f"written: {report.out}{table}")
    return lines


def _why_not_the_best(report: QuantizeReport) -> str:
    """Why the method with the best score is not the one that is used."""
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


def _left_in_float(decisions: tuple[Decision, ...]) -> list[str]:
    """Compute-heavy nodes that stay in float, by reason."""
    reasons = Counter(
        (item.op, item.reason) for item in decisions if not item.quantised and item.op in _OF_INTEREST
    )
    return [f"kept in float: {count} {op} because {reason}" for (op, reason), count in reasons.most_common()]


def explain(report: QuantizeReport, node: str) -> list[str]:
    """The decision on the nodes of that name (with * and ?), its rule and its reason.

    Raises:
        UsageError: no floating-point node has such a name.
    """
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
