"""The requests of what builds: `build`, `optimize`, `sweep` and `tune`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, get_args

from trtopt.measure.contracts import DEFAULT, DURATION_S, THRESHOLD, WARMUP_S
from trtopt.options import Argument, Checked, Option, Output, parse_names
from trtopt.precision.bounds import TUNING_BOUNDS
from trtopt.recipe import GRAPH_PRECISIONS, Recipe
from trtopt.records.tune import CandidateKind, Objective
from trtopt.requests import shared
from trtopt.requests.recipe import RecipeOptions, SelectionBudget, SweptOptions, recipe_of


@dataclass(frozen=True)
class BuildRequest(shared.BoundsOptions, RecipeOptions):
    model: shared.OnnxFile
    output: Annotated[
        str | Path | None,
        Output(
            "Build folder to create [default: MODEL.trtopt]; a build of the same model is replaced once the "
            "new one is complete.",
            "folder",
        ),
    ] = None
    _: KW_ONLY
    batch: Annotated[
        int | Sequence[int] | None,
        Option(
            "Batch sizes, one engine each, as 1,8,32, 1-8 or pow2:32 [default: 1]. With --dynamic its "
            "MIN,OPT,MAX; several --batch give it several optimisation profiles.",
            python="batch sizes, one engine each, from 1 [default: what the model fixes, else 1]; with "
            "`dynamic` the smallest, the one to tune for and the largest.",
            metavar="N,N,…",
            parse=shared.parse_range,
            is_repeated=True,
        ),
    ] = None
    ranges: Annotated[
        Sequence[Sequence[int]] | None,
        Option("with `dynamic`, in place of `batch`: such a range for each optimisation profile.", flag=None),
    ] = None
    backend: Annotated[
        shared.Backend, "What to build with [default: auto: TensorRT-RTX if there is no GPU]."
    ] = None
    data: Annotated[
        shared.Data,
        shared.samples(
            "Real inputs for --precision, whose values decide what stays FP32 and how INT8 is scaled"
        ),
    ] = None
    selection_budget: SelectionBudget = None
    verdict: Annotated[
        bool | None,
        Option(
            "Measure int8, fp8 and int4 against FP16, and use FP16 where they are slower [default: yes].",
            flag="--verdict/--no-verdict",
        ),
    ] = None
    cache_dir: shared.CacheDir = None
    lock: Annotated[
        str | Path | None,
        Option("Write which tactic each layer got, for --locked (TensorRT).", metavar="FILE", is_path=True),
    ] = None
    locked: Annotated[
        str | Path | None,
        Option(
            "FILE of --lock: give each layer its tactic, or fail. BUILD_DIR, without MODEL: build again what "
            "its manifest describes, and show the differences.",
            python="a file that `lock` wrote: give each layer its tactic, or fail.",
            metavar="FILE|BUILD_DIR",
            is_path=True,
            must_exist=True,
        ),
    ] = None
    force: shared.Force = False

    @cached_property
    def recipe(self) -> Recipe:
        """What to build as one validated recipe."""
        return recipe_of(self, calib=self.data, bounds=self.bounds.given or None)


@dataclass(frozen=True)
class VerifyRequest(Checked):
    folder: Annotated[str | Path, Argument("the build folder.")]
    _: KW_ONLY
    trust: Annotated[
        Sequence[str],
        Option("Trust an engine that has changed: native code.", metavar="ENGINE", is_path=True),
    ] = ()


@dataclass(frozen=True)
class CacheRequest(Checked):
    cache_dir: shared.CacheDir = None


@dataclass(frozen=True)
class OptimizeRequest(shared.Request):
    model: shared.OnnxFile
    output: Annotated[
        str | Path | None,
        Output("Build folder to create [default: MODEL.trtopt].", "folder"),
    ] = None
    _: KW_ONLY
    data: Annotated[
        shared.Data,
        shared.samples(
            "Samples that decide the precision, the fastest that keeps --min-cosine, where engines can be "
            "measured [default: the graph's is kept]"
        ),
    ] = None
    slo: Annotated[str | None, Option("Latency bound, as p99=10ms.", metavar="pN=LIMIT")] = None
    min_cosine: Annotated[
        float,
        Option("Minimum cosine of every output against MODEL, -1 to 1.", metavar="VALUE", range=(-1, 1)),
    ] = 0.99
    batch: Annotated[shared.Batch, "Batch sizes, one engine each [default: 1,8,32]."] = None
    shapes: shared.Shapes = None
    axes: shared.Axes = None
    backend: Annotated[
        shared.BackendName,
        Option("What to build with; without a GPU the measurement runs on ONNX Runtime."),
    ] = "auto"
    duration: shared.Duration = DURATION_S
    force: shared.Force = False


@dataclass(frozen=True)
class SweepRequest(shared.SweptTerms, SweptOptions):
    model: shared.OnnxFile
    output: Annotated[
        str | Path | None,
        Output("The sweep's folder, new or to continue [default: MODEL.sweep].", "folder"),
    ] = None
    _: KW_ONLY
    batch: Annotated[
        shared.Batch, "Batch sizes, one engine each, as 1-8 or pow2:64 [default: 1,2,4,8,16,32]."
    ] = None
    precision: Annotated[
        str | Sequence[str] | None,
        Option(
            f"Precisions to write into the graph and measure, all that are named: "
            f"{', '.join(GRAPH_PRECISIONS)} [default: the recipe's, or the graph's].",
            metavar="NAME,NAME,…",
            parse=parse_names,
            names=lambda: GRAPH_PRECISIONS,
        ),
    ] = None
    streams: Annotated[
        int | Sequence[int],
        Option("Stream counts [default: 1].", metavar="N,N,…", parse=shared.parse_streams, range=(1, 1024)),
    ] = (1,)
    axes: Annotated[
        Mapping[str, Sequence[int]] | None,
        Option(
            "Lengths of another dynamic axis, by its name in the model or as INPUT.INDEX.",
            flag="--axis",
            metavar="NAME=N,N,…",
            parse=shared.parse_lengths_of_axis,
        ),
    ] = None
    backend: Annotated[
        shared.Backend, "Backend to build and measure with [default: auto, the CPU if there is no GPU]."
    ] = None
    contract: shared.Contract = None
    cache_dir: shared.CacheDir = None
    duration: shared.Duration = DURATION_S
    warmup: shared.Warmup = WARMUP_S
    data: Annotated[
        shared.Data,
        shared.samples(
            "Inputs to measure with, and for precisions that need data [default: seeded random ones]"
        ),
    ] = None
    timeout: shared.Timeout = None

    @cached_property
    def recipe(self) -> Recipe:
        """What all engines share."""
        return recipe_of(self, calib=self.data, batch=None, precision=None, axes=None)

    @property
    def precisions(self) -> tuple[str, ...]:
        """Those that are swept."""
        return (self.precision,) if isinstance(self.precision, str) else tuple(self.precision or ())


KINDS = get_args(CandidateKind)


@dataclass(frozen=True)
class TuneRequest(shared.BoundsOptions, shared.TensorOptions, shared.JobOptions):
    model: shared.OnnxFile
    output: Annotated[
        str | Path | None,
        Output(
            "Build folder to create or, with --resume, to continue [default: MODEL.tuned].",
            "folder",
        ),
    ] = None
    _: KW_ONLY
    batch: Annotated[
        shared.Batch,
        "Batch size to tune for; of several, --objective throughput chooses [default: the model's, or 1].",
    ] = None
    objective: Annotated[
        Objective,
        Option("What to improve: `latency` (median), `p99`, or `throughput`."),
    ] = "latency"
    budget: Annotated[
        str | float,
        Option("Time to spend, earlier runs of the folder included, as 90s, 30m or 1h30m.", metavar="TIME"),
    ] = "30m"
    include: Annotated[
        Sequence[CandidateKind],
        Option(f"Kinds of candidates to try alone: {', '.join(KINDS)} [default: all].", metavar="KIND"),
    ] = ()
    exclude: Annotated[
        Sequence[CandidateKind],
        Option("Kinds of candidates to leave out.", metavar="KIND"),
    ] = ()
    resume: Annotated[bool, Option("Continue in a folder that an earlier run began.")] = False
    data: Annotated[
        shared.Data,
        shared.samples("Inputs to measure and check with, and to calibrate on [default: seeded random ones]"),
    ] = None
    min_cosine: shared.MinCosine = TUNING_BOUNDS.min_cosine
    backend: Annotated[
        shared.Backend, "Backend to build and measure with [default: auto, the CPU if there is no GPU]."
    ] = None
    profile: Annotated[shared.Profile, "A shipped recipe or a TOML file that the baseline is built with."] = (
        None
    )
    shapes: shared.Shapes = None
    axes: shared.Axes = None
    contract: Annotated[shared.Contract, f"The terms of the measurement [default: {DEFAULT}]."] = None
    duration: Annotated[shared.Duration, "Seconds of sampling per engine in a race, up to a day."] = 2.0
    threshold: Annotated[
        float,
        Option("The smallest gain to accept, as a share.", metavar="SHARE", range=shared.SHARE),
    ] = THRESHOLD
    timeout: Annotated[
        shared.Timeout,
        "Time limit for one build or measurement [default: ten times the baseline's, a minute at least].",
    ] = None
    cache_dir: shared.CacheDir = None

    @cached_property
    def recipe(self) -> Recipe:
        """What the baseline is built with."""
        return recipe_of(self, batch=None, exclude=None, bounds=None)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of candidates to try."""
        wanted = self.include or KINDS
        return tuple(name for name in KINDS if name in wanted and name not in self.exclude)
