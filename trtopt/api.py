"""The public functions: each takes the fields of one request as its keywords, and runs one workflow with it.

What a keyword means is declared in `trtopt.requests`; `trtopt.options` writes it into the workflow's help,
with the errors that all can raise. Errors name keywords, not the command line's options.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal

from trtopt.data import packing
from trtopt.data.packing import Array
from trtopt.errors import OutputError, TrtoptError, UsageError
from trtopt.export import spec
from trtopt.files.atomic import write_atomically
from trtopt.files.manifests import is_build_folder, read_manifest
from trtopt.files.outputs import check_output, write_output
from trtopt.measure.statistics.summaries import summarise, throughput
from trtopt.onnxio.model_info import load_graph, read_onnx
from trtopt.options import keywords_of
from trtopt.records import (
    Inspection,
    MachineSurvey,
    Manifest,
    ModelDifference,
    OnnxArtifact,
    TensorSpec,
)
from trtopt.records.precision import QuantizeReport
from trtopt.records.tensors import TypedTensor
from trtopt.report.html.page import library_name, page_of, plotting_library
from trtopt.report.html.pages import models_page, pair_page, report_page, sweep_page
from trtopt.requests import build as building, measure as measuring, models as on_graphs, serve
from trtopt.rewrite.lint import LintReport, lint_model
from trtopt.rewrite.typed_io.requested import recorded_in
from trtopt.version import __version__
from trtopt.workflows import models as on_models
from trtopt.workflows.bench.bench import bench as run_bench
from trtopt.workflows.build.build import build as run_build
from trtopt.workflows.build.folder import verify as run_verify
from trtopt.workflows.cache_folder import store_folder
from trtopt.workflows.compare.compare import compare as run_compare
from trtopt.workflows.history import add_to_history as run_add_to_history, history as run_history
from trtopt.workflows.inspect import inspect_shown
from trtopt.workflows.optimize import optimize as run_optimize
from trtopt.workflows.plan.deploy import deploy as run_deploy
from trtopt.workflows.plan.plan import plan as run_plan
from trtopt.workflows.precision.bisect import bisect as run_bisect
from trtopt.workflows.precision.cast import cast as run_cast
from trtopt.workflows.precision.check import check as run_check
from trtopt.workflows.precision.quantize import quantize as run_quantize
from trtopt.workflows.profile.explain import explain as run_explain
from trtopt.workflows.profile.profile import profile as run_profile
from trtopt.workflows.provenance import command_line, now, survey
from trtopt.workflows.reduce import reduce as run_reduce
from trtopt.workflows.report import PAGE, collect, default_output, differences_of
from trtopt.workflows.sweep.folder import is_sweep, read_sweep
from trtopt.workflows.sweep.sweep import sweep as run_sweep
from trtopt.workflows.tune.tune import tune as run_tune

__all__ = [
    "TrtoptError",
    "add_to_history",
    "bench",
    "bisect",
    "build",
    "cast",
    "check",
    "compare",
    "deploy",
    "diff",
    "doctor",
    "explain",
    "export",
    "extract",
    "history",
    "inspect",
    "lint",
    "models",
    "optimize",
    "pack",
    "plan",
    "profile",
    "quantize",
    "reduce",
    "report",
    "rewrite",
    "summarise",
    "sweep",
    "throughput",
    "tune",
    "unpack",
    "verify",
]
"""The public names of `trtopt`."""

# Editors show the text below each; `help` shows the workflow's own, whose first line it is.
build = keywords_of(building.BuildRequest)(run_build)
"""Build engines from an ONNX file into a folder: one per batch size, or one dynamic engine."""
bench = keywords_of(measuring.BenchRequest)(run_bench)
"""Measure the engines of a build folder, one engine of it, or an ONNX file."""
profile = keywords_of(measuring.ProfileRequest)(run_profile)
"""Time every layer, and join the times with the inspector's layers and the ONNX file's nodes."""
explain = keywords_of(measuring.ExplainRequest)(run_explain)
"""Find why B's engines are slower or faster than A's: causes that add up to the change of the latency."""
compare = keywords_of(measuring.CompareRequest)(run_compare)
"""Compare B with the baseline A: faster, slower, same or undecided at each batch size."""
add_to_history = keywords_of(measuring.HistoryAddRequest)(run_add_to_history)
"""Add results to a folder of one model's results over time, made where there is none."""
history = keywords_of(measuring.HistoryRequest)(run_history)
"""Judge a folder of one model's results over time."""
sweep = keywords_of(building.SweepRequest)(run_sweep)
"""Build and measure a model at every combination, one at a time, into a folder that can be resumed."""
tune = keywords_of(building.TuneRequest)(run_tune)
"""Find a faster engine of a model within a budget of time: the most promising candidate first."""
plan = keywords_of(serve.PlanRequest)(run_plan)
"""Choose engines, workers, largest batch and delay by simulation, and write the plan to a file."""
deploy = keywords_of(serve.DeployRequest)(run_deploy)
"""Write an engine into a Triton model repository, as the next version of a model."""
check = keywords_of(on_graphs.CheckRequest)(run_check)
"""Compare an ONNX file, or the engines of a build folder, with a reference model on ONNX Runtime."""
export = keywords_of(on_graphs.ExportRequest)(on_models.export)
"""Export a PyTorch model to ONNX and compare the file with PyTorch."""
rewrite = keywords_of(on_graphs.RewriteRequest)(on_models.rewrite)
"""Rewrite an ONNX file so that TensorRT fuses it better, and check that it stays the same function."""
extract = keywords_of(on_graphs.ExtractRequest)(on_models.extract)
"""Write a part of an ONNX file, from some of its tensors to others."""
cast = keywords_of(on_graphs.CastRequest)(run_cast)
"""Write an ONNX file with its nodes in 16 bits where that is safe."""
bisect = keywords_of(on_graphs.BisectRequest)(run_bisect)
"""Find the fewest nodes to keep in higher precision so that the bounds are met."""
reduce = keywords_of(on_graphs.ReduceRequest)(run_reduce)
"""Find the smallest part of a model that still fails as the whole does."""
verify = keywords_of(building.VerifyRequest)(run_verify)
"""Hash every file of a build folder again."""
optimize = keywords_of(building.OptimizeRequest)(run_optimize)
"""Lint a model, rewrite it, choose its precision, build, measure and check the engines."""


