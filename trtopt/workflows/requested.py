"""Requests of one step, carried out: what they hold as text is read here, for commands and for Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast as typed

from trtopt.records.precision import parse_forms
from trtopt.records.tensors import read_io_request
from trtopt.targets import DEFAULT
from trtopt.workflows.listener import Listener

if TYPE_CHECKING:
    from trtopt.export.export import Exported
    from trtopt.precision.calibrate import Smoothing
    from trtopt.records import Manifest
    from trtopt.records.precision import CastReport, QuantizeReport
    from trtopt.requests.build import BuildRequest
    from trtopt.requests.models import CastRequest, ExportRequest, QuantizeRequest, RewriteRequest
    from trtopt.rewrite.rewrite_trace import RewriteTrace
    from trtopt.workflows.precision.quantize import Request

Note = Callable[[str], None]


def build(request: BuildRequest, listener: Listener) -> Manifest:
    """See `trtopt.build`."""
    from trtopt.workflows.build.build import build

    return build(
        request.model,
        request.output,
        request.recipe,
        force=request.force,
        nvtx=request.nvtx,
        memory=request.memory,
        cache_dir=request.cache_dir,
        listener=listener,
    )


def export(request: ExportRequest) -> Exported:
    """See `trtopt.export`."""
    from trtopt.workflows.export import export_model

    return export_model(
        request.model,
        request.output,
        variant=request.variant,
        exporter=request.exporter,
        dtype=request.dtype,
        checkpoint=request.checkpoint,
        strict=request.strict,
        opset=request.opset,
        external_data=request.external_data,
        allow_traced_branches=request.allow_traced_branches,
    )


def rewrite(
    request: RewriteRequest, note: Note, accept: Callable[[RewriteTrace], object] = lambda trace: None
) -> RewriteTrace:
    """See `trtopt.rewrite`; `accept` is shown the trace before anything is written."""
    from trtopt.rewrite.rewrite import rewrite_model

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
        io=read_io_request(request.io or {}, request.normalize or {}, request.preprocess),
        keep_going=request.keep_going,
        accept=accept,
        note=note,
    )


def cast(
    request: CastRequest, note: Note, accept: Callable[[CastReport], object] = lambda report: None
) -> CastReport:
    """See `trtopt.cast`; `accept` is shown the report before anything is written."""
    from trtopt.precision.casting.cast import cast_model

    return cast_model(
        Path(request.model),
        Path(request.output),
        precision=request.precision,
        target=request.target,
        data=request.data,
        threshold=request.threshold,
        keep=request.exclude,
        keep_op=request.keep_op,
        include=request.include,
        cast_io=request.cast_io,
        compare=request.compare,
        accept=accept,
        note=note,
    )


def quantize(
    request: QuantizeRequest,
    listener: Listener,
    accept: Callable[[QuantizeReport], object] = lambda report: None,
) -> QuantizeReport:
    """See `trtopt.quantize`; `accept` is shown the report before anything is written."""
    from trtopt.workflows.precision.quantize import quantize

    return quantize(request.model, request.output, quantisation(request), listener, accept)


def quantisation(request: QuantizeRequest) -> Request:
    """What is asked of the graph."""
    from trtopt.workflows.precision.quantize import Request

    return Request(
        precision=request.precision,
        target=request.target or DEFAULT,
        calib=None if request.data is None else str(request.data),
        table=None if request.table is None else Path(request.table),
        method=request.method,
        exclude=request.exclude,
        include=request.include,
        smoothquant=typed("Smoothing", request.smoothquant),
        forms=None if request.forms is None else parse_forms(request.forms),
        store_weights=request.store_weights,
        random_data=request.random_data,
        io=read_io_request(request.io or {}, request.normalize or {}, request.preprocess),
    )
