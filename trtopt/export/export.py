"""The export from subject to checked file, in order. No file gets its final name until it is right."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from trtopt.errors import ModelError
from trtopt.export.exporters import NATIVE_OPSET, Specialised, export_raw
from trtopt.export.graph import lower_to_17, name_axes, rename
from trtopt.export.source_module import Subject
from trtopt.export.spec import Exporter
from trtopt.export.verify import Check, Open, baked, trace_sizes, verify
from trtopt.files.atomic import scratch_beside, writing
from trtopt.files.outputs import check_output
from trtopt.onnxio import model_file
from trtopt.onnxio.external_data import external_files, refers_to_file, size_in_bytes, take_in, take_in_inner
from trtopt.onnxio.graph_walk import opset_of
from trtopt.onnxio.model_file import MODEL
from trtopt.onnxio.shape_inference import LARGE_BYTES, infer_shapes

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Exported:
    """What an export made. `external` is the file that holds the weights, if they are outside."""

    path: Path
    external: Path | None
    opset: int
    nodes: int
    checks: tuple[Check, ...]


def export(
    subject: Subject,
    out: Path,
    open_reference: Open,
    *,
    exporter: Exporter | None = None,
    opset_version: int | None = None,
    external_data: bool = False,
    allow_traced_branches: bool = False,
) -> Exported:
    """Export, name, check and compare; the subject's module is left in FP32.

    The exporter and the opset are the subject's own unless they are given. `allow_traced_branches` lets
    torchscript keep the way that a branch took for one input.
    """
    check_output(out, MODEL)
    exporter, opset = exporter or subject.exporter, opset_version or subject.opset
    with writing(out), scratch_beside(out) as scratch:
        raw, tensors = scratch / "raw.onnx", _traced_inputs(subject)
        guards = export_raw(
            subject, tensors, exporter, opset, raw, allow_traced_branches=allow_traced_branches
        )
        gc.collect()  # the exporter's graph holds transposed copies of the weights
        model = onnx.load(str(raw), load_external_data=False)
        weights = external_files(model, raw)  # checks their places before they are read
        rename(model, [entry.name for entry in subject.inputs], subject.outputs)
        _refuse_fixed_inputs(subject, model, guards)
        name_axes(model, {entry.name: entry.shape for entry in subject.inputs})
        if exporter == "dynamo" and opset == 17 < NATIVE_OPSET:
            lower_to_17(model)
        model = _inferred(model)
        _check(model, scratch, subject.name)
        candidate = scratch / out.name
        _save(model, scratch, candidate, external_data)
        for file in weights:
            file.unlink()  # the disk need not hold them a third time
        checks = verify(subject, open_reference(candidate))
        external = model_file.save(model_file.load(candidate), out)
    return Exported(out, external, opset_of(model), len(model.graph.node), tuple(checks))


def _traced_inputs(subject: Subject) -> tuple[torch.Tensor, ...]:
    """The inputs to trace with; the module and they become FP32."""
    import torch

    subject.module.to(torch.float32)
    tensors = (torch.from_numpy(array) for array in subject.example(trace_sizes(subject.axes)).values())
    return tuple(tensor.float() if tensor.is_floating_point() else tensor for tensor in tensors)


def _refuse_fixed_inputs(subject: Subject, model: onnx.ModelProto, guards: list[Specialised]) -> None:
    """Raise if the exporter wrote a number where an input's axis should vary."""
    for value, entry in zip(model.graph.input, subject.inputs, strict=True):
        for dim, axis in zip(value.type.tensor_type.shape.dim, entry.shape, strict=True):
            size = str(dim.dim_value or dim.dim_param)  # the default exporter writes a fixed size as a name
            if isinstance(axis, str) and axis in subject.axes and size.isdigit():
                places = [guard for guard in guards if f", {size})" in guard.guard] or guards
                by = f"{places[0].place} ({places[0].guard})" if places else "the exporter"
                raise baked(subject, axis, int(size), by)


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return infer_shapes(model)
    except onnx.shape_inference.InferenceError as error:
        raise ModelError(f"shape inference failed: {error}", "try the other exporter") from error


def _save(model: onnx.ModelProto, scratch: Path, candidate: Path, external_data: bool) -> None:
    """Write the model with its weights inside if they fit, else next to it; each straight from its file."""
    weights = filter(refers_to_file, model.graph.initializer)
    take_in([tensor for tensor in weights if size_in_bytes(tensor) < LARGE_BYTES], candidate)
    take_in_inner(model, candidate)  # constants that torchscript leaves in nodes
    model_file.save(model_file.ModelFile(model, scratch, external_data), candidate)


def _check(model: onnx.ModelProto, scratch: Path, name: str) -> None:
    """ONNX's own checker, types included, with the weights still outside: it would load them twice."""
    skeleton = scratch / "skeleton.onnx"
    onnx.save(model, str(skeleton))
    try:
        onnx.checker.check_model(str(skeleton), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(
            f"{name}: the exported file is not valid ONNX: {error}", "try the other exporter"
        ) from error
