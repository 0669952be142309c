"""From a float ONNX file to one with Q/DQ, and its calibration table."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from trtopt.data import SampleSource, open_data
from trtopt.data.feeds import seeded_source, specs_of
from trtopt.data.source import range_notes
from trtopt.errors import ModelError, UsageError
from trtopt.files.atomic import scratch_beside
from trtopt.files.outputs import check_output
from trtopt.onnxio import model_file
from trtopt.onnxio.disk_space import check_output_room
from trtopt.onnxio.graph_walk import graphs_of, name_apart
from trtopt.onnxio.half_emulation import is_low, widened
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.model_info import read_onnx
from trtopt.onnxio.weights import weight_alarms
from trtopt.precision.bounds import accuracy_alarms
from trtopt.precision.calibrate import (
    TABLE,
    QuantizationJob,
    check_method,
    no_data,
    read_table,
    table_beside,
    table_text,
)
from trtopt.precision.existing_qdq import is_quantized
from trtopt.precision.placement.draft import Precision
from trtopt.precision.placement.forms import PLAIN, Forms
from trtopt.precision.qdq import qdq_format_for
from trtopt.precision.quantize import half_nodes, make_rest_half, output_error, peaks_for_rest, quantize_graph
from trtopt.precision.ranges import MAX
from trtopt.precision.running import quantizing_bytes
from trtopt.printable import counted
from trtopt.records.precision import CalibrationTable, QuantizeReport
from trtopt.requests.models import QuantizeOptions
from trtopt.rewrite.rewrite import rewrite_model
from trtopt.rewrite.rules import quantizing_rules
from trtopt.rewrite.typed_io.requested import check_formats
from trtopt.rewrite.typed_io.typed_graph import describe, move_quantization, type_graph
from trtopt.targets import target_named

_MERGING = {"merged": ("merge-matmuls",)}


def quantize(
    model: str | Path,
    out: str | Path,
    request: QuantizeOptions,
    accept: Callable[[QuantizeReport], object] = lambda report: None,
) -> QuantizeReport:
    """Rewrite, place, calibrate and write Q/DQ: `model` becomes `out`, its table `out` + `.calibration.json`.

    `accept` is shown the report before anything is written; what it raises is raised.
    """
    began = time.perf_counter()
    source, target, listener = Path(model), Path(out), request.listener
    job, forms = job_of(request), request.graph_forms or PLAIN
    model_file.check_changed_to(target, source)
    onnx = read_onnx(source)
    io, aim = request.io_request, request.target
    check_formats(io, target_named(aim), in_engine=False)
    typing = type_graph(model_file.load(source), io, data=request.data)
    original = typing.model
    name_apart(original.proto.graph)  # ONNX Runtime refuses a model two of whose nodes share a name
    samples = _source(request, original, job.precision)
    check_output(table_beside(target), TABLE)
    check_output_room(target, quantizing_bytes(original), listener.note)
    with scratch_beside(target) as scratch:
        listener.note("rewriting the graph")
        if not io.is_empty:
            model_file.save(original, source := scratch / "typed.onnx")
        file, rewrite_notes = rewrite_in_fp32(source, scratch, aim, forms)
        listener.note("placing Q/DQ and calibrating" if samples else "placing Q/DQ")
        made = quantize_graph(file, replace(job, source=samples, model_sha256=onnx.sha256))
        notes = [*made.notes, *rewrite_notes]
        if samples is not None and not request.random_data:
            notes += range_notes(specs_of(original.proto), samples)
        tried = samples or seeded_source(original)
        if job.qdq.strongly_typed or half_nodes(made.model.proto, forms):
            listener.note("making the rest FP16")
            ranges = peaks_for_rest(made.model, tried)
            make_rest_half(made, aim, ranges, forms, is_real=request.data is not None)
        listener.note("comparing with the original")
        errors, differences, compared = output_error(original, made.model, tried)
        model_file.check_unchanged(original)
        table, alarms = made.table, accuracy_alarms(differences)
        if alarms and table is not None and table.scores and table.method != MAX:
            notes.append(
                f"{table.method} was chosen on {counted(table.held, 'held-out sample')}: "
                f"--method {MAX} clips no value"
            )
        if samples is None:
            notes.append("the output error was taken on random inputs")
        notes += [
            f"output {name!r} errs by more than it is large: see where with `trtopt check --layers`"
            for name, value in errors.items()
            if value < 0
        ]
        final = move_quantization(made.model, typing.tensors)
        notes += describe(final.tensors, (*typing.checked, *final.checked))
        report = QuantizeReport(
            source=str(model),
            out=str(target),
            calibration_table=str(table_beside(target)) if table else None,
            precision=request.precision,
            target=aim,
            method=table.method if table else None,
            samples=table.samples if table else 0,
            held=table.held if table else 0,
            compared=compared,
            random_data=table.random_data if table else False,
            forms=str(forms),
            exclude=tuple(request.exclude),
            pairs=len({edge.tensor for edge in made.plan.edges}),
            weights=len(made.plan.weights),
            decisions=made.plan.decisions,
            scores=table.scores if table else (),
            sqnr_db=errors,
            fp32=made.fp32,
            notes=tuple(notes),
            alarms=(*weight_alarms(original), *alarms),
            seconds=0.0,
        )
        accept(report)
        save(final.model, table, target)
    return msgspec.structs.replace(report, seconds=round(time.perf_counter() - began, 3))


def job_of(request: QuantizeOptions) -> QuantizationJob:
    """What is requested, without contradictions; samples and the model's hash are to be added."""
    precision, forms = request.precision, request.graph_forms
    if forms not in (None, PLAIN) and precision != "int8":
        raise UsageError(f"--forms {forms} is for INT8", "omit it, or give --precision int8")
    qdq = qdq_format_for(precision, request.target, stored=request.store_weights)
    if request.method is not None:
        check_method(request.method)
        if precision == "fp8" and request.method != "max":
            raise UsageError(
                f"--method {request.method} is for INT8", "FP8 takes the largest |x|: omit --method"
            )
    if request.random_data and (request.data is not None or request.table is not None):
        raise UsageError("--random-data and --data or --table exclude one another", "omit --random-data")
    return QuantizationJob(
        precision,
        tuple(request.exclude),
        tuple(request.include),
        forms or PLAIN,
        qdq=qdq,
        method=request.method,
        random_data=request.random_data,
        table=read_table(Path(request.table)) if request.table else None,
        table_name=str(request.table),
    )


