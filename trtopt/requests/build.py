"""The request of `build`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

from trtopt.options import Option, Output
from trtopt.precision.bounds import Bounds
from trtopt.recipe import Recipe
from trtopt.requests.parsing import parse_range
from trtopt.requests.recipe import RecipeOptions, recipe_of
from trtopt.requests.shared import (
    Backend,
    BoundsOptions,
    CacheDir,
    Force,
    Nvtx,
    OnnxFile,
    samples,
)


@dataclass(frozen=True)
class BuildRequest(RecipeOptions):
    """What to build, and how."""

    model: OnnxFile
    output: Annotated[
        str | Path | None,
        Output(
            "Build folder to create [default: MODEL.trtopt].",
            "folder",
            python="the folder to create [default: the model's name with `.trtopt`, in the current folder]. "
            "A "
            "build of the same model is replaced once the new one is complete.",
        ),
    ] = None
    _: KW_ONLY
    batch: Annotated[
        int | Sequence[int] | None,
        Option(
            "Batch sizes, one engine each [default: 1]. With --dynamic its MIN,OPT,MAX; several --batch give "
            "it several optimisation profiles.",
            python="batch sizes, one engine each, from 1 [default: what the model fixes, else 1]; with "
            "`dynamic` "
            "the smallest, the one to tune for and the largest.",
            metavar="N,N,…",
            parse=parse_range,
            is_repeated=True,
        ),
    ] = None
    ranges: Annotated[
        Sequence[Sequence[int]] | None,
        Option("with `dynamic`, in place of `batch`: such a range for each optimisation profile.", flag=None),
    ] = None
    backend: Annotated[Backend, "What to build with [default: auto: TensorRT-RTX if there is no GPU]."] = None
    data: Annotated[
        str | Path | None,
        Option(
            samples("Real inputs for --precision, which decide what stays FP32, and the scales"),
            metavar="DATA",
            is_path=True,
            aliases=("--calib",),
        ),
    ] = None
    selection_budget: Annotated[
        int | None,
        Option(
            "Quantised engines to build for each batch size at most, in forms that may be faster [default: "
            "3].",
            metavar="N",
        ),
    ] = None
    verdict: Annotated[
        bool | None,
        Option(
            "Measure int8, fp8 and int4 against FP16, and use FP16 where they are slower [default: yes].",
            flag="--verdict/--no-verdict",
        ),
    ] = None
    bounds: BoundsOptions = None
    cache_dir: CacheDir = None
    nvtx: Nvtx = False
    memory: Annotated[
        bool,
        Option(
            "Trace the builder's allocations of device memory.",
            python="record the builder's allocations of device memory, in a file next to each engine; "
            "slower.",
        ),
    ] = False
    force: Force = False

    @cached_property
    def recipe(self) -> Recipe:
        """What to build as one validated recipe."""
        bounds = self.bounds.given if isinstance(self.bounds, Bounds) else self.bounds
        return recipe_of(self, calib=self.data, bounds=bounds or None)
