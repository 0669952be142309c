"""Text summaries of checks."""

from __future__ import annotations

from trtopt.records.precision import CheckReport
from trtopt.report.casting import difference_line
from trtopt.report.notes import Note, Severity, plain

_LAYERS = 10


def check_summary(report: CheckReport) -> list[str]:
    """Outputs and bounds of every subject, and the layers that add most error."""
    lines = []
    for subject in report.subjects:
        at = f", batch {subject.batch}" if subject.batch is not None else ""
        lines.append(
            f"{subject.name} ({subject.backend}{at}) against {report.against}, {subject.samples} samples:"
        )
        lines += [f"  {difference_line(item)}" for item in subject.outputs]
        if subject.task is not None:
            task = subject.task
            lines.append(f"  {task.metric}: {task.checked:.4f}, the reference {task.reference:.4f}")
        lines += [
            f"  NOT MET: {item.measure} of {item.output} is {item.found:.6g}, the bound is {item.bound:.12g}"
            for item in subject.violations
        ]
    if report.layers:
        lines.append(
            "where the error enters (error energy that the node adds, as a share of the tensor's energy):"
        )
    for layer in report.layers[:_LAYERS]:
        sqnr = "no error" if layer.sqnr_db is None else f"{layer.sqnr_db:.1f} dB"
        lines.append(f"  {layer.added:.2e}  {sqnr:>9}  {layer.node} ({layer.op}) → {layer.tensor}")
    return lines


def check_notes(report: CheckReport) -> list[Note]:
    """What limits the result."""
    if not report.data_is_random:
        return plain(report.notes)
    random = "random data: accuracy on real data is unknown; give --data"
    return [Note(Severity.FINDING, random), *plain(report.notes)]