def _source(request: QuantizeOptions, model: ModelFile, precision: Precision) -> SampleSource | None:
    """The samples to calibrate on; none for INT4 weights, a table, or a model that brings its scales."""
    if request.data is not None:
        return open_data(request.data)
    if request.random_data:
        return seeded_source(model)
    if precision != "int4" and request.table is None and not is_quantized(model.proto):
        raise no_data(precision)
    return None


def rewrite_in_fp32(
    source: Path, scratch: Path, target: str, forms: Forms = PLAIN
) -> tuple[ModelFile, list[str]]:
    """The model in FP32, BatchNorm folded and the like, its new weights to be kept in `scratch`; and remarks.

    It is verified on seeded inputs; where those do not suit the model a note says that it was not.
    """
    rules = (*quantizing_rules(target_named(target).name), *_MERGING.get(forms.qkv, ()))
    rewritten, notes = scratch / "float.onnx", list[str]()
    given = replace(model_file.load(source), spool=scratch)
    is_half = is_low(given.proto)
    names = [node.name for part in graphs_of(given.proto.graph) for node in part.node if node.name]
    if is_half or len(set(names)) < len(names):  # ONNX Runtime refuses namesakes: nothing could be verified
        name_apart(given.proto.graph)
        source = scratch / "given.onnx"
        model_file.save(widened(given) if is_half else given, source)
    if is_half:
        notes.append("the model's 16-bit types became FP32 first: scales are found in FP32")
    try:
        trace = rewrite_model(source, rewritten, target=target, rules=rules)
    except ModelError as error:
        trace = rewrite_model(source, rewritten, target=target, rules=rules, check=False)
        notes.append(f"the graph was rewritten, but not verified: {error.problem}")
    notes += [f"undone {one.rule}: {one.reason}" for one in trace.undone]
    return replace(model_file.load(rewritten), spool=scratch), notes


def save(model: ModelFile, table: CalibrationTable | None, target: Path) -> Path | None:
    """Write the model, and with it its table if there is one; where the table is."""
    if table is None:
        model_file.save(model, target)
        return None
    check_output(table_beside(target), TABLE)
    model_file.save(model, target, (table_beside(target), table_text(table)))
    return table_beside(target)
