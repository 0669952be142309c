"""The step of a build that writes a precision into the model: casts, or Q/DQ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from trtopt.errors import UsageError
from trtopt.files.atomic import write_atomically
from trtopt.onnxio import model_file
from trtopt.onnxio.model_info import read_onnx
from trtopt.records import Backend, OnnxArtifact, to_json
from trtopt.records.precision import Forms
from trtopt.records.tensors import TypedTensor, has_int8
from trtopt.targets import target_of

if TYPE_CHECKING:
    from trtopt.workflows.precision.quantize import Request

TRACE_FILE = "cast.json"
QUANTISED_FILE = "quantize.json"
QUANTISED: tuple[str, ...] = ("int8", "fp8", "int4")
_HALF_TYPES = {"float16", "bfloat16"}
Precision = Literal["fp32", "fp16", "bf16", "int8", "fp8", "int4"]


class Typed(NamedTuple):
    """A model in a precision, notes, and why it should not be used without a look at it."""

    onnx: OnnxArtifact
    notes: tuple[str, ...]
    alarms: tuple[str, ...]


def apply_precision(
    kept: OnnxArtifact,
    precision: Precision | None,
    data: str | None,
    backend: Backend,
    forms: Forms | None = None,
    exclude: tuple[str, ...] = (),
) -> Typed | None:
    """The build folder's model in `precision`, with a trace and notes; None if nothing is to be done."""
    if precision is None or precision == "fp32":
        if data is not None:
            raise UsageError(
                "--data: nothing here needs data",
                "add --precision (fp16, bf16, int8 or fp8), or omit --data",
            )
        if precision == "fp32" and not _HALF_TYPES.isdisjoint(kept.types):
            raise UsageError(
                "--precision fp32: the graph has 16-bit types", "export it in FP32, or omit --precision"
            )
        return None
    if precision == "fp16" or precision == "bf16":  # spelled out for the type checker
        return apply_cast(kept, precision, data, backend)
    return apply_quantisation(kept, request_for(kept, precision, data, backend, forms, exclude))


def apply_cast(
    kept: OnnxArtifact,
    precision: Literal["fp16", "bf16"],
    data: str | None,
    backend: Backend,
    folder: Path | None = None,
) -> Typed:
    """The model in 16 bits, in its own folder or another."""
    from trtopt.precision.casting.cast import cast_model

    source = Path(kept.path)
    out = (folder or source.parent) / f"{source.stem}.{precision}{source.suffix}"
    report = cast_model(source, out, precision=precision, target=target_of(backend).name, data=data)
    report = msgspec.structs.replace(report, source=source.name, out=out.name)
    write_atomically(out.with_name(TRACE_FILE), to_json(report))
    values = "random data" if report.data_is_random else report.data
    note = (
        f"cast to {precision.upper()}: {len(report.lowered)} nodes, {len(report.kept)} stay FP32, "
        f"values from {values}; {TRACE_FILE} lists them with reasons"
    )
    onnx = msgspec.structs.replace(read_onnx(out), parent=kept.sha256)
    return Typed(onnx, (note, *report.notes), report.alarms)


def request_for(
    kept: OnnxArtifact,
    precision: str,
    data: str | None,
    backend: Backend,
    forms: Forms | None = None,
    exclude: tuple[str, ...] = (),
) -> Request:
    """The quantisation options of a build."""
    from trtopt.workflows.precision.quantize import Request

    if data is None and precision != "int4" and {"int8", "float8_e4m3fn"}.isdisjoint(kept.types):
        raise UsageError(
            f"--precision {precision} needs data to calibrate the ranges of tensors",
            "give --data DATA, or quantise on its own: trtopt quantize --help",
        )
    return Request(precision, target_of(backend).name, data, forms=forms, exclude=exclude)


def apply_quantisation(
    kept: OnnxArtifact, request: Request, name: str | None = None, folder: Path | None = None
) -> Typed:
    """The model with Q/DQ, its calibration table and its report, in its own folder or another; and a note.

    `name` is part of the file's name [default: the precision].
    """
    from trtopt.workflows.precision.quantize import quantize

    source = Path(kept.path)
    out = (folder or source.parent) / f"{source.stem}.{name or request.precision}{source.suffix}"
    report = quantize(source, out, request)
    table = Path(report.calibration_table).name if report.calibration_table else None
    report = msgspec.structs.replace(report, source=source.name, out=out.name, calibration_table=table)
    write_atomically(out.with_name(QUANTISED_FILE), to_json(report))
    done = sum(item.quantised for item in report.decisions)
    note = f"quantised to {request.precision.upper()}: {done} nodes; {QUANTISED_FILE} lists them with reasons"
    return Typed(msgspec.structs.replace(read_onnx(out), parent=kept.sha256), (note,), report.alarms)


class Exchanged(NamedTuple):
    """A quantised model with INT8 inputs or outputs, all typed tensors with their scales, and notes."""

    onnx: OnnxArtifact
    io: tuple[TypedTensor, ...]
    notes: tuple[str, ...]


def exchange_int8(kept: OnnxArtifact, io: tuple[TypedTensor, ...]) -> Exchanged | None:
    """The quantised model with the requested INT8 inputs and outputs; None without any."""
    if not has_int8(io):
        return None
    from trtopt.rewrite.typed_io.int8 import move_quantisation
    from trtopt.rewrite.typed_io.verification import describe

    source = Path(kept.path)
    out = source.with_name(f"{source.stem}.io{source.suffix}")
    moved = move_quantisation(model_file.load(source), io)
    model_file.save(moved.model, out)
    onnx = msgspec.structs.replace(read_onnx(out), parent=kept.sha256)
    scaled = tuple(one for one in moved.tensors if one.scale is not None)
    return Exchanged(onnx, moved.tensors, tuple(describe(scaled, moved.checked)))
