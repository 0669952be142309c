"""The request of `bench`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from trtopt.options import Argument, Option
from trtopt.recipe import Recipe, input_sizes
from trtopt.requests.parsing import REFERENCE, parse_clock
from trtopt.requests.shared import (
    DURATION,
    WARMUP,
    Axes,
    Backend,
    Batch,
    Contract,
    Duration,
    Inputs,
    Nvtx,
    Request,
    Shapes,
    TermsOptions,
    Timeout,
    Trust,
    Warmup,
)


@dataclass(frozen=True)
class BenchRequest(Request):
    """How to measure what."""

    path: Annotated[str | Path, Argument("the folder, engine or ONNX file.")]
    _: KW_ONLY
    batch: Annotated[Batch, "Batch sizes [default: those of the engines]."] = None
    shapes: Shapes = None
    axes: Axes = None
    backend: Annotated[
        Backend,
        (
            "Backend to run with [default: auto, the engines' own, or the CPU if there is no GPU].",
            "what runs the engines [default: `auto`, the engines' own, or the CPU where there is no GPU]. "
            "Another "
            "than their own builds the folder's model again, in a temporary folder.",
        ),
    ] = None
    contract: Contract = None
    terms: TermsOptions = None
    duration: Duration = DURATION
    stop_early: Annotated[
        bool,
        Option(
            "End a pass sooner if it is steady, after 8 s at the earliest.",
            python="end a pass sooner where it is steady: 20 blocks whose medians agree within 0.5 %, after "
            "8 seconds and a third of the duration at the earliest.",
        ),
    ] = False
    warmup: Warmup = WARMUP
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
    idle: Annotated[
        str | None,
        Option(
            "Measure the latency after such pauses, in a pass of its own.",
            python="measure the latency after such pauses, as `1,10,100ms`, in a pass of its own.",
            metavar="1,10,100ms",
        ),
    ] = None
    cold_start: Annotated[bool, Option("Start each engine in fresh processes too, and time every phase.")] = (
        False
    )
    cpu_affinity: Annotated[
        str | None,
        Option(
            "Keep host threads on the cores near the GPU, or on 0-3,8.",
            python="keep host threads on cores: `auto` (those near the GPU), or a list as `0-3,8`.",
            metavar="auto|LIST",
        ),
    ] = None
    lock_clocks: Annotated[
        int | bool,
        Option(
            "Lock the GPU's clocks while measuring, at MHZ or at their reference; restored on any exit.",
            python="lock the GPU's clocks at this many MHz, or at their reference (True), while measuring; "
            "restored on any exit, on a signal only if it becomes an exception.",
            metavar="[MHZ]",
            parse=parse_clock,
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