@keywords_of(measuring.ReportRequest)
def report(request: measuring.ReportRequest) -> Path:
    """Write what a folder holds as one HTML page that needs no network: builds, results and profiles.

    Returns:
        The page's file.

    Raises:
        BackendMissingError: what makes pages is not installed.

    Example:
        >>> trtopt.report("engines").name
        'engines.html'
    """
    return write_page(request)


def write_page(request: measuring.ReportRequest, *, leave_out_others: bool = False) -> Path:
    """Write the page; `leave_out_others` is without what other builds left in the folder."""
    folder, other = Path(request.folder), None if request.other is None else Path(request.other)
    file = default_output(folder, other) if request.output is None else Path(request.output)
    check_output(file, PAGE)
    argv = command_line()
    if other is None and is_sweep(folder):
        page = sweep_page(read_sweep(folder), argv)
    elif other is None:
        page = report_page(collect(folder, leave_out_others=leave_out_others), argv)
    elif is_sweep(folder) or is_sweep(other):
        raise UsageError(
            "a sweep's folder cannot be shown side by side with another",
            "give two build folders, or one of the sweep's folders builds/…",
        )
    else:
        a, b = collect(folder), collect(other)
        page = pair_page(a, b, differences_of(a, b), argv)
    text = page_of(page, _plotting_library(), f"trtopt {__version__}, {now()}")
    write_output(file, text.encode(), PAGE)
    return file


def _plotting_library() -> str:
    """That of pages, as it was bundled for an earlier one if it is still there."""
    kept = store_folder() / library_name()
    with suppress(OSError, UnicodeDecodeError):
        return kept.read_text("utf-8")
    library = plotting_library()
    with suppress(OutputError):  # the next page takes as long
        write_atomically(kept, library.encode())
    return library


def write_difference(found: ModelDifference, file: Path) -> None:
    """Write how two models differ as a page."""
    text = page_of(models_page(found), _plotting_library(), f"trtopt {__version__}, {now()}")
    write_output(file, text.encode(), PAGE)


def doctor() -> MachineSurvey:
    """Survey what is installed, which commands work here and what to install for the others.

    Returns:
        The findings, which `trtopt doctor --json` writes.
    """
    return survey()


def models() -> dict[str, Path]:
    """List the model collection, whose names `export` takes.

    Returns:
        The model file (TOML) of each, by its name.
    """
    return spec.files()


@keywords_of(on_graphs.DiffRequest)
def diff(request: on_graphs.DiffRequest) -> ModelDifference:
    """Show how two ONNX files differ; nodes are matched by what they compute, not by their names.

    Returns:
        Nodes that were added, removed and changed, types and shapes, and weights by the norm of their
        difference; `is_same` is whether nothing but names differs.

    Example:
        >>> trtopt.diff("model.onnx", "model.onnx").is_same
        True
    """
    found = on_models.diff(request)
    if request.output is not None:
        write_difference(found, Path(request.output))
    return found


