"""The request of `tune`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, get_args

from trtopt.measure.contracts import DEFAULT
from trtopt.measure.statistics.comparison import THRESHOLD
from trtopt.options import Option, Output
from trtopt.precision.bounds import TUNING_BOUNDS, Bounds, bounds_in
from trtopt.recipe import Recipe
from trtopt.records.tune import CandidateKind, Objective
from trtopt.requests.recipe import recipe_of
from trtopt.requests.shared import (
    Axes,
    Backend,
    Batch,
    CacheDir,
    Contract,
    Data,
    Executor,
    GpuModel,
    Io,
    Normalize,
    OnnxFile,
    Preprocess,
    Profile,
    Request,
    Retries,
    Shapes,
    bounds_of,
    samples,
)

KINDS = get_args(CandidateKind)


@dataclass(frozen=True)
class TuneRequest(Request):
    """What to tune for, and with what."""

    model: OnnxFile
    output: Annotated[
        str | Path | None,
        Output(
            "Build folder to create or, with --resume, to continue [default: MODEL.tuned].",
            "folder",
            python="the build folder [default: the model's name with `.tuned`, in the current folder].",
        ),
    ] = None
    _: KW_ONLY
    batch: Annotated[
        Batch,
        "Batch size to tune for; of several, --objective throughput chooses [default: the model's, or 1].",
    ] = None
    objective: Annotated[
        Objective,
        Option(
            "What to improve.",
            python="`latency` (median), `p99`, `throughput`, or `energy` per sample (GPUs only).",
        ),
    ] = "latency"
    rate: Annotated[
        float | None,
        Option(
            "With --objective p99: requests per second, arriving independently [default: one after another].",
            python="with `p99`, requests per second that arrive independently of one another, each a query; "
            "its "
            "latency counts from its arrival [default: one query after another].",
            metavar="PER_S",
        ),
    ] = None
    budget: Annotated[
        str | float,
        Option("Time to spend, earlier runs of the folder included, as 90s, 30m or 1h30m.", metavar="TIME"),
    ] = "30m"
    include: Annotated[
        Sequence[CandidateKind],
        Option(
            f"Try only this kind of candidate, and others so named: {', '.join(KINDS)}.",
            python=f"only these kinds of candidates: {', '.join(KINDS)} [default: all].",
            metavar="KIND",
        ),
    ] = ()
    exclude: Annotated[
        Sequence[CandidateKind],
        Option(
            "Leave out this kind of candidate; may be given several times.",
            python="kinds of candidates to leave out.",
            metavar="KIND",
        ),
    ] = ()
    resume: Annotated[bool, Option("Continue in a folder that an earlier run began.")] = False
    data: Annotated[
        Data,
        samples("Inputs to measure and check with, and to calibrate on [default: seeded random ones]"),
    ] = None
    bounds: Annotated[
        Bounds | Mapping[str, float] | None,
        bounds_of("`min_cosine` is 0.99 if it is not given", defaults=TUNING_BOUNDS.given),
    ] = None
    backend: Annotated[
        Backend, "Backend to build and measure with [default: auto, the CPU if there is no GPU]."
    ] = None
    profile: Annotated[Profile, "A shipped recipe or a TOML file that the baseline is built with."] = None
    shapes: Shapes = None
    axes: Axes = None
    io: Io = None
    normalize: Normalize = None
    preprocess: Preprocess = None
    contract: Annotated[Contract, f"The terms of the measurement [default: {DEFAULT}]."] = None
    duration: Annotated[
        float, Option("Seconds of sampling per engine in a race, up to a day.", metavar="S")
    ] = 2.0
    threshold: Annotated[float, Option("The smallest gain to accept, as a share.", metavar="SHARE")] = (
        THRESHOLD
    )
    timeout: Annotated[
        float | None,
        Option(
            "Time limit for one build or measurement [default: ten times the baseline's, a minute at least].",
            metavar="S",
        ),
    ] = None
    executor: Executor = None
    gpu_model: GpuModel = None
    retries: Retries = None
    cache_dir: CacheDir = None

    @cached_property
    def recipe(self) -> Recipe:
        """What the baseline is built with."""
        return recipe_of(self, batch=None, exclude=None, bounds=None)

    @cached_property
    def accuracy(self) -> Bounds:
        """What every candidate must keep."""
        given = self.bounds.given if isinstance(self.bounds, Bounds) else dict(self.bounds or {})
        return bounds_in(TUNING_BOUNDS.given | given)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of candidates to try."""
        wanted = self.include or KINDS
        return tuple(name for name in KINDS if name in wanted and name not in self.exclude)
