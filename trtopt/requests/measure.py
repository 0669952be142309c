"""The requests of what measures and shows: `bench`, `profile`, `explain`, `compare` and `report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from trtopt.measure.contracts import DURATION_S, THRESHOLD, WARMUP_S
from trtopt.options import Argument, Checked, Option, Output
from trtopt.requests import shared
from trtopt.requests.recipe import RunOptions

_OWN_BACKEND = "Backend to run with [default: the engines' own; auto: the CPU if there is no GPU]."


@dataclass(frozen=True)
class BenchRequest(RunOptions, shared.TermsOptions):
    path: Annotated[str | Path, Argument("the folder, engine or ONNX file.")]
    _: KW_ONLY
    batch: Annotated[shared.Batch, "Batch sizes [default: those of the engines]."] = None
    backend: Annotated[
        shared.Backend,
        "Backend to run with; another than the engines' own builds the folder's model again, in a temporary "
        "folder [default: auto, their own, or the CPU if there is no GPU].",
    ] = None
    contract: shared.Contract = None
    duration: shared.Duration = DURATION_S
    stop_early: Annotated[
        bool,
        Option(
            "End a pass sooner if it is steady: 20 blocks whose medians agree within 0.5 %, after 8 s and a "
            "third of the duration at the earliest."
        ),
    ] = False
    warmup: shared.Warmup = WARMUP_S
    data: shared.Inputs = None
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
            parse=shared.parse_clock,
            range=(1, 10_000),
            bare=shared.REFERENCE,
        ),
    ] = False
    nvtx: shared.Nvtx = False
    cuda_profiler: Annotated[
        bool,
        Option("Let nsys profile --capture-range=cudaProfilerApi capture the measured part only."),
    ] = False
    kernels: bool = False
    """For `profile` alone, which records them in the same run."""


@dataclass(frozen=True)
class ProfileRequest(RunOptions):
    path: Annotated[str | Path, Argument("a build folder, an engine in one, or an ONNX file.")]
    _: KW_ONLY
    batch: Annotated[shared.Batch, "Batch sizes [default: those of the engines]."] = None
    data: shared.Inputs = None
    backend: Annotated[shared.Backend, _OWN_BACKEND] = None
    result: Annotated[
        shared.File, "Use a result file of `trtopt bench --layers` instead of measuring here."
    ] = None
    memory: Annotated[bool, Option("Trace every allocation too, in a separate pass.")] = False
    kernels: Annotated[bool, Option("Record every kernel too (CUPTI), in a separate pass.")] = False
    nvtx: shared.Nvtx = False
    probe_peaks: Annotated[
        bool,
        Option("Measure the device's peak rates, for floors; stored for later profiles."),
    ] = False
    duration: Annotated[
        shared.Duration, "Seconds of the latency pass that accompanies the layer pass, up to a day."
    ] = 1.0

    @property
    def measurement(self) -> BenchRequest:
        """The request of the measurement that a profile starts from."""
        return BenchRequest(layers=True, kernels=self.kernels, **self.values_for(BenchRequest))


@dataclass(frozen=True)
class ExplainRequest(RunOptions):
    a: Annotated[
        str | Path,
        Argument("what B is compared with: a build folder, an engine in one, an ONNX file, or a profile."),
    ]
    b: Annotated[str | Path, Argument("the same, of the same model.")]
    _: KW_ONLY
    batch: Annotated[shared.Batch, "Batch sizes [default: those of both]."] = None
    data: shared.Inputs = None
    backend: Annotated[shared.Backend, _OWN_BACKEND] = None
    kernels: Annotated[
        bool,
        Option(
            "Time layers alone: no kernels are recorded (CUPTI), which is done on a GPU without this.",
            python="record every kernel too, on a GPU (CUPTI).",
            flag="--no-kernels",
        ),
    ] = True
    duration: Annotated[shared.Duration, "Seconds of the latency pass of what is profiled, up to a day."] = (
        1.0
    )
    remedies: Annotated[
        Sequence[str],
        Option(
            "Build what may save the cost of CAUSE, a part of its name, or of all, and measure it in turns "
            "with B and A.",
            python="causes whose remedies are built and measured in turns with B and A: parts of their "
            "names, or all.",
            flag="--try",
            metavar="CAUSE|all",
        ),
    ] = ()
    budget: Annotated[
        str | float, Option("Time to try remedies in, as 90s or 10m; none is begun later.", metavar="TIME")
    ] = "30m"


@dataclass(frozen=True)
class CompareRequest(RunOptions, shared.TermsOptions, shared.JobOptions):
    a: Annotated[
        str | Path,
        Argument("a result file, a build folder or an engine; with `builds` a folder."),
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
            parse=partial(shared.parse_share, "--threshold"),
            range=shared.SHARE,
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
            parse=partial(shared.parse_share, "--fail-on"),
            range=shared.SHARE,
        ),
    ] = None
    force: Annotated[bool, Option("Compare although machines, models, input shapes or outputs differ.")] = (
        False
    )
    batch: Annotated[shared.Batch, "Batch sizes [default: those of both sides]."] = None
    backend: shared.Backend = None
    contract: shared.Contract = None
    duration: Annotated[
        float | None,
        Option(
            "Seconds of sampling for each of A and B per batch size, up to a day [default: 3.0].",
            metavar="S",
            range=shared.UP_TO_A_DAY,
        ),
    ] = None
    data: shared.Inputs = None
    control: Annotated[
        int | None, Option("Measure A against itself K times.", metavar="K", range=(1, 1000))
    ] = None
    builds: Annotated[
        int | None,
        Option("Build each folder's engines K times again: compare recipes.", metavar="K", range=(2, 1000)),
    ] = None
    upgrade: Annotated[
        bool,
        Option("Compare results, layers, memory and build time too: is B, another build, as good as A?"),
    ] = False
    across_contracts: Annotated[
        str | None,
        Option("Explain the difference of two contracts, as trtexec-10,trtexec-11.", metavar="C1,C2"),
    ] = None


HistoryFolder = Annotated[str | Path, Argument("the folder of one model's results over time.", "folder")]


@dataclass(frozen=True)
class HistoryRequest(Checked):
    folder: HistoryFolder
    result: Annotated[
        str | Path | None,
        Argument("the result to judge, by what is no newer [default: the newest].", metavar="[RESULT]"),
    ] = None


@dataclass(frozen=True)
class HistoryAddRequest(Checked):
    folder: HistoryFolder
    results: Annotated[
        Sequence[str | Path], Argument("results of `trtopt bench --json`.", metavar="RESULT...")
    ]


@dataclass(frozen=True)
class ReportRequest(Checked):
    folder: Annotated[
        str | Path,
        Argument("a build folder, with results and profiles in it, or a sweep's folder.", metavar="DIR"),
    ]
    other: Annotated[
        str | Path | None,
        Argument("a second one, which is shown side by side with the baseline.", metavar="[DIR_B]"),
    ] = None
    output: Annotated[
        str | Path | None,
        Output("HTML file to write [default: DIR.html next to DIR; of two, A-and-B.html next to A].", "page"),
    ] = None
