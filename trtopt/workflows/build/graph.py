"""The user's model in the build folder: its inputs and outputs typed, rewritten, in a precision."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from trtopt.data.source import needs_data
from trtopt.errors import InvalidModelError, ModelError, UsageError
from trtopt.files.atomic import scratch_beside, write_atomically, writing
from trtopt.files.manifests import MANIFEST
from trtopt.onnxio import model_file
from trtopt.onnxio.model_info import load_graph, read_onnx
from trtopt.printable import size_text
from trtopt.recipe import BEST, Recipe, io_request
from trtopt.records import Backend, EngineArtifact, Manifest, OnnxArtifact, RewriteSummary, to_json
from trtopt.records.precision import OutputDifference
from trtopt.records.tensors import TypedTensor
from trtopt.requests.models import CastRequest, QuantizeOptions
from trtopt.rewrite.rewrite import rewrite_model
from trtopt.rewrite.rules import build_rules
from trtopt.rewrite.typed_io.requested import check_formats, recorded_in, type_specs
from trtopt.rewrite.typed_io.typed_graph import describe, move_quantization, type_graph
from trtopt.targets import ONNXRUNTIME, target_of
from trtopt.version import __version__
from trtopt.workflows.build.folder import in_folder
from trtopt.workflows.listener import Listener
from trtopt.workflows.precision.cast import cast
from trtopt.workflows.precision.quantize import quantize
from trtopt.workflows.provenance import command_line, now
from trtopt.workflows.workbench import MODEL_FILE, TIMING_CACHE_FILE

REWRITE_FILE = "rewrite.json"
_ONE_SIZE_BYTES = 1 << 30
"""Weights from this size on are verified at one size of each dynamic axis instead of two."""


@dataclass(frozen=True)
class PreparedGraph:
    """The user's model in a folder, and what was made of it: its rewrite, typed tensors, earlier files.

    With notes, why it should not be used without a look at it, and how far outputs were seen to differ.
    """

    onnx: OnnxArtifact
    io: tuple[TypedTensor, ...] = ()
    intermediates: tuple[OnnxArtifact, ...] = ()
    rewrite: RewriteSummary | None = None
    notes: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    differences: tuple[OutputDifference, ...] = ()

    def manifest(self, engines: tuple[EngineArtifact, ...] = ()) -> Manifest:
        """A manifest of this command, with engines of the graph."""
        return Manifest(
            trtopt=__version__,
            created=now(),
            argv=command_line(),
            onnx=in_folder(self.onnx),
            io=self.io,
            intermediates=self.intermediates,
            rewrite=self.rewrite,
            engines=engines,
            notes=self.notes,
            alarms=self.alarms,
        )


def keep_model(
    onnx: OnnxArtifact, folder: Path, recipe: Recipe, backend: Backend, listener: Listener
) -> PreparedGraph:
    """The user's model in a folder, its inputs and outputs as requested, rewritten if requested and possible.

    The recipe's samples take part in verifying the new inputs.
    """
    _check_roles(onnx)
    io, source = io_request(recipe), Path(onnx.path)
    if io.is_empty:
        kept = rewrite_into(folder, onnx, recipe, backend, listener)
        return replace(kept, io=recorded_in(load_graph(source)))
    listener.phase(source.name, "typing inputs and outputs")
    with scratch_beside(folder / MODEL_FILE) as scratch:
        made = type_graph(model_file.load(source), io, data=recipe.calib)
        file = scratch / MODEL_FILE
        model_file.save(made.model, file)
        kept = rewrite_into(folder, read_onnx(file), recipe, backend, listener)
    stated = tuple(one for one in made.tensors if one.dtype != "int8" or one.scale is not None)
    typed = msgspec.structs.replace(kept.onnx, parent=onnx.sha256)
    notes = (*describe(stated, made.checked), *kept.notes)
    return replace(kept, onnx=typed, notes=notes, io=made.tensors)


def rewrite_into(
    folder: Path, onnx: OnnxArtifact, recipe: Recipe, backend: Backend, listener: Listener
) -> PreparedGraph:
    """The model, rewritten for this TensorRT by the rules that the recipe names.

    One that cannot be rewritten or verified is copied, with a note.
    """
    if recipe.rewrite == "none" and not recipe.add_rule:
        return PreparedGraph(_copy(onnx, folder))
    source = Path(onnx.path)
    listener.phase(source.name, "rewriting the graph")

    def unchanged(note: str, summary: RewriteSummary | None = None) -> PreparedGraph:
        return PreparedGraph(_copy(onnx, folder), rewrite=summary, notes=(note,))

    size = sum(file.stat().st_size for file in model_file.load(source).files)
    free = _available_memory()
    if free is not None and size > free:  # weights are mapped; each run would read them from the disk again
        return unchanged(
            f"not rewritten: its weights take {size_text(size)}, of memory {size_text(free)} are free"
        )
    copy, target = folder / MODEL_FILE, target_of(backend).name
    try:
        trace = rewrite_model(
            source,
            copy,
            target=target,
            rules={"default": build_rules(target), "all": None, "none": ()}[recipe.rewrite],
            add=recipe.add_rule,
            clean=recipe.rewrite == "all",
            sizes=1 if size >= _ONE_SIZE_BYTES else 2,
            write_unchanged=False,
        )
    except ModelError as error:
        return unchanged(f"not rewritten: {error.problem}")
    trace = msgspec.structs.replace(trace, source=source.name, out=copy.name)
    write_atomically(folder / REWRITE_FILE, to_json(trace))
    summary = trace.summary(REWRITE_FILE)
    undone = "".join(f"; undone {one.rule}: {one.reason}" for one in trace.undone)
    if not trace.applied:
        return unchanged(f"nothing to rewrite{undone}", summary)
    done = ", ".join(f"{count} {name}" for name, count in summary.applied.items())
    limits = "".join(f"; {limit}" for limit in trace.notes)
    note = (
        f"rewritten: {trace.nodes_before} nodes are now {trace.nodes_after} ({done}), verified on "
        f"{summary.inputs_checked} inputs; details are in {REWRITE_FILE}{undone}{limits}"
    )
    rewritten = msgspec.structs.replace(read_onnx(copy), parent=onnx.sha256)
    return PreparedGraph(rewritten, rewrite=summary, notes=(note,))


def _available_memory() -> int | None:
    """Bytes that can be had without swapping; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    words = next((line.split() for line in lines if line.startswith("MemAvailable:")), None)
    return int(words[1]) * 1024 if words else None


