"""From a PyTorch model to a checked ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtopt.export.source_module import need

if TYPE_CHECKING:
    from trtopt.export.export import DType, Exported
    from trtopt.export.source_module import Subject
    from trtopt.export.spec import Exporter


def export_model(
    model: str,
    output: str | Path,
    *,
    variant: str = "full",
    exporter: Exporter | None = None,
    dtype: DType = "fp32",
    checkpoint: str | Path | None = None,
    strict: bool = True,
    opset: int | None = None,
    external_data: bool = False,
    allow_traced_branches: bool = False,
) -> Exported:
    """Export a model and compare the file with PyTorch; see `trtopt.export`."""
    need("torch", "onnxscript")
    from trtopt.device.ort.reference import open_reference
    from trtopt.export import export as run, source_module as checkpoints

    subject = _subject(model, variant, use_own_weights=checkpoint is None)
    if checkpoint is not None:
        checkpoints.load_checkpoint(subject.module, Path(checkpoint), strict=strict, unused=subject.unused)
    return run.export(
        subject,
        Path(output),
        open_reference,
        exporter=exporter,
        dtype=dtype,
        opset_version=opset,
        external_data=external_data,
        allow_traced_branches=allow_traced_branches,
    )


def _subject(model: str, variant: str, *, use_own_weights: bool) -> Subject:
    from trtopt.export.source_module import from_callable, from_spec
    from trtopt.export.spec import find

    if ":" in model and not model.endswith(".toml"):
        return from_callable(model)
    return from_spec(find(model), variant, use_own_weights=use_own_weights)
