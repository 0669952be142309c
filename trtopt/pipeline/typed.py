"""The step of a build that writes a precision into the model: casts, or Q/DQ."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from trtopt.errors import UsageError
from trtopt.onnxfile import read_onnx
from trtopt.pipeline.targets import target_of
from trtopt.records import Backend, OnnxArtifact, to_json
from trtopt.workspace import write_atomically

TRACE_FILE = "cast.json"
QUANTISED_FILE = "quantize.json"
Precision = Literal["fp32", "fp16", "bf16", "int8", "fp8", "int4"]
_HALF_TYPES = {"float16", "bfloat16"}


def typed_kept(
    kept: OnnxArtifact, precision: Precision | None, data: str | None, backend: Backend
) -> tuple[OnnxArtifact, str] | None:
    """The build folder's model in `precision`, beside it with a trace, and a note; None if nothing is due.

    Raises:
        UsageError: FP32 of a graph that has 16-bit types, DATA for no cast, or no DATA to calibrate on.
        ModelError, DataError, OutputError: see `precision.casting.api.cast_model`, `pipeline.quantize`.
    """
    if precision is None or precision == "fp32":
        if data is not None:
            raise UsageError(
                "--calib: nothing here needs data",
                "add --precision (fp16, bf16, int8 or fp8), or leave --calib away",
            )
        if precision == "fp32" and not _HALF_TYPES.isdisjoint(kept.types):
            raise UsageError(
                "--precision fp32: the graph has 16-bit types", "export it in FP32, or leave --precision away"
            )
        return None
    if precision != "fp16" and precision != "bf16":  # spelled out for the type checker
        return _quantised(kept, precision, data, backend)
    from trtopt.precision.casting.api import cast_model

    source = Path(kept.path)
    out = source.with_name(f"{source.stem}.{precision}{source.suffix}")
    report = cast_model(source, out, precision=precision, target=target_of(backend), data=data)
    report = msgspec.structs.replace(report, source=source.name, out=out.name)
    write_atomically(source.with_name(TRACE_FILE), to_json(report))
    values = "random data" if report.data_is_random else report.data
    said = (
        f"cast to {precision.upper()}: {len(report.lowered)} nodes, {len(report.kept)} stay FP32, "
        f"values from {values}; {TRACE_FILE} tells which and why"
    )
    return msgspec.structs.replace(read_onnx(out), parent=kept.sha256), said


def _quantised(
    kept: OnnxArtifact, precision: Literal["int8", "fp8", "int4"], data: str | None, backend: Backend
) -> tuple[OnnxArtifact, str]:
    """The model with Q/DQ beside it, its calibration table and its report, and a note."""
    from trtopt.pipeline.quantize import Request, quantize

    if data is None and precision != "int4" and {"int8", "float8_e4m3fn"}.isdisjoint(kept.types):
        raise UsageError(
            f"--precision {precision} needs data to find out how large tensors get",
            "give --calib DATA, or quantise on its own: trtopt quantize --help",
        )
    source = Path(kept.path)
    out = source.with_name(f"{source.stem}.{precision}{source.suffix}")
    report = quantize(source, out, Request(precision, target_of(backend), data))
    table = Path(report.table).name if report.table else None
    report = msgspec.structs.replace(report, source=source.name, out=out.name, table=table)
    write_atomically(source.with_name(QUANTISED_FILE), to_json(report))
    done = sum(item.quantised for item in report.decisions)
    said = f"quantised to {precision.upper()}: {done} nodes; {QUANTISED_FILE} tells which and why"
    return msgspec.structs.replace(read_onnx(out), parent=kept.sha256), said
