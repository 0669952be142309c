"""The public functions that take a request apart into keywords; the others are the workflows' own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from trtopt.measure.statistics.comparison import THRESHOLD
from trtopt.precision.calibration.table import AUTO
from trtopt.precision.casting.cast import cast_model
from trtopt.precision.quantize import Smoothing
from trtopt.recipe import Precision, Recipe, batch_sizes, make_recipe
from trtopt.records import Manifest, SweepReport, Terms
from trtopt.records.casting import CastReport
from trtopt.records.quantisation import QuantizeReport
from trtopt.rewrite.rewrite import rewrite_model
from trtopt.rewrite.rewrite_trace import RewriteTrace
from trtopt.targets import DEFAULT as DEFAULT_TARGET
from trtopt.workflows.build import build as building
from trtopt.workflows.compare import compare as comparing
from trtopt.workflows.listener import SILENT, Listener
from trtopt.workflows.precision import quantize as quantising
from trtopt.workflows.sweep import sweep as sweeping
from trtopt.workflows.sweep.request import SweepRequest


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
    calib: str | Path | None = None,
    verdict: bool | None = None,
    bounds: Mapping[str, float] | None = None,
    rewrite: bool | None = None,
    profile: str | None = None,
    backend: str | None = None,
    opt_level: int | None = None,
    workspace_mib: int | None = None,
    tactic_sources: Sequence[str] | None = None,
    compute_capability: Sequence[str] | None = None,
    plugins: Sequence[str | Path] | None = None,
    timing_cache: str | Path | None = None,
    reproducible: bool | None = None,
    cache_dir: str | Path | None = None,
    jobs: int | None = None,
    build_timeout: float | None = None,
    nvtx: bool = False,
    memory: bool = False,
    force: bool = False,
    listener: Listener = SILENT,
) -> Manifest:
    """Build engines from an ONNX file into a folder: one for each batch size, or one dynamic engine.

    Args:
        model: the ONNX file.
        output: the folder to make; by default the model's name with `.trtopt`, in the current folder. A
            build of this model under that name is replaced once the new one is complete.
        batch: batch sizes, an engine each [default: what the model fixes, else 1]; with `dynamic` the
            smallest, the one to tune for and the largest.
        ranges: with `dynamic`, in place of `batch`: such a range for each optimisation profile.
        dynamic: one engine for all batch sizes.
        shapes: of inputs with open axes besides the batch: `{"ids": "Nx1,Nx128,Nx512"}`, N is the batch.
        axes: the same by the names of axes, for all inputs: `{"seq": (1, 128, 512)}`, or one length.
        precision: what is written into the graph, or `best` for what measures fastest [default: the graph's].
        calib: real inputs for `precision`: a file, a folder or `module:function`.
        verdict: measure int8, fp8 and int4 against FP16, and hand out FP16 where they are slower [True].
        bounds: the accuracy to keep: any of min_cosine, min_sqnr, max_error, min_top1.
        rewrite: rewrite the graph first so that it fuses better [True].
        profile: a recipe by the name of a shipped one, or a TOML file; what is given here overrides it.
        backend: `auto`, `tensorrt`, `tensorrt-rtx` or `onnxruntime` [auto].
        opt_level: builder optimisation level, 0 to 5.
        workspace_mib: bound on the builder's scratch memory.
        tactic_sources: where tactics may come from.
        compute_capability: GPUs to build for, such as 8.9 (TensorRT-RTX).
        plugins: plugin libraries to load, which are native code.
        timing_cache: file to read, extend and save; `none` begins with nothing [the store of caches].
        reproducible: fail if the timing cache lacks a timing.
        cache_dir: the store of timing caches [$TRTOPT_CACHE_DIR, else ~/.cache/trtopt].
        jobs: engines built at once, on the GPUs of one kind in turn [1].
        build_timeout: seconds after which the build of an engine has failed.
        nvtx: show profilers parsing, building and describing as NVTX ranges.
        memory: follow the builder's allocations of device memory, into a file beside each engine; slows it.
        force: replace a build of another model too.
        listener: hears progress and notes.

    Raises:
        TrtoptError: with what is wrong and what to do; nothing is left under the output's name.
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
            "calib": _text(calib),
            "verdict": verdict,
            "bounds": dict(bounds) if bounds is not None else None,
            "rewrite": rewrite,
            "backend": backend,
            "opt_level": opt_level,
            "workspace_mib": workspace_mib,
            "tactic_sources": tactic_sources,
            "compute_capability": compute_capability,
            "plugins": _texts(plugins),
            "timing_cache": _text(timing_cache),
            "reproducible": reproducible,
            "jobs": jobs,
            "build_timeout": build_timeout,
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
    calib: str | Path | None = None,
    rewrite: bool | None = None,
    profile: str | None = None,
    backend: str | None = None,
    opt_level: int | None = None,
    workspace_mib: int | None = None,
    tactic_sources: Sequence[str] | None = None,
    plugins: Sequence[str | Path] | None = None,
    timing_cache: str | Path | None = None,
    reproducible: bool | None = None,
    cache_dir: str | Path | None = None,
    jobs: int | None = None,
    build_timeout: float | None = None,
    contract: str | None = None,
    terms: Terms | None = None,
    duration: float = 3.0,
    warmup: float = 0.2,
    data: str | Path | None = None,
    timeout: float | None = None,
    listener: Listener = SILENT,
) -> SweepReport:
    """Build and measure a model at every combination, one thing at a time, into a folder that can be resumed.

    What is there already, of this model, on this machine and on these terms, is not built or measured again,
    however the earlier run ended. A point that fails is recorded with its reason, and tried again later.

    Args:
        model: the ONNX file.
        output: the sweep's folder [default: the model's name with `.sweep`, in the current folder].
        batch: batch sizes [default: the recipe's, or what the model fixes, or 1 to 32 by powers of two].
        precision: what is written into the graph, one after the other; each as asked for, without the
            verdict of `build` [default: the recipe's, or as the graph is].
        streams: numbers of streams.
        axes: lengths of other open axes, by the axis' name in the model or by INPUT.INDEX.
        neighbours: `pow2`, `8`, `32`: also the powers of two and multiples next to each size and length.
        adaptive: measure more batch sizes between those given, where throughput still bends.
        shapes, calib, rewrite, profile, opt_level, workspace_mib: as for `build`.
        tactic_sources, plugins, timing_cache, reproducible, build_timeout: as for `build`.
        backend: what builds and measures; `auto` takes the CPU where no GPU is.
        cache_dir: the store of timing caches, as for `build`; all engines share one cache in the folder too.
        jobs: above 1 all engines known beforehand are built first, so many at a time, on the GPUs of one
            kind in turn; measured is on the first GPU, with nothing else at work.
        contract, terms, duration, warmup, data: as for `bench`.
        timeout: seconds after which a point has failed.
        listener: hears progress, notes and the report after each point.

    Raises:
        UsageError: options that are wrong or contradict each other; before anything is built.
        ArtifactError: the folder holds a sweep of another model or machine, or on other terms.
        MeasurementError: not one point could be measured.
    """
    recipe = make_recipe(
        profile,
        {
            "shapes": dict(shapes) if shapes is not None else None,
            "calib": _text(calib),
            "rewrite": rewrite,
            "backend": backend,
            "opt_level": opt_level,
            "workspace_mib": workspace_mib,
            "tactic_sources": tactic_sources,
            "plugins": _texts(plugins),
            "timing_cache": _text(timing_cache),
            "reproducible": reproducible,
            "jobs": jobs,
            "build_timeout": build_timeout,
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


def compare(
    a: str | Path,
    b: str | Path | None = None,
    *,
    threshold: float = THRESHOLD,
    force: bool = False,
    batch: int | Sequence[int] | None = None,
    backend: str | None = None,
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
) -> comparing.Compared:
    """Judge B against the baseline A.

    Args:
        a: a result file (trtopt's or trtexec's), a build folder, an engine, or an ONNX file with `builds`.
        b: the same; not needed with `control`, `builds` or `across_contracts`.
        threshold: a difference below this share is of no practical interest.
        force: compare although machines, models, input shapes or outputs differ; what does is noted.
        batch: batch sizes [default: all that both sides have]. Beside a file of trtexec's: the one it is for.
        backend, contract, terms, data, trust: as for `bench`.
        duration: seconds of sampling for each subject at each batch size, over all its turns [3].
        timeout: seconds that a batch size may take, all turns of one process together.
        control: measure A against itself so many times, and allow for what that finds.
        builds: build each model so many times and compare recipes; of one model, compare its builds.
        recipe: with `builds` of ONNX files: how they are built.
        across_contracts: two contracts (`trtexec-10,trtexec-11`), or `""` between result files: explain the
            difference.
        assume_contract: the contract that a file of trtexec's was measured under.
        listener: hears progress and notes.

    Raises:
        TrtoptError: with what is wrong and what to do.
    """
    options = comparing.Options(
        threshold=threshold,
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
    return comparing.compare(a, b, options, listener)


def rewrite(
    model: str | Path,
    output: str | Path,
    *,
    target: str = DEFAULT_TARGET,
    rules: Sequence[str] | None = None,
    skip: Sequence[str] = (),
    check: bool = True,
    data: str | Path | None = None,
    dynamic_batch: bool = False,
    keep_going: bool = False,
    listener: Listener = SILENT,
) -> RewriteTrace:
    """Rewrite an ONNX file so that TensorRT fuses it better, and check that it stays the same function.

    Args:
        model: the ONNX file.
        output: where to write.
        target: the TensorRT to rewrite for: 8.6, 10, 11 or rtx.
        rules: only these rules, also ones that are off [default: those that are on].
        skip: rules to leave out.
        check: run both models on seeded inputs; a rule that breaks its bound is undone.
        data: real inputs for the check.
        dynamic_batch: give a fixed batch axis a name.
        keep_going: leave out a rule that fails instead of stopping.
        listener: hears notes.

    Raises:
        TrtoptError: with what is wrong and what to do; nothing stands under the output's name then.
    """
    return rewrite_model(
        Path(model),
        Path(output),
        target=target,
        rules=rules,
        skip=skip,
        check=check,
        data=data,
        dynamic_batch=dynamic_batch,
        keep_going=keep_going,
        note=listener.note,
    )


def cast(
    model: str | Path,
    output: str | Path,
    *,
    precision: Literal["fp16", "bf16"] = "fp16",
    target: str = DEFAULT_TARGET,
    data: str | Path | None = None,
    threshold: float | None = None,
    keep: Sequence[str] = (),
    keep_op: Sequence[str] = (),
    include: Sequence[str] = (),
    cast_io: bool = False,
    compare: bool = True,
    listener: Listener = SILENT,
) -> CastReport:
    """Write an ONNX file with its nodes in 16 bits where that is safe.

    Args:
        model: the ONNX file.
        output: where to write.
        precision: the 16-bit type.
        target: the TensorRT to cast for: 8.6, 10, 11 or rtx.
        data: real inputs, whose values decide what stays FP32 [default: seeded random ones].
        threshold: largest absolute value in 16 bits [default: a quarter of the type's largest].
        keep: patterns of the names of nodes that stay FP32.
        keep_op: operators that stay FP32.
        include: patterns of the names of nodes to cast whatever their values.
        cast_io: make FP32 inputs and outputs of the model 16-bit too.
        compare: run the result against the original.
        listener: hears notes.

    Raises:
        TrtoptError: with what is wrong and what to do; nothing stands under the output's name then.
    """
    return cast_model(
        Path(model),
        Path(output),
        precision=precision,
        target=target,
        data=data,
        threshold=threshold,
        keep=keep,
        keep_op=keep_op,
        include=include,
        cast_io=cast_io,
        compare=compare,
        note=listener.note,
    )


def quantize(
    model: str | Path,
    output: str | Path,
    *,
    precision: Literal["int8", "fp8", "int4"],
    target: str = DEFAULT_TARGET,
    calib: str | Path | None = None,
    table: str | Path | None = None,
    method: str | None = None,
    exclude: Sequence[str] = (),
    include: Sequence[str] = (),
    smoothquant: Smoothing = AUTO,
    store_weights: bool = False,
    random_data: bool = False,
    listener: Listener = SILENT,
) -> QuantizeReport:
    """Quantise an ONNX file: Q/DQ where TensorRT profits from them, and the calibration table beside it.

    Args:
        model: the ONNX file.
        output: where to write.
        precision: what to quantise to.
        target: the TensorRT to write for: 8.6, 10, 11 or rtx.
        calib: samples: a file, a folder or `module:function`; beside a `table` they find what that lacks.
        table: ranges from an earlier run, no data needed.
        method: auto, max, percentile-99.9, -99.99, -99.999, mse or entropy [auto; FP8: max].
        exclude: patterns of names, or operators, to leave.
        include: patterns of names, or operators, to quantise anyway.
        smoothquant: move outlying channels into weights: `auto` (INT8, where it gains), `off`, or alpha.
        store_weights: keep weights in their narrow type (INT4 always; not on 8.6).
        random_data: calibrate on random values: to try, never to deploy.
        listener: hears notes.

    Raises:
        TrtoptError: with what is wrong and what to do; nothing stands under the output's name then.
    """
    request = quantising.Request(
        precision=precision,
        target=target,
        calib=_text(calib),
        table=Path(table) if table is not None else None,
        method=method,
        exclude=exclude,
        include=include,
        smoothquant=smoothquant,
        store_weights=store_weights,
        random_data=random_data,
    )
    return quantising.quantize(model, output, request, listener)


def _text(path: str | Path | None) -> str | None:
    return str(path) if path is not None else None


def _texts(paths: Sequence[str | Path] | None) -> list[str] | None:
    return [str(path) for path in paths] if paths is not None else None
