"""The step of a build that writes 16-bit types into the model."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from trtopt.errors import UsageError
from trtopt.onnxfile import read_onnx
from trtopt.records import Backend, OnnxArtifact, to_json
from trtopt.workspace import write_atomically

TRACE_FILE = "cast.json"
Precision = Literal["fp32", "fp16", "bf16"]
_HALF_TYPES = {"float16", "bfloat16"}


def cast_kept(
    kept: OnnxArtifact, precision: Precision | None, data: str | None, backend: Backend
) -> tuple[OnnxArtifact, str] | None:
    """The build folder's model in `precision`, beside it with a trace, and a note; None if nothing is due.

    Raises:
        UsageError: FP32 of a graph that has 16-bit types, or DATA for no cast.
        ModelError, DataError, OutputError: see `precision.casting.api.cast_model`.
    """
    if precision is None or precision == "fp32":
        if data is not None:
            raise UsageError("--calib: nothing here needs data", "add --precision fp16 or bf16, or leave it")
        if precision == "fp32" and not _HALF_TYPES.isdisjoint(kept.types):
            raise UsageError(
                "--precision fp32: the graph has 16-bit types", "export it in FP32, or leave --precision away"
            )
        return None
    from trtopt.precision.casting.api import cast_model

    source = Path(kept.path)
    out = source.with_name(f"{source.stem}.{precision}{source.suffix}")
    report = cast_model(source, out, precision=precision, target=_target(backend), data=data)
    report = msgspec.structs.replace(report, source=source.name, out=out.name)
    write_atomically(source.with_name(TRACE_FILE), to_json(report))
    values = "random data" if report.data_is_random else report.data
    said = (
        f"cast to {precision.upper()}: {len(report.lowered)} nodes, {len(report.kept)} stay FP32, "
        f"values from {values}; {TRACE_FILE} tells which and why"
    )
    return msgspec.structs.replace(read_onnx(out), parent=kept.sha256), said


def _target(backend: Backend) -> str:
    """8.6 takes FP32 scales, everything later 16-bit ones."""
    is_old = backend.name == "tensorrt" and backend.version.startswith(("8.", "9."))
    return "8.6" if is_old else "10"
