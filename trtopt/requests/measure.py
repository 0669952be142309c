"""The requests of what measures: `bench`, `profile` and `compare`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from trtopt.measure.contracts import DURATION_S, THRESHOLD, WARMUP_S
from trtopt.options import Argument, Option
from trtopt.recipe import Recipe
from trtopt.requests.recipe import input_sizes
from trtopt.requests.shared import (
    REFERENCE,
    SHARE,
    UP_TO_A_DAY,
    Axes,
    Backend,
    Batch,
    Contract,
    Duration,
    Executor,
    GpuModel,
    Inputs,
    Nvtx,
    Request,
    Retries,
    Shapes,
    TermsOptions,
    Timeout,
    Trust,
    Warmup,
    parse_clock,
    parse_share,
)


@dataclass(frozen=True)
class BenchRequest(TermsOptions):
    """How to measure what."""

    path: Annotated[str | Path, Argument("the folder, engine or ONNX file.")]
    _: KW_ONLY
    batch: Annotated[Batch, "Batch sizes [default: those of the engines]."] = None
    shapes: Shapes = None
    axes: Axes = None
    backend: Annotated[
        Backend,
        "Backend to run with; another than the engines' own builds the folder's model again, in a temporary "
        "folder [default: auto, their own, or the CPU if there is no GPU].",
    ] = None
    contract: Contract = None
    duration: Duration = DURATION_S
    stop_early: Annotated[
        bool,
        Option(
            "End a pass sooner if it is steady: 20 blocks whose medians agree within 0.5 %, after 8 s and a "
            "third of the duration at the earliest.",
        ),
    ] = False
    warmup: Warmup = WARMUP_S
    data: Inputs = None
    layers: Annotated[bool, Option("Time every layer, in a separate pass.")] = False
    memory: Annotated[bool, Option("Trace every allocation, in a separate pass.")] = False
    load: Annotated[
        str | None,
        Option(
            "Send requests at RATE per second, evenly or as a Poisson process, in a separate pass.",
            metavar="[poisson:]RATE",
        ),
    ] = None
    max_latency: Annotated[
        str | None,
        Option(
            "Find the highest request rate that meets this latency, as p99=5ms; --load poisson (default), "
            "constant or a first rate set how requests arrive.",
            metavar="pN=LIMIT",
        ),
    ] = None
    cold_start: Annotated[bool, Option("Start each engine in fresh processes too, and time every phase.")] = (
        False
    )
    lock_clocks: Annotated[
        int | bool,
        Option(
            "Lock the GPU's clocks while measuring, at MHZ or at their reference; restored on any exit.",
            python="lock the GPU's clocks at this many MHz, or at their reference (True), while measuring; "
            "restored on any exit, on a signal only if it becomes an exception.",
            metavar="[MHZ]",
            parse=parse_clock,
            range=(1, 10_000),
            bare=REFERENCE,
        ),
    ] = False
    timeout: Timeout = None
    trust: Trust = ()
    nvtx: Nvtx = False
    cuda_profiler: Annotated[
        bool, Option("Let nsys profile --capture-range=cudaProfilerApi capture the measured part only.")
    ] = False
    kernels: bool = False
    """For `profile` alone, which records them in the same run."""

    @property
    def sizes(self) -> Recipe:
        """The shapes and axes, as a recipe that gives nothing else."""
        return input_sizes(self.shapes, self.axes)


@dataclass(frozen=True)
class ProfileRequest(Request):
    """What to profile."""

    path: Annotated[str | Path, Argument("a build folder, an engine in one, or an ONNX file.")]
    _: KW_ONLY
    batch: Annotated[Batch, "Batch sizes [default: those of the engines]."] = None
    shapes: Shapes = None
    axes: Axes = None
    data: Inputs = None
    backend: Annotated[
        Backend, "Backend to run with [default: the engines' own; auto: the CPU if there is no GPU]."
    ] = None
    result: Annotated[
        str | Path | None,
        Option(
            "Use a result file of `trtopt bench --layers` instead of measuring here.",
            metavar="FILE",
            must_exist=True,
        ),
    ] = None
    against: Annotated[
        str | Path | None,
        Option(
            "An earlier profile (file or folder): show the differences, layer by layer, from its engine of "
            "the same batch size, or its only one.",
            metavar="PROFILE",
            must_exist=True,
        ),
    ] = None
    memory: Annotated[bool, Option("Trace every allocation too, in a separate pass.")] = False
    kernels: Annotated[bool, Option("Record every kernel too (CUPTI), in a separate pass.")] = False
    timeout: Timeout = None
    trust: Trust = ()
    nvtx: Nvtx = False
    probe_peaks: Annotated[
        bool, Option("Measure the device's peak rates, for floors; stored for later profiles.")
    ] = False
    duration: Annotated[
        float,
        Option(
            "Seconds of the latency pass that accompanies the layer pass, up to a day.",
            metavar="S",
            range=UP_TO_A_DAY,
        ),
    ] = 1.0

    @property
    def measurement(self) -> BenchRequest:
        """The request of the measurement that a profile starts from."""
        return BenchRequest(
            self.path,
            batch=self.batch,
            shapes=self.shapes,
            axes=self.axes,
            data=self.data,
            backend=self.backend,
            layers=True,
            memory=self.memory,
            kernels=self.kernels,
            nvtx=self.nvtx,
            duration=self.duration,
            timeout=self.timeout,
            trust=self.trust,
        )


@dataclass(frozen=True)
class CompareRequest(TermsOptions):
    """What to compare, and how."""

    a: Annotated[
        str | Path,
        Argument(
            "a result file (trtopt's or trtexec's), a build folder or an engine; with `builds` a folder."
        ),
    ]
    b: Annotated[
        str | Path | None,
        Argument("the same; not needed with `control` or `across_contracts`."),
    ] = None
    _: KW_ONLY
    threshold: Annotated[
        float,
        Option(
            "The smallest difference that matters [default: 1%].",
            python="the smallest difference that matters, as a share between 0 and 1 [default: 0.01].",
            metavar="PERCENT",
            parse=partial(parse_share, "--threshold"),
            range=SHARE,
        ),
    ] = THRESHOLD
    fail_on: Annotated[
        float | None,
        Option(
            "Exit with 5 unless a slowdown of so much is ruled out [default: 5% between result files, 2% in "
            "turns].",
            python="the slowdown that must be ruled out, as a share [default: 0.05 between result files, "
            "0.02 in turns]; `outcome.not_shown` has the batch sizes where it is not.",
            metavar="PERCENT",
            parse=partial(parse_share, "--fail-on"),
            range=SHARE,
        ),
    ] = None
    force: Annotated[bool, Option("Compare although machines, models, input shapes or outputs differ.")] = (
        False
    )
    batch: Annotated[Batch, "Batch sizes [default: those of both sides]."] = None
    shapes: Shapes = None
    axes: Axes = None
    backend: Backend = None
    contract: Contract = None
    duration: Annotated[
        float | None,
        Option(
            "Seconds of sampling for each of A and B per batch size, up to a day [default: 3.0].",
            metavar="S",
            range=UP_TO_A_DAY,
        ),
    ] = None
    data: Inputs = None
    timeout: Timeout = None
    trust: Trust = ()
    control: Annotated[
        int | None, Option("Measure A against itself K times.", metavar="K", range=(1, 1000))
    ] = None
    builds: Annotated[
        int | None,
        Option("Build each folder's engines K times again: compare recipes.", metavar="K", range=(2, 1000)),
    ] = None
    across_contracts: Annotated[
        str | None,
        Option("Explain the difference of two contracts, as trtexec-10,trtexec-11.", metavar="C1,C2"),
    ] = None
    executor: Executor = None
    gpu_model: GpuModel = None
    retries: Retries = None

    @property
    def sizes(self) -> Recipe:
        """The shapes and axes, as a recipe that gives nothing else."""
        return input_sizes(self.shapes, self.axes)