def _check_roles(onnx: OnnxArtifact) -> None:
    """An engine has one buffer for each name."""
    inputs = {spec.name for spec in onnx.inputs}
    for spec in onnx.outputs:
        if spec.name in inputs:
            raise ModelError(
                f"{onnx.path}: {spec.name!r} is an input and an output, which engines cannot have",
                "leave it out of the outputs, or return it through an Identity under another name",
            )


def with_typed_io(onnx: OnnxArtifact, recipe: Recipe, backend: Backend) -> OnnxArtifact:
    """The model as its inputs and outputs will be, to check shapes before anything is written."""
    io = io_request(recipe)
    if io.is_empty:
        return onnx
    check_formats(io, target_of(backend), in_engine=backend.name != ONNXRUNTIME)
    recorded = recorded_in(load_graph(Path(onnx.path)))
    return msgspec.structs.replace(
        onnx,
        inputs=type_specs(onnx.inputs, io, recorded),
        outputs=type_specs(onnx.outputs, io, recorded),
    )


_OWN_NAMES = {MODEL_FILE, TIMING_CACHE_FILE, MANIFEST}


def _copy(onnx: OnnxArtifact, folder: Path) -> OnnxArtifact:
    """Copy the model, and its external data under the names that the model knows, into the build folder."""
    source = Path(onnx.path)
    _, *files = model_file.load(source).files
    for name in {str(file.relative_to(source.parent)) for file in files} & _OWN_NAMES:
        raise InvalidModelError(
            f"{source}: keeps weights in {name!r}, a name that the build folder needs itself",
            "save the model again with another name for its weights",
        )
    with writing(folder):
        for file in files:
            copy = folder / file.relative_to(source.parent)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        shutil.copyfile(source, folder / MODEL_FILE)
    return msgspec.structs.replace(onnx, path=str(folder / MODEL_FILE))


CAST_FILE = "cast.json"
QUANTIZED_FILE = "quantize.json"
_HALF_TYPES = {"float16", "bfloat16"}


def prepare_graph(kept: PreparedGraph, recipe: Recipe, backend: Backend) -> PreparedGraph:
    """The kept model in the recipe's precision, with the INT8 inputs and outputs that it is to have."""
    made, io = _apply_precision(kept.onnx, recipe, backend), kept.io
    made = replace(made, io=io, rewrite=kept.rewrite, notes=(*kept.notes, *made.notes))
    is_unscaled = any(one.dtype == "int8" != one.model_dtype and one.scale is None for one in io)
    return _exchange_int8(made) if is_unscaled else made


