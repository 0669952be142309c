"""Reports of checks in words."""

from __future__ import annotations

from trtopt.records.checking import CheckReport
from trtopt.report.casting import difference_line

_LAYERS = 10


def check_summary(report: CheckReport) -> list[str]:
    """Every subject's outputs and bounds, and the layers that added most error."""
    lines = list(report.notes)
    if report.data_is_random:
        lines.append("random data: nothing is known of accuracy on real data; give --data")
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
            f"  NOT MET: {item.measure} of {item.output} is {item.found:.6g}, asked for {item.bound:.6g}"
            for item in subject.violations
        ]
    if report.layers:
        lines.append("where the error enters (its share of the tensor's energy that the node adds):")
    for layer in report.layers[:_LAYERS]:
        sqnr = "no error" if layer.sqnr_db is None else f"{layer.sqnr_db:.1f} dB"
        lines.append(f"  {layer.added:.2e}  {sqnr:>9}  {layer.node} ({layer.op}) → {layer.tensor}")
    return lines