@keywords_of(on_graphs.QuantizeRequest)
def quantize(request: on_graphs.QuantizeRequest) -> QuantizeReport:
    """Quantise an ONNX file: place Q/DQ where TensorRT profits from them, and write the calibration table.

    Returns:
        The decision for every node, the calibration methods' scores and the SQNR of the outputs.

    Example:
        >>> report = trtopt.quantize("model.onnx", "int8.onnx", precision="int8", data="data.npz")
        >>> report.pairs > 0
        True
    """
    return run_quantize(request.model, request.output, request)


@keywords_of(on_graphs.InspectRequest)
def inspect(request: on_graphs.InspectRequest) -> Inspection:
    """Show what is in an ONNX model, an engine, or a file or folder that trtopt made; nothing is run.

    Returns:
        What it is, and what it holds: `model`, `engines`, `members`.

    Raises:
        WrongPathError: it is none of these; says what it looks like.
        NoGpuError, BackendMissingError: an engine that `trust` names cannot be loaded here.

    Example:
        >>> found = trtopt.inspect("model.onnx")
        >>> found.model.inputs[0].name
        'images'
    """
    return inspect_shown(request)[0]


@keywords_of(on_graphs.LintRequest)
def lint(request: on_graphs.LintRequest) -> LintReport:
    """Find what in an ONNX file will be slow on TensorRT, why, and what would help.

    Returns:
        The findings, each with its node, its reason and its remedy.

    Example:
        >>> report = trtopt.lint("model.onnx")
        >>> [item.check for item in report.advice]
        ['odd-product']
    """
    return lint_model(Path(request.model), target=request.target)


def pack(
    manifest: Manifest | str | Path, array: object, name: str | None = None, *, saturate: bool = False
) -> Array:
    """An array in the type and format that an engine's input has, for engines built with `io`.

    It does what the graph cannot: INT8 quantisation with the manifest's scale, and TensorRT's vectorised
    formats. Arrays on the GPU (CuPy, PyTorch) come to the host first; the result is in host memory.

    Args:
        manifest: the manifest, the build folder, or an ONNX file with typed inputs and outputs.
        array: a batch in the shape of the graph's input: floats for INT8, else values of the input's type.
        name: the input [default: the only one].
        saturate: clip values beyond INT8's range, as QuantizeLinear does, instead of refusing them.

    Returns:
        A NumPy array as the engine reads it.

    Raises:
        UsageError: no such input, or the name is missing.
        DataError: a shape, a type or a value that the input cannot take; names the sample.

    Example:
        >>> import numpy
        >>> manifest = trtopt.build("model.onnx", "engines", backend="onnxruntime")
        >>> trtopt.pack(manifest, numpy.zeros((1, 1, 8, 8))).dtype
        dtype('float32')
    """
    spec, tensor = _find_tensor(manifest, name, "input")
    return packing.pack_array(spec, packing.on_host(array), tensor, saturate=saturate)


def unpack(manifest: Manifest | str | Path, array: object, name: str | None = None) -> Array:
    """What an engine's output holds, in the shape of the graph's output: the inverse of `pack`.

    Args:
        manifest: the manifest, the build folder, or an ONNX file with typed inputs and outputs.
        array: the output as the engine wrote it.
        name: the output [default: the only one].

    Returns:
        A NumPy array; INT8 values with a scale become FP32.

    Raises:
        UsageError: no such output, or the name is missing.
        DataError: an array that is not in the output's format.

    Example:
        >>> import numpy
        >>> manifest = trtopt.build("model.onnx", "engines", backend="onnxruntime")
        >>> trtopt.unpack(manifest, numpy.zeros((1, 10), "float32")).shape
        (1, 10)
    """
    spec, tensor = _find_tensor(manifest, name, "output")
    return packing.unpack_array(spec, packing.on_host(array), tensor)


def _read_graph(source: Manifest | str | Path) -> tuple[OnnxArtifact, tuple[TypedTensor, ...]]:
    """The graph of a build or a typed file, and its tensors that are typed."""
    if not isinstance(source, Manifest):
        path = Path(source)
        folder = path.parent if path.is_file() else path
        if path != folder and not is_build_folder(folder):
            onnx = read_onnx(path)
            return onnx, recorded_in(load_graph(path))
        source = read_manifest(folder)
    return source.onnx, source.io


def _find_tensor(
    source: Manifest | str | Path, name: str | None, role: Literal["input", "output"]
) -> tuple[TensorSpec, TypedTensor | None]:
    onnx, io = _read_graph(source)
    specs = onnx.inputs if role == "input" else onnx.outputs
    names = [spec.name for spec in specs]
    if name is None and len(names) == 1:
        name = names[0]
    if name not in names:
        raise UsageError(f"name = {name!r}: no such {role}", f"give one of {', '.join(names)}")
    spec = specs[names.index(name)]
    return spec, next((one for one in io if one.name == name and one.role == role), None)
