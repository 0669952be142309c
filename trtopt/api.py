"""The public functions. Each makes one request of its parameters and runs one workflow with it.

What a parameter means is written here alone. Errors name parameters, not the command line's options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from trtopt.data import packing
from trtopt.data.packing import Array
from trtopt.errors import UsageError
from trtopt.export.export import DType, Exported
from trtopt.export.spec import Exporter
from trtopt.files.manifests import is_build_folder, read_manifest
from trtopt.measure.contracts import DURATION_S, WARMUP_S
from trtopt.measure.statistics.comparison import THRESHOLD
from trtopt.onnxio.model_info import load_graph, read_onnx
from trtopt.options import keywords_of
from trtopt.parameters import naming_parameters
from trtopt.precision.bounds import TUNING_BOUNDS, Bounds, bounds_in
from trtopt.precision.calibration.table import AUTO
from trtopt.precision.casting.cast import cast_model
from trtopt.precision.quantize import Smoothing
from trtopt.recipe import Precision, Recipe, Rewriting, batch_sizes, make_recipe
from trtopt.records import (
    BatchPlan,
    BenchReport,
    Manifest,
    OnnxArtifact,
    ProfileReport,
    SweepReport,
    TensorSpec,
    Terms,
)
from trtopt.records.precision import CastReport, CheckReport, QuantizeReport, parse_forms
from trtopt.records.tensors import TypedTensor, read_io_request
from trtopt.records.tune import CandidateKind, Objective, Tuned
from trtopt.requests.bench import BenchRequest
from trtopt.requests.check import CheckRequest
from trtopt.requests.profile import ProfileRequest
from trtopt.rewrite.rewrite import rewrite_model
from trtopt.rewrite.rewrite_trace import RewriteTrace
from trtopt.rewrite.typed_io.recorded import recorded_in
from trtopt.targets import DEFAULT as DEFAULT_TARGET
from trtopt.workflows.bench import bench as benching
from trtopt.workflows.build import build as building
from trtopt.workflows.compare import compare as comparing
from trtopt.workflows.compare.compare import Compared, CompareRequest
from trtopt.workflows.export import export_model
from trtopt.workflows.listener import SILENT, Listener
from trtopt.workflows.optimize import optimize as run_optimize
from trtopt.workflows.plan import plan as planning
from trtopt.workflows.plan.request import PlanRequest
from trtopt.workflows.precision import check as checking, quantize as quantising
from trtopt.workflows.profile import profile as profiling
from trtopt.workflows.sweep import sweep as sweeping
from trtopt.workflows.sweep.request import SweepRequest
from trtopt.workflows.tune import tune as tuning
from trtopt.workflows.tune.setup import TuneRequest

Backend = Literal["auto", "tensorrt", "tensorrt-rtx", "onnxruntime"]


@naming_parameters
def build(
    model: str | Path,
    output: str | Path | None = None,
    *,
    batch: int | Sequence[int] | None = None,
    ranges: Sequence[Sequence[int]] | None = None,
    dynamic: bool | None = None,
    shapes: Mapping[str, str] | None = None,
    axes: Mapping[str, int | Sequence[int]] | None = None,
    precision: Precision | None = None,
    data: str | Path | None = None,
    verdict: bool | None = None,
    bounds: Mapping[str, float] | None = None,
    forms: str | None = None,
    selection_budget: int | None = None,
    exclude: Sequence[str] | None = None,
    rewrite: Rewriting | None = None,
    add_rule: Sequence[str] | None = None,
    io: Mapping[str, str] | None = None,
    normalize: Mapping[str, str] | None = None,
    preprocess: Literal["imagenet"] | None = None,
    split: Sequence[str] | None = None,
    profile: str | None = None,
    backend: Backend | None = None,
    opt_level: int | None = None,
    workspace_mib: int | None = None,
    tactic_sources: Sequence[str] | None = None,
    aux_streams: int | None = None,
    avg_timing: int | None = None,
    tiling: Literal["none", "fast", "moderate", "full"] | None = None,
    l2_limit_mib: int | None = None,
    build_route: str | None = None,
    graph_optimization: Literal["disable", "basic", "extended", "all"] | None = None,
    intra_op_threads: int | None = None,
    execution_mode: Literal["sequential", "parallel"] | None = None,
    compute_capability: Sequence[str] | None = None,
    plugins: Sequence[str | Path] | None = None,
    timing_cache: str | Path | None = None,
    reproducible: bool | None = None,
    cache_dir: str | Path | None = None,
    jobs: int | None = None,
    build_timeout: float | None = None,
    executor: str | None = None,
    gpu_model: str | None = None,
    retries: int | None = None,
    nvtx: bool = False,
    memory: bool = False,
    force: bool = False,
    listener: Listener = SILENT,
) -> Manifest:
    """Build engines from an ONNX file into a folder: one per batch size, or one dynamic engine.

    Args:
        model: the ONNX file.
        output: the folder to create [default: the model's name with `.trtopt`, in the current folder]. A
            build of the same model is replaced once the new one is complete.
        batch: batch sizes, one engine each, from 1 [default: what the model fixes, else 1]; with `dynamic`
            the smallest, the one to tune for and the largest.
        ranges: with `dynamic`, in place of `batch`: such a range for each optimisation profile.
        dynamic: one engine for all batch sizes [default: False].
        shapes: of inputs with dynamic axes besides the batch: `{"ids": "Nx1,Nx128,Nx512"}` (minimum, optimum,
            maximum; or one shape), N is the batch.
        axes: the same by the names of axes, for all inputs: `{"seq": (1, 128, 512)}` or one length.
        precision: what is written into the graph: `fp32`, `fp16`, `bf16`, `int8`, `fp8` or `int4`; `best`
            for what measures fastest [default: the graph's own].
        data: real inputs for `precision`: an .npz, a folder of them, Polygraphy's JSON or `module:function`.
        verdict: measure int8, fp8 and int4 against FP16, and select FP16 where they are slower
            [default: True].
        bounds: the required accuracy, any of `min_cosine` (-1 to 1), `min_sqnr` (dB), `max_error` (absolute)
            and `min_top1` (share, 0 to 1) [default: none].
        forms: the form of an INT8 graph, as `"residual=both,attention=on"` [default: what measures fastest].
        selection_budget: quantised engines that are built at each batch size at most, in forms of INT8 that
            may be faster than those before, and without regions that lose [default: 3].
        exclude: nodes not to quantise: patterns of their names or operators, as `head.*` [default: none].
        rewrite: rewrite rules to apply first: `default` those with evidence for the TensorRT that builds,
            `all` those of `trtopt.rewrite`, or `none` [default: `default`].
        add_rule: names of rewrite rules to apply too, of those that are off [default: none].
        io: types and layouts of inputs and outputs: `{"image": "uint8:nhwc"}`. Types: `fp32`, `fp16`, `bf16`,
            `int8`, `uint8`; layouts: `nchw`, `nhwc` and TensorRT's `chw2`, `chw4`, `chw16`,
            `chw32`, `hwc8`, `hwc16`; `trtopt.pack` makes such arrays [default: the model's].
        normalize: (x - mean) / std of inputs, computed in the graph, in the new input's units:
            `{"image": "mean=123.7,116.3,103.5:std=58.4,57.1,57.4"}` [default: none].
        preprocess: `imagenet`: the same for the image input, with its means and deviations [default: none].
        split: cuts of the graph, in its order: `["relu_3:4"]` runs what makes tensor `relu_3` on 4 parts of
            the batch, one after the other, and the rest on all of it; `relu_3=chw32:4` hands it on in a
            vectorised format [default: one engine].
        profile: a recipe: the name of a shipped one, or a TOML file; parameters given here override it.
        backend: `auto`, `tensorrt`, `tensorrt-rtx` or `onnxruntime` [default: `auto`].
        opt_level: builder optimisation level, 0 to 5 [default: TensorRT's].
        workspace_mib: bound on the builder's scratch memory, in MiB [default: the device's memory].
        tactic_sources: where tactics may come from, such as `CUBLAS` [default: TensorRT's].
        aux_streams: the most auxiliary streams that layers may run on in parallel [default: TensorRT's].
        avg_timing: runs of a tactic that its timing is the average of [default: 8, as trtexec's].
        tiling: how hard to search for layers to run tile by tile within the L2 cache: `none`, `fast`,
            `moderate` or `full` (TensorRT 10.8 and newer) [default: TensorRT's].
        l2_limit_mib: L2 cache that tiled layers may use, in MiB (TensorRT 10.8 and newer) [default: all].
        build_route: internal options of the builder, as `-name=value -other=value` (TensorRT 11.1 and newer)
            [default: TensorRT's].
        graph_optimization: of ONNX Runtime: `disable`, `basic`, `extended` or `all` [default: `all`].
        intra_op_threads: of ONNX Runtime, the threads that share a node's work [default: one per core].
        execution_mode: of ONNX Runtime: `sequential`, or `parallel` for independent nodes
            [default: `sequential`].
        compute_capability: GPUs to build for, such as `8.9` (TensorRT-RTX) [default: the GPU here].
        plugins: plugin libraries to load, which are native code.
        timing_cache: a file to read, extend and save; `none` starts empty [default: the store of caches].
        reproducible: fail if the timing cache lacks a timing [default: False].
        cache_dir: the store of timing caches [default: $TRTOPT_CACHE_DIR, else ~/.cache/trtopt].
        jobs: engines built at once, 1 to 256, on the GPUs of one model in turn [default: 1].
        build_timeout: seconds after which the build of an engine has failed [default: no limit].
        executor: where jobs run: `local`, `ray` (the cluster of RAY_ADDRESS, else one on this host) or
            `ray://HOST:PORT` [default: local].
        gpu_model: the GPUs of the cluster to use [default: those of its first node].
        retries: how often a job whose node is lost is tried again [default: 2].
        nvtx: show profilers parsing, building and describing as NVTX ranges.
        memory: record the builder's allocations of device memory, in a file next to each engine; slower.
        force: replace a build of another model too.
        listener: receives progress and notes.

    Returns:
        The manifest of the folder: its engines with their settings, and how they were made.

    Raises:
        UsageError: a parameter is wrong, or contradicts another or the model.
        ModelError: the ONNX file cannot be used.
        BuildError: the builder failed.
        TrtoptError: anything else, with what to do. Nothing is left under the output's name.

    Example:
        >>> import trtopt
        >>> manifest = trtopt.build("model.onnx", "engines", batch=[1, 8], backend="onnxruntime")
        >>> manifest
        <Manifest: 2 engines by onnxruntime: batch 1, 8>
        >>> [engine.path for engine in manifest.engines]
        ['batch1.onnx', 'batch8.onnx']
    """
    recipe = make_recipe(
        profile,
        {
            "batch": batch_sizes(batch),
            "ranges": ranges,
            "dynamic": dynamic,
            "shapes": dict(shapes) if shapes is not None else None,
            "axes": dict(axes) if axes is not None else None,
            "precision": precision,
            "calib": _text(data),
            "verdict": verdict,
            "bounds": dict(bounds) if bounds is not None else None,
            "forms": forms,
            "selection_budget": selection_budget,
            "exclude": exclude,
            "rewrite": rewrite,
            "add_rule": add_rule,
            "io": dict(io) if io is not None else None,
            "normalize": dict(normalize) if normalize is not None else None,
            "preprocess": preprocess,
            "split": split,
            "backend": backend,
            "opt_level": opt_level,
            "workspace_mib": workspace_mib,
            "tactic_sources": tactic_sources,
            "aux_streams": aux_streams,
            "avg_timing": avg_timing,
            "tiling": tiling,
            "l2_limit_mib": l2_limit_mib,
            "build_route": build_route,
            "graph_optimization": graph_optimization,
            "intra_op_threads": intra_op_threads,
            "execution_mode": execution_mode,
            "compute_capability": compute_capability,
            "plugins": _texts(plugins),
            "timing_cache": _text(timing_cache),
            "reproducible": reproducible,
            "jobs": jobs,
            "build_timeout": build_timeout,
            "executor": executor,
            "gpu_model": gpu_model,
            "retries": retries,
        },
    )
    return building.build(
        model,
        output,
        recipe,
        force=force,
        nvtx=nvtx,
        memory=memory,
        cache_dir=cache_dir,
        listener=listener,
    )


@keywords_of(BenchRequest)
def bench(request: BenchRequest) -> BenchReport:
    """Measure the engines of a build folder, one engine of it, or an ONNX file.

    Returns:
        The measurements, one point per engine and batch size, raw samples included.

    Raises:
        UsageError: a parameter is wrong, or has no effect here.
        ArtifactError: the folder or engine cannot be trusted or used.
        NoGpuError, BackendMissingError: the engines cannot run here.
        TrtoptError: anything else, with what to do.

    Example:
        >>> import trtopt
        >>> report = trtopt.bench("engines", batch=8, duration=0.1)
        >>> [(row["batch"], row["p50_ms"] < 1000) for row in report.rows()]
        [(8, True)]
        >>> text = report.table()
        >>> frame = report.to_pandas()  # doctest: +SKIP
    """
    return benching.bench(request, request.listener)


@keywords_of(ProfileRequest)
def profile(request: ProfileRequest) -> ProfileReport:
    """Time every layer, and join the times with the inspector's layers and the ONNX file's nodes.

    Returns:
        The profile, one part per engine and batch size: layers, fusions, precisions and floors.

    Raises:
        ArtifactError: `path`, `result` or `against` are not of the right kind, or belong to another model
            or to other engines.
        TrtoptError: see `bench`.

    Example:
        >>> import trtopt
        >>> report = trtopt.profile("engines", batch=8, duration=0.1)
        >>> layers = report.to_dict()["engines"][0]["layers"]
        >>> len(layers) > 0
        True
    """
    return profiling.profile(request, request.listener)


@naming_parameters
def compare(
    a: str | Path,
    b: str | Path | None = None,
    *,
    threshold: float = THRESHOLD,
    fail_on: float | None = None,
    force: bool = False,
    batch: int | Sequence[int] | None = None,
    backend: Backend | None = None,
    contract: str | None = None,
    terms: Terms | None = None,
    duration: float | None = None,
    data: str | Path | None = None,
    timeout: float | None = None,
    trust: Sequence[str] = (),
    control: int | None = None,
    builds: int | None = None,
    recipe: Recipe | None = None,
    across_contracts: str | None = None,
    assume_contract: str | None = None,
    listener: Listener = SILENT,
) -> Compared:
    """Compare B with the baseline A: faster, slower, same or undecided at each batch size.

    Args:
        a: a result file (trtopt's or trtexec's), a build folder, an engine, or an ONNX file with `builds`.
        b: the same; not needed with `control`, `builds` or `across_contracts`.
        threshold: the smallest difference that matters, as a share between 0 and 1 [default: 0.01].
        fail_on: the slowdown that must be ruled out, as a share [default: 0.05 between result files, 0.02 in
            turns]; `outcome.not_shown` has the batch sizes where it is not.
        force: compare although machines, models, input shapes or outputs differ; a note lists what does.
        batch: batch sizes [default: all, which must be the same]. Of a file of trtexec's: the one it is for.
        backend: `auto`, `tensorrt`, `tensorrt-rtx` or `onnxruntime` [default: `auto`, the engines' own, or
            the CPU where there is no GPU].
        contract: the terms of the measurement, as for `bench` [default: `trtexec-11`].
        terms: changes to the contract, as for `bench`.
        duration: seconds of sampling for each side at each batch size, over all its turns [default: 3].
        data: input samples, as for `bench` [default: seeded random input].
        timeout: seconds that a batch size may take, all turns of one process together [default: no limit].
        trust: engines without a manifest, or plugins, to load: native code.
        control: measure A against itself this many times, and allow for the differences.
        builds: build each model this many times and compare recipes; of one model, compare its builds.
        recipe: with `builds` of ONNX files: how they are built [default: `Recipe()`].
        across_contracts: two contracts (`trtexec-10,trtexec-11`), or `""` between result files: explain the
            difference.
        assume_contract: the contract that a file of trtexec's was measured under.
        listener: receives progress and notes.

    Returns:
        `outcome` with the verdicts, and `report`, the record that `trtopt compare --json` writes.

    Raises:
        UsageError: A and B cannot be compared, or a parameter has no effect here.
        TrtoptError: anything else, with what to do.

    Example:
        >>> import trtopt
        >>> compared = trtopt.compare("engines", "engines", batch=8, duration=0.1)
        >>> [row["batch"] for row in compared.rows()]
        [8]
        >>> verdict = compared.report.verdicts[0].verdict  # FASTER, SLOWER, SAME or UNDECIDED
    """
    request = CompareRequest(
        threshold=threshold,
        fail_on=fail_on,
        force=force,
        batch=batch_sizes(batch),
        backend=backend,
        contract=contract,
        terms=terms or {},
        duration=duration,
        data=data,
        timeout=timeout,
        trust=trust,
        control=control,
        builds=builds,
        across_contracts=across_contracts,
        assume_contract=assume_contract,
        recipe=recipe or Recipe(),
    )
    return comparing.compare(a, b, request, listener)


@naming_parameters
def sweep(
    model: str | Path,
    output: str | Path | None = None,
    *,
    batch: int | Sequence[int] | None = None,
    precision: str | Sequence[str] | None = None,
    streams: int | Sequence[int] = (1,),
    axes: Mapping[str, Sequence[int]] | None = None,
    neighbours: Sequence[str] = (),
    adaptive: bool = False,
    shapes: Mapping[str, str] | None = None,
    forms: str | None = None,
    exclude: Sequence[str] | None = None,
    rewrite: Rewriting | None = None,
    add_rule: Sequence[str] | None = None,
    io: Mapping[str, str] | None = None,
    normalize: Mapping[str, str] | None = None,
    preprocess: Literal["imagenet"] | None = None,
    profile: str | None = None,
    backend: Backend | None = None,
    opt_level: int | None = None,
    workspace_mib: int | None = None,
    tactic_sources: Sequence[str] | None = None,
    aux_streams: int | None = None,
    avg_timing: int | None = None,
    tiling: Literal["none", "fast", "moderate", "full"] | None = None,
    l2_limit_mib: int | None = None,
    build_route: str | None = None,
    graph_optimization: Literal["disable", "basic", "extended", "all"] | None = None,
    intra_op_threads: int | None = None,
    execution_mode: Literal["sequential", "parallel"] | None = None,
    plugins: Sequence[str | Path] | None = None,
    timing_cache: str | Path | None = None,
    reproducible: bool | None = None,
    cache_dir: str | Path | None = None,
    jobs: int | None = None,
    build_timeout: float | None = None,
    executor: str | None = None,
    gpu_model: str | None = None,
    retries: int | None = None,
    contract: str | None = None,
    terms: Terms | None = None,
    duration: float = DURATION_S,
    warmup: float = WARMUP_S,
    data: str | Path | None = None,
    timeout: float | None = None,
    listener: Listener = SILENT,
) -> SweepReport:
    """Build and measure a model at every combination, one at a time, into a folder that can be resumed.

    What the folder already has of this model, machine and options is not built or measured again, however the
    earlier run ended. A point that fails is recorded with its reason, and the next run
    tries it again.

    Args:
        model: the ONNX file.
        output: the sweep's folder [default: the model's name with `.sweep`, in the current folder].
        batch: batch sizes [default: the recipe's, or what the model fixes, or 1 to 32 by powers of two].
        precision: what is written into the graph, one after the other: `fp32`, `fp16`, `bf16`, `int8`, `fp8`
            or `int4`, without the verdict of `build` [default: the recipe's, or the graph's own].
        streams: numbers of streams.
        axes: lengths of other dynamic axes, by the axis' name in the model or by INPUT.INDEX.
        neighbours: `pow2`, `8`, `32`: also the powers of two and multiples next to each size and length.
        adaptive: measure more batch sizes between those given, where the throughput curve bends.
        shapes, forms, exclude, rewrite, add_rule, io, normalize, preprocess, profile: as for `build`.
        opt_level, workspace_mib: as for `build`.
        tactic_sources, plugins, timing_cache, reproducible, build_timeout: as for `build`.
        aux_streams, avg_timing, tiling, l2_limit_mib, build_route: as for `build`.
        graph_optimization, intra_op_threads, execution_mode: as for `build`.
        executor, gpu_model, retries: as for `build`. On a cluster each host measures one point at a time.
        backend: what builds and measures: `auto`, `tensorrt`, `tensorrt-rtx` or `onnxruntime` [default:
            `auto`, the CPU where there is no GPU].
        cache_dir: the store of timing caches, as for `build`; all engines share one cache in the folder too.
        jobs: above 1 all engines known beforehand are built first, this many at a time, on the GPUs of one
            model in turn; measurements are on the first GPU, with nothing else at work [default: 1].
        contract, terms, duration, warmup: as for `bench`.
        data: inputs to measure with, and for precisions that need some, as for `bench`
            [default: seeded random input].
        timeout: seconds after which a point has failed, up to a week [default: no limit].
        listener: receives progress, notes and the report after each point.

    Returns:
        All points of the folder, by precision, axes, streams and batch.

    Raises:
        UsageError: parameters that are wrong or contradict each other; before anything is built.
        ArtifactError: the folder holds a sweep of another model or machine, or with other options.
        MeasurementError: not one point could be measured.

    Example:
        >>> import trtopt
        >>> report = trtopt.sweep("model.onnx", "swept", batch=[1, 8], backend="onnxruntime", duration=0.1)
        >>> [point.setting.batch for point in report.points]
        [1, 8]
        >>> [row["batch"] for row in report.rows()]
        [1, 8]
    """
    recipe = make_recipe(
        profile,
        {
            "shapes": dict(shapes) if shapes is not None else None,
            "calib": _text(data),
            "forms": forms,
            "exclude": exclude,
            "rewrite": rewrite,
            "add_rule": add_rule,
            "io": dict(io) if io is not None else None,
            "normalize": dict(normalize) if normalize is not None else None,
            "preprocess": preprocess,
            "backend": backend,
            "opt_level": opt_level,
            "workspace_mib": workspace_mib,
            "tactic_sources": tactic_sources,
            "aux_streams": aux_streams,
            "avg_timing": avg_timing,
            "tiling": tiling,
            "l2_limit_mib": l2_limit_mib,
            "build_route": build_route,
            "graph_optimization": graph_optimization,
            "intra_op_threads": intra_op_threads,
            "execution_mode": execution_mode,
            "plugins": _texts(plugins),
            "timing_cache": _text(timing_cache),
            "reproducible": reproducible,
            "jobs": jobs,
            "build_timeout": build_timeout,
            "executor": executor,
            "gpu_model": gpu_model,
            "retries": retries,
        },
    )
    request = SweepRequest(
        recipe=recipe,
        batch=batch_sizes(batch),
        precisions=(precision,) if isinstance(precision, str) else precision or (),
        streams=batch_sizes(streams) or (),
        axes=axes or {},
        neighbours=neighbours,
        adaptive=adaptive,
        contract=contract,
        terms=terms or {},
        duration=duration,
        warmup=warmup,
        data=data,
        timeout=timeout,
        cache_dir=cache_dir,
    )
    return sweeping.sweep(model, output, request, listener)


@naming_parameters
def tune(
    model: str | Path,
    output: str | Path | None = None,
    *,
    batch: int | Sequence[int] | None = None,
    objective: Objective = "latency",
    rate: float | None = None,
    budget: str | float = "30m",
    include: Sequence[CandidateKind] = (),
    exclude: Sequence[CandidateKind] = (),
    resume: bool = False,
    data: str | Path | None = None,
    bounds: Bounds | Mapping[str, float] | None = None,
    backend: Backend | None = None,
    profile: str | None = None,
    axes: Mapping[str, int | Sequence[int]] | None = None,
    shapes: Mapping[str, str] | None = None,
    io: Mapping[str, str] | None = None,
    normalize: Mapping[str, str] | None = None,
    preprocess: Literal["imagenet"] | None = None,
    contract: str | None = None,
    duration: float = 2.0,
    threshold: float = THRESHOLD,
    timeout: float | None = None,
    executor: str | None = None,
    gpu_model: str | None = None,
    retries: int | None = None,
    cache_dir: str | Path | None = None,
    listener: Listener = SILENT,
) -> Tuned:
    """Find a faster engine of a model within a budget of time: the most promising candidate first.

    Each candidate changes one thing of the best engine so far. Its gain is predicted from a prior of its kind
    that this machine's earlier ledgers correct; it is built, checked against the bounds and raced against the
    best so far, interleaved in one process. The folder is a build folder of the best at any moment, with
    `ledger.json` in it. A run that was killed can be resumed, and measures nothing twice.

    Args:
        model: the ONNX file.
        output: the build folder [default: the model's name with `.tuned`, in the current folder].
        batch: the batch size; with the objective `throughput` or `energy` several to choose among, the
            baseline's first [default: what the model fixes, else 1].
        objective: `latency` (median), `p99`, `throughput`, or `energy` per sample (GPUs only).
        rate: with `p99`, requests per second that arrive independently of one another, each a query; its
            latency counts from its arrival [default: one query after another].
        budget: time to spend, that of earlier runs of the folder included: `90s`, `30m`, `2h`, or seconds.
        include: only these kinds of candidates: `precision`, `placement`, `region`, `io-types`, `batch`,
            `streams`, `builder-setting`, `batch-split`, `rewrite-rule` and `build-lottery` [default: all].
        exclude: kinds of candidates to leave out.
        resume: continue in a folder that an earlier run began.
        data: samples to measure and check with, and to calibrate on: an .npz, a folder of them, Polygraphy's
            JSON or `module:function` [default: seeded random input, and INT8 is not tried].
        bounds: the accuracy that every candidate must keep against the model, any of `min_cosine` (-1 to 1),
            `min_sqnr` (dB), `max_error` (absolute) and `min_top1` (share, 0 to 1); `min_cosine` is 0.99
            if it is not given.
        backend: `auto`, `tensorrt`, `tensorrt-rtx` or `onnxruntime` [default: `auto`, the CPU where there is
            no GPU].
        profile: a recipe that the baseline is built with: the name of a shipped one, or a TOML file.
        axes, shapes: as for `build`: lengths of dynamic axes besides the batch.
        io, normalize, preprocess: as for `build`, of the baseline and all candidates. `data` has the new
            inputs, and floats for those of INT8.
        contract: the terms of the measurement, as for `bench` [default: `trtexec-11`].
        duration: seconds of sampling for each engine in a race, up to a day [default: 2].
        threshold: the smallest gain to accept, as a share between 0 and 1 [default: 0.01].
        timeout: seconds after which a build or a measurement has failed [default: ten times what the baseline
            took, a minute at least].
        executor, gpu_model, retries: as for `build`. A cluster builds as many candidates at a time as it has
            GPUs, or nodes without GPUs; each host measures one at a time.
        cache_dir: the store of timing caches and of this machine's ledgers, as for `build`.
        listener: receives progress and notes.

    Returns:
        The folder, the accepted changes, and the ledger with every candidate.

    Raises:
        UsageError: a parameter is wrong, or the budget is too small for the baseline.
        BoundError: the baseline misses an accuracy bound.
        ArtifactError: the ledger to continue is of another model or machine, or on other terms.
        TrtoptError: anything else, with what to do.

    Example:
        >>> import trtopt
        >>> tuned = trtopt.tune(
        ...     "model.onnx", "tuned", backend="onnxruntime", budget="5m", include=["builder-setting"],
        ...     duration=0.1,
        ... )
        >>> tuned.batch
        1
        >>> {row["kind"] for row in tuned.rows()}
        {'builder-setting'}
    """
    given = bounds.given if isinstance(bounds, Bounds) else dict(bounds or {})
    request = TuneRequest(
        recipe=make_recipe(
            profile,
            {
                "backend": backend,
                "axes": {name: batch_sizes(lengths) for name, lengths in axes.items()} if axes else None,
                "shapes": dict(shapes) if shapes is not None else None,
                "io": dict(io) if io is not None else None,
                "normalize": dict(normalize) if normalize is not None else None,
                "preprocess": preprocess,
                "executor": executor,
                "gpu_model": gpu_model,
                "retries": retries,
            },
        ),
        batch=batch_sizes(batch),
        objective=objective,
        rate=rate,
        data=data,
        bounds=bounds_in(TUNING_BOUNDS.given | given),
        budget=str(budget),
        include=include,
        exclude=exclude,
        resume=resume,
        contract=contract,
        duration=duration,
        threshold=threshold,
        timeout=timeout,
        cache_dir=cache_dir,
    )
    return tuning.tune(model, output, request, listener)


@naming_parameters
def plan(
    sources: Sequence[str | Path],
    output: str | Path,
    *,
    slo: str,
    rate: float | None = None,
    arrivals: str = "poisson",
    lengths: Mapping[int, float] | None = None,
    memory_bytes: int | None = None,
    max_engines: int = 3,
    for_triton: bool = False,
    timeout: float | None = None,
    trust: Sequence[str] = (),
    listener: Callable[[str], None] = lambda text: None,
) -> BatchPlan:
    """Choose engines, workers, largest batch and delay by simulation, and write the plan to a file.

    Args:
        sources: folders of `trtopt sweep`, or build folders with the result of `trtopt bench` as
            `bench.json`.
        output: the plan's file to write.
        slo: a percentile of latency, waiting included, and its limit: `p99=10ms` (us, ms or s).
        rate: requests per second [default: that of recorded arrivals, else the highest that keeps the SLO].
        arrivals: `poisson`, `constant`, `bursty`, `bursty:PEAK:SECONDS`, or a file of arrivals.
        lengths: share of requests by their length, for a model swept over lengths.
        memory_bytes: limit of device memory, in bytes [default: none].
        max_engines: the most engines to serve with, from 1 [default: 3].
        for_triton: only setups that Triton's batcher supports.
        timeout: seconds that each measurement of the serving cost may take, and each trial run
            [default: no limit].
        trust: plugins that the engines need: native code.
        listener: receives notes.

    Returns:
        The plan, with the latency and throughput that the simulation predicts.

    Raises:
        PlanError: no setup meets all bounds; it says which bound costs what.
        UsageError: the engines can run here, and were measured on another device.
        TrtoptError: anything else, with what to do.

    Example:
        >>> import trtopt
        >>> made = trtopt.plan(["swept"], "plan.json", slo="p99=500ms", rate=200.0)
        >>> made.goal
        'p99=500ms'
    """
    request = PlanRequest(
        slo=slo,
        rate=rate,
        arrivals=arrivals,
        lengths=lengths or {},
        memory_bytes=memory_bytes,
        max_engines=max_engines,
        for_triton=for_triton,
        timeout=timeout,
        trust=trust,
    )
    return planning.plan(sources, output, request, listener)


@keywords_of(CheckRequest)
def check(request: CheckRequest) -> CheckReport:
    """Compare an ONNX file, or the engines of a build folder, with a reference model on ONNX Runtime.

    Returns:
        The differences of every output; `passed` is whether all bounds are met.

    Raises:
        UsageError: a parameter is wrong, or has no effect here.
        ModelError, DataError: a model or the samples do not fit.
        TrtoptError: anything else, with what to do.

    Example:
        >>> import trtopt
        >>> report = trtopt.check("engines", "model.onnx", data="data.npz", bounds={"min_cosine": 0.99})
        >>> report.passed
        True
    """
    return checking.check(request, request.listener)


@naming_parameters
def export(
    model: str,
    output: str | Path,
    *,
    variant: str = "full",
    exporter: Exporter | None = None,
    dtype: DType = "fp32",
    checkpoint: str | Path | None = None,
    strict: bool = True,
    opset: int | None = None,
    external_data: bool = False,
    allow_traced_branches: bool = False,
) -> Exported:
    """Export a PyTorch model to ONNX and compare the file with PyTorch.

    Args:
        model: a name of the collection, a model file (TOML), or `package.module:callable`.
        output: the ONNX file; it appears only if it agrees with PyTorch.
        variant: of a model of the collection: `full` or `tiny`.
        exporter: `dynamo` or `torchscript` [default: the model's own choice].
        dtype: of the weights: `fp32`, `fp16` or `bf16`.
        checkpoint: a state dict or `.safetensors` [default: the model's own weights].
        strict: refuse missing and unexpected keys in the checkpoint.
        opset: of the ONNX file [default: the model's own].
        external_data: store weights next to the file even below 2 GB.
        allow_traced_branches: let torchscript keep the branch that Python took for one input where it
            branches on tensors; PyTorch then warns.

    Returns:
        The file with its opset, its number of nodes and the comparisons.

    Raises:
        BackendMissingError: PyTorch or onnxscript is not installed.
        TrtoptError: anything else, with what to do. Nothing is left under the output's name.

    Example:
        >>> import trtopt
        >>> exported = trtopt.export("resnet50", "exported.onnx", variant="tiny")
        >>> exported.nodes > 0
        True
    """
    return export_model(
        model,
        output,
        variant=variant,
        exporter=exporter,
        dtype=dtype,
        checkpoint=checkpoint,
        strict=strict,
        opset=opset,
        external_data=external_data,
        allow_traced_branches=allow_traced_branches,
    )


@naming_parameters
def rewrite(
    model: str | Path,
    output: str | Path,
    *,
    target: str = DEFAULT_TARGET,
    rules: Sequence[str] | None = None,
    skip: Sequence[str] = (),
    clean: bool = False,
    check: bool = True,
    data: str | Path | None = None,
    dynamic_batch: bool = False,
    io: Mapping[str, str] | None = None,
    normalize: Mapping[str, str] | None = None,
    preprocess: Literal["imagenet"] | None = None,
    keep_going: bool = False,
    listener: Listener = SILENT,
) -> RewriteTrace:
    """Rewrite an ONNX file so that TensorRT fuses it better, and check that it stays the same function.

    Args:
        model: the ONNX file.
        output: the ONNX file to write.
        target: the TensorRT to rewrite for: `8.6`, `10`, `11` or `rtx`.
        rules: only these rules, also ones that are off [default: those that builds and quantising apply].
        skip: rules to skip.
        clean: apply also rules that tidy the graph and that no build needs.
        check: run both models on seeded inputs, every dynamic axis at two sizes; a rule that breaks its bound
            is undone and named in the trace.
        data: real inputs for the check too: an .npz, a folder of them, Polygraphy's JSON or
            `module:function`.
        dynamic_batch: give a fixed batch axis a name first, checked at other sizes too.
        io: types and layouts of inputs and outputs: `{"image": "uint8:nhwc"}`. Types: `fp32`, `fp16`, `bf16`,
            `int8`, `uint8`; layouts: `nchw`, `nhwc` [default: the model's].
        normalize: (x - mean) / std of inputs, computed in the graph, in the new input's units:
            `{"image": "mean=123.7,116.3,103.5:std=58.4,57.1,57.4"}` [default: none].
        preprocess: `imagenet`: the same for the image input, with its means and deviations [default: none].
        keep_going: skip a rule that fails instead of stopping.
        listener: receives notes.

    Returns:
        The rules that were applied, declined and undone, and what the check found.

    Raises:
        UsageError: an unknown target or rule, or the output is the model itself.
        ModelError: the file is unsound, cannot be run for the check, or its batch cannot be made dynamic.
        DataError: the data does not fit the model.
        OutputError: the output cannot be written. Nothing is left under its name.

    Example:
        >>> import trtopt
        >>> trace = trtopt.rewrite("model.onnx", "rewritten.onnx")
        >>> trace.nodes_after <= trace.nodes_before
        True
    """
    return rewrite_model(
        Path(model),
        Path(output),
        target=target,
        rules=rules,
        skip=skip,
        clean=clean,
        check=check,
        data=data,
        dynamic_batch=dynamic_batch,
        io=read_io_request(io or {}, normalize or {}, preprocess),
        keep_going=keep_going,
        note=listener.note,
    )


@naming_parameters
def cast(
    model: str | Path,
    output: str | Path,
    *,
    precision: Literal["fp16", "bf16"] = "fp16",
    target: str = DEFAULT_TARGET,
    data: str | Path | None = None,
    threshold: float | None = None,
    exclude: Sequence[str] = (),
    keep_op: Sequence[str] = (),
    include: Sequence[str] = (),
    cast_io: bool = False,
    compare: bool = True,
    listener: Listener = SILENT,
) -> CastReport:
    """Write an ONNX file with its nodes in 16 bits where that is safe.

    A node stays FP32 where its operator must, where `exclude` or `keep_op` names it, where its weight would
    overflow or vanish, where `data` takes a tensor beyond `threshold`, and where an output on `data` would be
    below 20 dB or a cosine of 0.99: what to keep for that is searched in at most 40 runs.

    Args:
        model: the ONNX file.
        output: the ONNX file to write.
        precision: the 16-bit type: `fp16` or `bf16`.
        target: the TensorRT to cast for: `8.6`, `10`, `11` or `rtx`.
        data: real inputs, whose values decide what stays FP32: an .npz, a folder of them, Polygraphy's JSON
            or `module:function` [default: seeded random ones; a node stays only where they overflow].
        threshold: largest absolute value in 16 bits [default: a quarter of the type's largest].
        exclude: patterns of the names of nodes that stay FP32, as `encoder.0.*`.
        keep_op: operators that stay FP32, as `Softmax`.
        include: patterns of the names of nodes to cast whatever their weights and values.
        cast_io: make FP32 inputs and outputs of the model 16-bit too.
        compare: run the result against the original.
        listener: receives notes.

    Returns:
        The nodes that became 16-bit, those that stayed and why, and the differences of the outputs.

    Raises:
        UsageError: an unknown target, a pattern that fits nothing, a threshold below 0, or the output is the
            model itself.
        ModelError: the file is unsound, cannot run, or holds nothing heavy that takes this type.
        DataError: the data does not fit the model.
        OutputError: the output cannot be written. Nothing is left under its name.

    Example:
        >>> import trtopt
        >>> report = trtopt.cast("model.onnx", "fp16.onnx", data="data.npz")
        >>> len(report.lowered) > 0
        True
    """
    return cast_model(
        Path(model),
        Path(output),
        precision=precision,
        target=target,
        data=data,
        threshold=threshold,
        keep=exclude,
        keep_op=keep_op,
        include=include,
        cast_io=cast_io,
        compare=compare,
        note=listener.note,
    )


@naming_parameters
def quantize(
    model: str | Path,
    output: str | Path,
    *,
    precision: Literal["int8", "fp8", "int4"],
    target: str = DEFAULT_TARGET,
    data: str | Path | None = None,
    table: str | Path | None = None,
    method: str | None = None,
    exclude: Sequence[str] = (),
    include: Sequence[str] = (),
    smoothquant: Smoothing = AUTO,
    forms: str = "",
    store_weights: bool = False,
    random_data: bool = False,
    io: Mapping[str, str] | None = None,
    normalize: Mapping[str, str] | None = None,
    preprocess: Literal["imagenet"] | None = None,
    listener: Listener = SILENT,
) -> QuantizeReport:
    """Quantise an ONNX file: place Q/DQ where TensorRT profits from them, and write the calibration table.

    Args:
        model: the ONNX file.
        output: the ONNX file to write; its calibration table is written next to it.
        precision: what to quantise to: `int8`, `fp8` or `int4`.
        target: the TensorRT to write for: `8.6`, `10`, `11` or `rtx`.
        data: samples: an .npz, a folder of them, Polygraphy's JSON or `module:function`; with a `table` they
            find what it lacks.
        table: ranges from an earlier run, no data needed.
        method: `auto`, `max`, `percentile-99.9`, `percentile-99.99`, `percentile-99.999`, `mse` or `entropy`
            [default: `auto`; FP8: `max`].
        exclude: patterns of names, or operators, to leave in float.
        include: patterns of names, or operators, to quantise anyway.
        smoothquant: move outliers of channels into weights: `auto` (INT8, where it gains), `off`, or the
            exponent alpha, 0 to 1.
        forms: the form of an INT8 graph, as `"residual=both,attention=on"` [default: every plain choice].
        store_weights: keep weights in their narrow type (INT4 always; not on 8.6).
        random_data: calibrate on random values: to try, never to deploy.
        io: types and layouts of inputs and outputs: `{"image": "uint8:nhwc"}`. Types: `fp32`, `fp16`, `bf16`,
            `int8`, `uint8`; layouts: `nchw`, `nhwc` [default: the model's].
        normalize: (x - mean) / std of inputs, computed in the graph, in the new input's units:
            `{"image": "mean=123.7,116.3,103.5:std=58.4,57.1,57.4"}` [default: none].
        preprocess: `imagenet`: the same for the image input, with its means and deviations [default: none].
        listener: receives notes.

    Returns:
        The decision for every node, the calibration methods' scores and the SQNR of the outputs.

    Raises:
        UsageError: parameters that are wrong or contradict each other, or data is needed.
        ModelError, DataError, ArtifactError: the model, the data or the table cannot be used.
        OutputError: the output cannot be written. Nothing is left under its name.

    Example:
        >>> import trtopt
        >>> report = trtopt.quantize("model.onnx", "int8.onnx", precision="int8", data="data.npz")
        >>> report.pairs > 0
        True
    """
    request = quantising.Request(
        precision=precision,
        target=target,
        calib=_text(data),
        table=Path(table) if table is not None else None,
        method=method,
        exclude=exclude,
        include=include,
        smoothquant=smoothquant,
        forms=parse_forms(forms),
        store_weights=store_weights,
        random_data=random_data,
        io=read_io_request(io or {}, normalize or {}, preprocess),
    )
    return quantising.quantize(model, output, request, listener)


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
        >>> import numpy, trtopt
        >>> manifest = trtopt.build("model.onnx", "engines", backend="onnxruntime")
        >>> trtopt.pack(manifest, numpy.zeros((1, 1, 8, 8))).dtype
        dtype('float32')
    """
    spec, tensor = _typed(manifest, name, "input")
    return packing.packed(spec, packing.on_host(array), tensor, saturate=saturate)


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
        >>> import numpy, trtopt
        >>> manifest = trtopt.build("model.onnx", "engines", backend="onnxruntime")
        >>> trtopt.unpack(manifest, numpy.zeros((1, 10), "float32")).shape
        (1, 10)
    """
    spec, tensor = _typed(manifest, name, "output")
    return packing.unpacked(spec, packing.on_host(array), tensor)


def _described(source: Manifest | str | Path) -> tuple[OnnxArtifact, tuple[TypedTensor, ...]]:
    """The graph of a build or a typed file, and its tensors that are typed."""
    if not isinstance(source, Manifest):
        path = Path(source)
        folder = path.parent if path.is_file() else path
        if path != folder and not is_build_folder(folder):
            onnx = read_onnx(path)
            return onnx, recorded_in(load_graph(path))
        source = read_manifest(folder)
    return source.onnx, source.io


def _typed(
    source: Manifest | str | Path, name: str | None, role: Literal["input", "output"]
) -> tuple[TensorSpec, TypedTensor | None]:
    onnx, io = _described(source)
    specs = onnx.inputs if role == "input" else onnx.outputs
    names = [spec.name for spec in specs]
    if name is None and len(names) == 1:
        name = names[0]
    if name not in names:
        raise UsageError(f"name = {name!r}: no such {role}", f"give one of {', '.join(names)}")
    spec = specs[names.index(name)]
    return spec, next((one for one in io if one.name == name and one.role == role), None)


def _text(path: str | Path | None) -> str | None:
    return str(path) if path is not None else None


def _texts(paths: Sequence[str | Path] | None) -> list[str] | None:
    return [str(path) for path in paths] if paths is not None else None


optimize = naming_parameters(run_optimize)
