"""`trtopt export`: writes a PyTorch model as a checked ONNX file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtopt.cli.declared import command
from trtopt.requests.models import ExportRequest

if TYPE_CHECKING:
    from trtopt.export.export import Exported


@command(ExportRequest)
def export(request: ExportRequest) -> None:
    """Export MODEL to ONNX and compare the file with PyTorch.

    MODEL is a name of the collection (see `trtopt models`), a model file (TOML), or package.module:callable
    (or FILE.py:callable) that returns (module, {input name: example tensor}).
    """
    from trtopt.cli.console import say
    from trtopt.cli.progress import phases
    from trtopt.workflows.requested import export as run

    with phases(f"exporting {request.model}"):
        exported = run(request)
    say(*_summary(exported))


def _summary(exported: Exported) -> list[str]:
    lines = [f"{exported.path}: opset {exported.opset}, {exported.nodes} nodes"]
    if exported.external is not None:
        lines.append(f"  weights in {exported.external.name}: keep the two files together")
    for check in exported.checks:
        sizes = ", ".join(f"{name} {size}" for name, size in check.sizes.items()) or "fixed sizes"
        lines.append(f"  agrees with PyTorch at {sizes}: largest relative difference {check.worst:.1e}")
    return lines
