"""The request of `sweep`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

from trtopt.options import Option, Output, parse_names
from trtopt.recipe import GRAPH_PRECISIONS, Recipe
from trtopt.requests.parsing import parse_lengths_of_axis, parse_streams
from trtopt.requests.recipe import SweptOptions, recipe_of
from trtopt.requests.shared import (
    DURATION,
    WARMUP,
    Backend,
    Batch,
    CacheDir,
    Contract,
    Data,
    Duration,
    OnnxFile,
    SweptTerms,
    Timeout,
    Warmup,
    neighbour_names,
    samples,
)


@dataclass(frozen=True)
class SweepRequest(SweptOptions):
    """What to build and measure at every combination."""

    model: OnnxFile
    output: Annotated[
        str | Path | None,
        Output(
            "The sweep's folder, new or to continue [default: MODEL.sweep]; of several models, the folder "
            "for "
            "their folders [default: the current one].",
            "folder",
            python="the sweep's folder [default: the model's name with `.sweep`, in the current folder].",
        ),
    ] = None
    _: KW_ONLY
    batch: Annotated[Batch, "Batch sizes, one engine each [default: 1,2,4,8,16,32]."] = None
    precision: Annotated[
        str | Sequence[str] | None,
        Option(
            f"{', '.join(GRAPH_PRECISIONS)} [default: the graph's].",
            python=f"what is written into the graph, one after the other: {', '.join(GRAPH_PRECISIONS)}, "
            "without "
            "the verdict of `build` [default: the recipe's, or the graph's own].",
            metavar="NAME,NAME,…",
            parse=parse_names,
            names=lambda: GRAPH_PRECISIONS,
        ),
    ] = None
    streams: Annotated[
        int | Sequence[int], Option("Stream counts [default: 1].", metavar="N,N,…", parse=parse_streams)
    ] = (1,)
    axes: Annotated[
        Mapping[str, Sequence[int]] | None,
        Option(
            "Lengths of another dynamic axis, by its name in the model or as INPUT.INDEX.",
            flag="--axis",
            metavar="NAME=N,N,…",
            parse=parse_lengths_of_axis,
            aliases=("--shapes",),
        ),
    ] = None
    neighbours: Annotated[
        Sequence[str],
        Option(
            "Try the nearest powers of two and multiples of 8 and 32 around each size too.",
            python="`pow2`, `8`, `32`: also the powers of two and multiples next to each size and length.",
            metavar="pow2,8,32",
            parse=parse_names,
            names=neighbour_names,
        ),
    ] = ()
    adaptive: Annotated[
        bool, Option("Measure more batch sizes between those given where the curve bends.")
    ] = False
    backend: Annotated[
        Backend, "Backend to build and measure with [default: auto, the CPU if there is no GPU]."
    ] = None
    contract: Contract = None
    terms: SweptTerms = None
    cache_dir: CacheDir = None
    duration: Duration = DURATION
    warmup: Warmup = WARMUP
    data: Annotated[
        Data,
        samples("Inputs to measure with, and for precisions that need data [default: seeded random ones]"),
    ] = None
    timeout: Timeout = None
    calib: str | Path | None = None
    """Other data for precisions that need some, under the name that it once had."""

    @cached_property
    def recipe(self) -> Recipe:
        """What all engines share."""
        return recipe_of(self, calib=self.calib or self.data, batch=None, precision=None, axes=None)

    @property
    def precisions(self) -> tuple[str, ...]:
        """Those that are swept."""
        return (self.precision,) if isinstance(self.precision, str) else tuple(self.precision or ())