def _apply_precision(kept: OnnxArtifact, recipe: Recipe, backend: Backend) -> PreparedGraph:
    """With a trace and notes, if anything is to be done."""
    precision, data = recipe.precision, recipe.calib
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
        return PreparedGraph(kept)
    if precision == "fp16" or precision == "bf16":  # spelled out for the type checker
        return apply_cast(kept, precision, data, target_of(backend).name)
    return apply_quantization(kept, request_for(kept, recipe, backend))


def apply_cast(
    kept: OnnxArtifact,
    precision: Literal["fp16", "bf16"],
    data: str | Path | None,
    target: str,
    folder: Path | None = None,
) -> PreparedGraph:
    """The model in 16 bits, in its own folder or another."""
    source = Path(kept.path)
    out = (folder or source.parent) / f"{source.stem}.{precision}{source.suffix}"
    report = cast(CastRequest(source, out, precision=precision, target=target, data=data))
    report = msgspec.structs.replace(report, source=source.name, out=out.name)
    write_atomically(out.with_name(CAST_FILE), to_json(report))
    values = "random data" if report.data_is_random else report.data
    note = (
        f"cast to {precision.upper()}: {len(report.lowered)} nodes, {len(report.kept)} stay FP32, "
        f"values from {values}; {CAST_FILE} lists them with reasons"
    )
    made = _made_of(kept, out, (note, *report.notes), report.alarms)
    return replace(made, differences=report.differences)


def request_for(kept: OnnxArtifact, recipe: Recipe, backend: Backend) -> QuantizeOptions:
    """The quantisation options of a recipe; INT8's of one that selects the best precision."""
    precision = "int8" if recipe.precision == BEST else recipe.precision
    if recipe.calib is None and precision != "int4" and {"int8", "float8_e4m3fn"}.isdisjoint(kept.types):
        raise needs_data(
            f"--precision {precision}",
            "to calibrate the ranges of tensors",
            "quantise on its own: trtopt quantize --help",
        )
    return QuantizeOptions(
        precision=precision,  # type: ignore[arg-type]  # judged where it is used
        target=target_of(backend).name,
        data=recipe.calib,
        forms=recipe.forms if precision == "int8" else None,
        exclude=recipe.exclude,
    )


def apply_quantization(
    kept: OnnxArtifact, request: QuantizeOptions, name: str | None = None, folder: Path | None = None
) -> PreparedGraph:
    """The model with Q/DQ, its calibration table and its report, in its own folder or another; and a note.

    `name` is part of the file's name [default: the precision].
    """
    source = Path(kept.path)
    out = (folder or source.parent) / f"{source.stem}.{name or request.precision}{source.suffix}"
    report = quantize(source, out, request)
    table = Path(report.calibration_table).name if report.calibration_table else None
    report = msgspec.structs.replace(report, source=source.name, out=out.name, calibration_table=table)
    write_atomically(out.with_name(QUANTIZED_FILE), to_json(report))
    done = sum(item.quantised for item in report.decisions)
    note = f"quantised to {request.precision.upper()}: {done} nodes; {QUANTIZED_FILE} lists them with reasons"
    return _made_of(kept, out, (note,), report.alarms)


def _made_of(
    kept: OnnxArtifact, out: Path, notes: tuple[str, ...], alarms: tuple[str, ...] = ()
) -> PreparedGraph:
    """The graph that has been written to `out`."""
    onnx = msgspec.structs.replace(read_onnx(out), parent=kept.sha256)
    return PreparedGraph(onnx, intermediates=(in_folder(kept),), notes=notes, alarms=alarms)


def _exchange_int8(made: PreparedGraph) -> PreparedGraph:
    """The quantised model with the requested INT8 inputs and outputs, all tensors with scales, and notes."""
    source = Path(made.onnx.path)
    out = source.with_name(f"{source.stem}.io{source.suffix}")
    moved = move_quantization(model_file.load(source), made.io)
    model_file.save(moved.model, out)
    scaled = tuple(one for one in moved.tensors if one.scale is not None)
    notes = (*made.notes, *describe(scaled, moved.checked))
    onnx = msgspec.structs.replace(read_onnx(out), parent=made.onnx.sha256)
    before = (*made.intermediates, in_folder(made.onnx))
    return replace(made, onnx=onnx, io=moved.tensors, intermediates=before, notes=notes)
