"""Steps that write one model: exported from PyTorch, or rewritten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from trtopt.builder.shapes import fixed_lengths
from trtopt.device.ort.reference import open_reference
from trtopt.errors import UsageError
from trtopt.export.export import Exported, export as export_subject
from trtopt.export.source_module import from_callable, from_spec, load_checkpoint, need
from trtopt.export.spec import find
from trtopt.inspect.model_difference import model_difference
from trtopt.onnxio import extraction
from trtopt.onnxio.model_file import check_changed_to, load, save
from trtopt.onnxio.model_info import read_onnx, tensor_spec
from trtopt.onnxio.prepare import count_nodes
from trtopt.records import Extraction, ModelDifference
from trtopt.requests.models import DiffRequest, ExportRequest, ExtractRequest, RewriteRequest
from trtopt.rewrite.rewrite import rewrite_model
from trtopt.rewrite.rewrite_trace import RewriteTrace


def export(request: ExportRequest) -> Exported:
    """Export a PyTorch model to ONNX and compare the file with PyTorch.

    Returns:
        The file with its opset, its number of nodes and the comparisons.

    Raises:
        BackendMissingError: PyTorch or onnxscript is not installed.

    Example:
        >>> exported = trtopt.export("resnet50", "exported.onnx", variant="tiny")
        >>> exported.nodes > 0
        True
    """
    need("torch", "onnxscript")
    model, checkpoint = request.model, request.checkpoint
    if ":" in model and not model.endswith(".toml"):
        subject = from_callable(model)
    else:
        subject = from_spec(find(model), request.variant, use_own_weights=checkpoint is None)
    if checkpoint is not None:
        load_checkpoint(subject.module, Path(checkpoint), strict=request.strict, unused=subject.unused)
    return export_subject(
        subject,
        Path(request.output),
        open_reference,
        exporter=request.exporter,
        opset_version=request.opset,
        external_data=request.external_data,
        allow_traced_branches=request.allow_traced_branches,
    )


def rewrite(
    request: RewriteRequest,
    accept: Callable[[RewriteTrace], object] = lambda trace: None,  # before anything is written
) -> RewriteTrace:
    """Rewrite an ONNX file so that TensorRT fuses it better, and check that it stays the same function.

    Returns:
        The rules that were applied, declined and undone, and what the check found.

    Example:
        >>> trace = trtopt.rewrite("model.onnx", "rewritten.onnx")
        >>> trace.nodes_after <= trace.nodes_before
        True
    """
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
        note=request.listener.note,
    )


def extract(request: ExtractRequest) -> Extraction:
    """Write a part of an ONNX file, from some of its tensors to others.

    Returns:
        The part's inputs and outputs, and how many nodes it has.

    Example:
        >>> part = trtopt.extract("model.onnx", "part.onnx", inputs=["a"], outputs=["b"])
        >>> part.nodes <= part.nodes_before
        True
    """
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
