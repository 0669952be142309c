"""The public functions: each takes the fields of one request as its keywords, and runs one workflow with it.

What a keyword means is declared in `trtopt.requests`; `trtopt.options` writes it into a function's help, with
the errors that all can raise. Errors name keywords, not the command line's options.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal

from trtopt.data import packing
from trtopt.data.packing import Array
from trtopt.errors import OutputError, TrtoptError, UsageError
from trtopt.export import spec
from trtopt.export.export import Exported
from trtopt.files.atomic import write_atomically
from trtopt.files.manifests import is_build_folder, read_manifest
from trtopt.files.outputs import check_output, write_output
from trtopt.measure.analysis.outcomes import Compared
from trtopt.measure.statistics.summaries import summarise, throughput
from trtopt.onnxio.model_info import load_graph, read_onnx
from trtopt.options import keywords_of
from trtopt.records import (
    BatchPlan,
    BenchReport,
    Explanation,
    Extraction,
    FolderCheck,
    HistoryReport,
    Inspection,
    MachineSurvey,
    Manifest,
    ModelDifference,
    OnnxArtifact,
    ProfileReport,
    ReduceReport,
    SweepReport,
    TensorSpec,
)
from trtopt.records.precision import BisectReport, CastReport, CheckReport, QuantizeReport
from trtopt.records.tensors import TypedTensor
from trtopt.records.tune import Optimized, Tuned
from trtopt.report.html.page import library_name, page_of, plotting_library
from trtopt.report.html.pages import models_page, pair_page, report_page, sweep_page
from trtopt.requests import build as building, measure as measuring, models as on_graphs, serve
from trtopt.rewrite.lint import LintReport, lint_model
from trtopt.rewrite.rewrite_trace import RewriteTrace
from trtopt.rewrite.typed_io.requested import recorded_in
from trtopt.version import __version__
from trtopt.workflows import models as on_models
from trtopt.workflows.bench.bench import bench as run_bench
from trtopt.workflows.build.build import build_requested
from trtopt.workflows.build.folder import verify as run_verify
from trtopt.workflows.cache_folder import store_folder
from trtopt.workflows.compare.compare import compare as run_compare
from trtopt.workflows.history import add as run_add, history as run_history
from trtopt.workflows.inspect import inspect as run_inspect
from trtopt.workflows.optimize import optimize as run_optimize
from trtopt.workflows.plan.deploy import deploy_triton
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


@keywords_of(building.BuildRequest)
def build(request: building.BuildRequest) -> Manifest:
    """Build engines from an ONNX file into a folder: one per batch size, or one dynamic engine.

    Returns:
        The manifest of the folder: its engines with their settings, and how they were made.

    Raises:
        BuildError: the builder failed.

    Example:
        >>> manifest = trtopt.build("model.onnx", "engines", batch=[1, 8], backend="onnxruntime")
        >>> manifest
        <Manifest: 2 engines by onnxruntime: batch 1, 8>
        >>> [engine.path for engine in manifest.engines]
        ['batch1.onnx', 'batch8.onnx']
    """
    return build_requested(request, request.listener)


@keywords_of(measuring.BenchRequest)
def bench(request: measuring.BenchRequest) -> BenchReport:
    """Measure the engines of a build folder, one engine of it, or an ONNX file.

    Returns:
        The measurements, one point per engine and batch size, raw samples included.

    Raises:
        NoGpuError, BackendMissingError: the engines cannot run here.

    Example:
        >>> report = trtopt.bench("engines", batch=8, duration=0.1)
        >>> [(row["batch"], row["p50_ms"] < 1000) for row in report.rows()]
        [(8, True)]
        >>> text = report.table()
        >>> frame = report.to_pandas()  # doctest: +SKIP
    """
    return run_bench(request, request.listener)


@keywords_of(measuring.ProfileRequest)
def profile(request: measuring.ProfileRequest) -> ProfileReport:
    """Time every layer, and join the times with the inspector's layers and the ONNX file's nodes.

    Returns:
        The profile, one part per engine and batch size: layers, fusions, precisions and floors.

    Example:
        >>> report = trtopt.profile("engines", batch=8, duration=0.1)
        >>> layers = report.to_dict()["engines"][0]["layers"]
        >>> len(layers) > 0
        True
    """
    return run_profile(request, request.listener)


@keywords_of(measuring.ExplainRequest)
def explain(request: measuring.ExplainRequest) -> Explanation:
    """Find why B's engines are slower or faster than A's: causes that add up to the change of the latency.

    Returns:
        For each batch size of both the causes, with the ONNX nodes and what may save B their cost, and the
        kernels or layers that were replaced.

    Example:
        >>> found = trtopt.explain("engines", "engines", batch=8, duration=0.1)
        >>> one = found.engines[0]
        >>> abs(sum(cause.cost_ms for cause in one.causes) - (one.b_ms - one.a_ms)) < 1e-6
        True
    """
    return run_explain(request, request.listener)


@keywords_of(measuring.CompareRequest)
def compare(request: measuring.CompareRequest) -> Compared:
    """Compare B with the baseline A: faster, slower, same or undecided at each batch size.

    Returns:
        `outcome` with the verdicts, and `report`, the record that `trtopt compare --json` writes; of an
        upgrade `report.upgrade_verdict`, and `report.upgrade` on results, layers, memory and build time.

    Example:
        >>> compared = trtopt.compare("engines", "engines", batch=8, duration=0.1)
        >>> [row["batch"] for row in compared.rows()]
        [8]
        >>> verdict = compared.report.verdicts[0].verdict  # FASTER, SLOWER, SAME or UNDECIDED
    """
    return run_compare(request, request.listener)


@keywords_of(measuring.HistoryAddRequest)
def add_to_history(request: measuring.HistoryAddRequest) -> tuple[Path, ...]:
    """Add results to a folder of one model's results over time, made where there is none.

    Returns:
        Their files in the folder; one that was in it already stays there once.

    Example:
        >>> [path.parent.name for path in trtopt.add_to_history("history", ["bench.json"])]
        ['history']
    """
    return run_add(request)


@keywords_of(measuring.HistoryRequest)
def history(request: measuring.HistoryRequest) -> HistoryReport:
    """Judge a folder of one model's results over time.

    Returns:
        The series, each with its runs (in milliseconds), the changes in them and what else changed there, and
        a verdict on the newest run: SLOWER, FASTER, SAME, UNDECIDED; UNTRUSTWORTHY without figures.
        Changes are found by the rank sum of Wilcoxon, Mann and Whitney: see
        `trtopt.measure.statistics.change_points`.

    Example:
        >>> found = trtopt.history("history")
        >>> found.series[0].verdict
        'UNDECIDED'
    """
    return run_history(request)


@keywords_of(building.SweepRequest)
def sweep(request: building.SweepRequest) -> SweepReport:
    """Build and measure a model at every combination, one at a time, into a folder that can be resumed.

    What the folder already has of this model, machine and options is not built or measured again, however the
    earlier run ended. A point that fails is recorded with its reason, and the next run
    tries it again.

    Returns:
        All points of the folder, by precision, axes, streams and batch.

    Raises:
        MeasurementError: not one point could be measured.

    Example:
        >>> report = trtopt.sweep("model.onnx", "swept", batch=[1, 8], backend="onnxruntime", duration=0.1)
        >>> [point.setting.batch for point in report.points]
        [1, 8]
        >>> [row["batch"] for row in report.rows()]
        [1, 8]
    """
    return run_sweep(request, request.listener)


@keywords_of(building.TuneRequest)
def tune(request: building.TuneRequest) -> Tuned:
    """Find a faster engine of a model within a budget of time: the most promising candidate first.

    Each candidate changes one thing of the best engine so far. Its gain is predicted from a prior of its kind
    that this machine's earlier ledgers correct; it is built, checked against the bounds and raced against the
    best so far, interleaved in one process. The folder is a build folder of the best at any moment, with
    `ledger.json` in it. A run that was killed can be resumed, and measures nothing twice.

    Returns:
        The folder, the accepted changes, and the ledger with every candidate.

    Raises:
        BoundError: the baseline misses an accuracy bound.

    Example:
        >>> tuned = trtopt.tune(
        ...     "model.onnx", "tuned", backend="onnxruntime", budget="5m", include=["builder-setting"],
        ...     duration=0.1,
        ... )
        >>> tuned.batch
        1
        >>> {row["kind"] for row in tuned.rows()}
        {'builder-setting'}
    """
    return run_tune(request, request.listener)


@keywords_of(serve.PlanRequest)
def plan(request: serve.PlanRequest) -> BatchPlan:
    """Choose engines, workers, largest batch and delay by simulation, and write the plan to a file.

    Returns:
        The plan, with the latency and throughput that the simulation predicts.

    Raises:
        PlanError: no setup meets all bounds; it says which bound costs what.

    Example:
        >>> made = trtopt.plan(["swept"], "plan.json", slo="p99=500ms", rate=200.0)
        >>> made.goal
        'p99=500ms'
    """
    return run_plan(request, request.listener.note)


@keywords_of(serve.DeployRequest)
def deploy(request: serve.DeployRequest) -> Path:
    """Write an engine into a Triton model repository, as the next version of a model.

    Triton serves one engine, with batches of any size: one is built where the source has an engine for each.

    Returns:
        The folder of the new version.
    """
    return deploy_triton(request)


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


@keywords_of(on_graphs.CheckRequest)
def check(request: on_graphs.CheckRequest) -> CheckReport:
    """Compare an ONNX file, or the engines of a build folder, with a reference model on ONNX Runtime.

    Returns:
        The differences of every output; `passed` is whether all bounds are met.

    Example:
        >>> report = trtopt.check("engines", "model.onnx", data="data.npz", min_cosine=0.99)
        >>> report.passed
        True
    """
    return run_check(request, request.listener)


@keywords_of(on_graphs.ExportRequest)
def export(request: on_graphs.ExportRequest) -> Exported:
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
    return on_models.export(request)


@keywords_of(on_graphs.RewriteRequest)
def rewrite(request: on_graphs.RewriteRequest) -> RewriteTrace:
    """Rewrite an ONNX file so that TensorRT fuses it better, and check that it stays the same function.

    Returns:
        The rules that were applied, declined and undone, and what the check found.

    Example:
        >>> trace = trtopt.rewrite("model.onnx", "rewritten.onnx")
        >>> trace.nodes_after <= trace.nodes_before
        True
    """
    return on_models.rewrite(request, request.listener.note)


@keywords_of(on_graphs.ExtractRequest)
def extract(request: on_graphs.ExtractRequest) -> Extraction:
    """Write a part of an ONNX file, from some of its tensors to others.

    Returns:
        The part's inputs and outputs, and how many nodes it has.

    Example:
        >>> part = trtopt.extract("model.onnx", "part.onnx", inputs=["a"], outputs=["b"])
        >>> part.nodes <= part.nodes_before
        True
    """
    return on_models.extract(request)


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


@keywords_of(on_graphs.CastRequest)
def cast(request: on_graphs.CastRequest) -> CastReport:
    """Write an ONNX file with its nodes in 16 bits where that is safe.

    A node stays FP32 where its operator must, where `exclude` names it, where its weight would
    overflow or vanish, where `data` takes a tensor beyond `threshold`, and where an output on `data` would be
    below 20 dB or a cosine of 0.99: what to keep for that is searched in at most 40 runs.

    Returns:
        The nodes that became 16-bit, those that stayed and why, and the differences of the outputs.

    Example:
        >>> report = trtopt.cast("model.onnx", "fp16.onnx", data="data.npz")
        >>> len(report.lowered) > 0
        True
    """
    return run_cast(request, request.listener.note)


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
    return run_quantize(request.model, request.output, request, request.listener)


@keywords_of(on_graphs.BisectRequest)
def bisect(request: on_graphs.BisectRequest) -> BisectReport:
    """Find the fewest nodes to keep in higher precision so that the bounds are met.

    Returns:
        The verdict, the nodes to keep with their patterns, the front of sets, and every node's sensitivity.

    Example:
        >>> report = trtopt.bisect(
        ...     "model.onnx", precision="fp16", data="data.npz", min_cosine=0.9,
        ...     backend="onnxruntime",
        ... )
        >>> report.verdict
        'nothing to keep'
    """
    return run_bisect(request, request.listener)


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
    return run_inspect(request, request.listener.note)[0]


@keywords_of(on_graphs.ReduceRequest)
def reduce(request: on_graphs.ReduceRequest) -> ReduceReport:
    """Find the smallest part of a model that still fails as the whole does.

    Returns:
        The nodes that are left and the failure that they show; the model and its inputs are in files.

    Raises:
        ModelError: the model does not fail.
        MeasurementError: the failure comes and goes.

    Example:
        >>> report = trtopt.reduce("model.onnx", "part.onnx", condition="! grep -q Gemm {model}")
        >>> [node.op for node in report.nodes]
        ['Gemm']
    """
    return run_reduce(request, request.listener)


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


@keywords_of(building.VerifyRequest)
def verify(request: building.VerifyRequest) -> FolderCheck:
    """Hash every file of a build folder again.

    Returns:
        The files that are missing, changed or not of the build; `is_whole` is whether none is.

    Example:
        >>> check = trtopt.verify("engines")
        >>> check.is_whole
        True
    """
    return run_verify(request)


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


@keywords_of(building.OptimizeRequest)
def optimize(request: building.OptimizeRequest) -> Optimized:
    """Lint a model, rewrite it, choose its precision, build, measure and check the engines.

    `trtopt.optimize("model.onnx", data="samples.npz", slo="p99=10ms").best` is the batch size to deploy. The
    folder then holds the build and the measurement; `trtopt report FOLDER` makes a page of both. The same
    can be done step by step with `build`, `bench` and `check`.

    Returns:
        What was measured at each batch size, and the one to deploy.
    """
    return run_optimize(request, request.listener)
