"""Steps that write one model: exported from PyTorch, or rewritten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from trtopt.builder.shapes import fixed_lengths
from trtopt.device.ort.reference import open_reference
from trtopt.errors import UsageError
from trtopt.export import export as exporting
from trtopt.export.source_module import from_callable, from_spec, load_checkpoint, need
from trtopt.export.spec import find
from trtopt.inspect.model_difference import model_difference
from trtopt.onnxio import extraction
from trtopt.onnxio.disk_space import Note
from trtopt.onnxio.model_file import check_changed_to, load, save
from trtopt.onnxio.model_info import read_onnx, tensor_spec
from trtopt.onnxio.prepare import count_nodes
from trtopt.records import Extraction, ModelDifference
from trtopt.requests.models import DiffRequest, ExportRequest, ExtractRequest, RewriteRequest
from trtopt.rewrite.rewrite import rewrite_model
from trtopt.rewrite.rewrite_trace import RewriteTrace


def export(request: ExportRequest) -> exporting.Exported:
    """Export a model and compare the file with PyTorch; see `trtopt.export`."""
    need("torch", "onnxscript")
    model, checkpoint = request.model, request.checkpoint
    if ":" in model and not model.endswith(".toml"):
        subject = from_callable(model)
    else:
        subject = from_spec(find(model), request.variant, use_own_weights=checkpoint is None)
    if checkpoint is not None:
        load_checkpoint(subject.module, Path(checkpoint), strict=request.strict, unused=subject.unused)
    return exporting.export(
        subject,
        Path(request.output),
        open_reference,
        exporter=request.exporter,
        opset_version=request.opset,
        external_data=request.external_data,
        allow_traced_branches=request.allow_traced_branches,
    )


def rewrite(
    request: RewriteRequest, note: Note, accept: Callable[[RewriteTrace], object] = lambda trace: None
) -> RewriteTrace:
    """See `trtopt.rewrite`; `accept` is shown the trace before anything is written."""
    if request.dynamic_batch and request.batch is not None:
        raise UsageError(
            f"--batch {request.batch} fixes the batch, --dynamic-batch opens it", "omit one of them"
        )
    sizes, shapes = request.sizes, {}
    if request.batch is not None or sizes.shapes or sizes.axes:
        inputs = read_onnx(Path(request.model)).inputs
        shapes = fixed_lengths(inputs, request.batch, sizes)
    return rewrite_model(
        Path(request.model),
        Path(request.output),
        target=request.target,
        rules=request.rules,
        skip=request.skip,
        clean=request.clean,
        check=request.check,
        data=request.data,
        dynamic_batch=request.dynamic_batch,
        shapes=shapes,
        io=request.io_request,
        accept=accept,
        note=note,
    )


def extract(request: ExtractRequest) -> Extraction:
    """See `trtopt.extract`."""
    source, out = Path(request.model), Path(request.output)
    check_changed_to(out, source)
    model = load(source)
    part = extraction.extract(model.proto, request.inputs, request.outputs)
    made = Extraction(
        source=str(source),
        out=str(out),
        inputs=tuple(map(tensor_spec, part.graph.input)),
        outputs=tuple(map(tensor_spec, part.graph.output)),
        nodes_before=count_nodes(model.proto),
        nodes=count_nodes(part),
    )
    save(replace(model, proto=part), out)
    return made


def diff(request: DiffRequest) -> ModelDifference:
    """See `trtopt.diff`."""
    a, b = Path(request.model), Path(request.other)
    return model_difference(load(a), load(b), (str(a), str(b)))
