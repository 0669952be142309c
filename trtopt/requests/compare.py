"""The request of `compare`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from trtopt.measure.statistics.comparison import THRESHOLD
from trtopt.options import Argument, Group, Option, declared_in
from trtopt.recipe import Recipe
from trtopt.requests.build import BuildRequest
from trtopt.requests.parsing import parse_share
from trtopt.requests.recipe import RecipeOptions
from trtopt.requests.shared import (
    Backend,
    Batch,
    Contract,
    Data,
    Request,
    TermsOptions,
    Timeout,
    Trust,
    contract_names,
    samples,
)

_DECIDED_HERE = ("jobs", "timing_cache", "reproducible", "listener")
_RECIPE = {one.name: one.declaration for one in declared_in(RecipeOptions) if one.name not in _DECIDED_HERE}
"""The options of a recipe, but for what a comparison of builds decides itself."""
_OF_BUILD = {
    one.name: one.declaration
    for one in declared_in(BuildRequest)
    if one.name in Recipe.__struct_fields__ and isinstance(one.declaration, Option)
}
"""Those of a build, all of which a `Recipe` in Python can have."""


@dataclass(frozen=True)
class CompareRequest(Request):
    """What to compare, and how."""

    a: Annotated[
        str | Path,
        Argument(
            "a result file (trtopt's or trtexec's), a build folder, an engine, or an ONNX file with `builds`."
        ),
    ]
    b: Annotated[
        str | Path | None,
        Argument("the same; not needed with `control`, `builds` or `across_contracts`."),
    ] = None
    _: KW_ONLY
    threshold: Annotated[
        float,
        Option(
            "The smallest difference that matters [default: 1%].",
            python="the smallest difference that matters, as a share between 0 and 1 [default: 0.01].",
            metavar="PERCENT",
            parse=partial(parse_share, "--threshold"),
        ),
    ] = THRESHOLD
    fail_on: Annotated[
        float | None,
        Option(
            "Exit with 5 unless a slowdown of so much is ruled out [default: 5% between result files, 2% in "
            "turns].",
            python="the slowdown that must be ruled out, as a share [default: 0.05 between result files, "
            "0.02 in "
            "turns]; `outcome.not_shown` has the batch sizes where it is not.",
            metavar="PERCENT",
            parse=partial(parse_share, "--fail-on"),
        ),
    ] = None
    force: Annotated[bool, Option("Compare although machines, models, input shapes or outputs differ.")] = (
        False
    )
    batch: Annotated[Batch, "Batch sizes [default: those of both sides]."] = None
    backend: Backend = None
    contract: Contract = None
    terms: TermsOptions = None
    duration: Annotated[
        float | None,
        Option(
            "Seconds of sampling for each of A and B per batch size, up to a day [default: 3.0].", metavar="S"
        ),
    ] = None
    data: Annotated[
        Data,
        samples("Inputs to measure with, and for the --precision of --builds [default: seeded random ones]"),
    ] = None
    timeout: Timeout = None
    trust: Trust = ()
    control: Annotated[int | None, Option("Measure A against itself K times.", metavar="K")] = None
    builds: Annotated[int | None, Option("Build each model K times: compare recipes.", metavar="K")] = None
    across_contracts: Annotated[
        str | None,
        Option(
            "Explain the difference of two contracts; between result files without a value, as last option.",
            python='two contracts (`trtexec-10,trtexec-11`), or `""` between result files: explain the '
            "difference.",
            metavar="[C1,C2]",
            bare="",
        ),
    ] = None
    assume_contract: Annotated[
        str | None,
        Option(
            "The contract that trtexec's exported times were taken under.",
            metavar="NAME",
            names=contract_names,
        ),
    ] = None
    recipe: Annotated[
        Recipe | None,
        Group(
            "with `builds` of ONNX files: how they are built; of engines: the shapes and axes to measure at "
            "[default: `Recipe()`].",
            BuildRequest,
            _RECIPE,
            "recipe=Recipe({key}={value})",
            in_python=_OF_BUILD,
        ),
    ] = None
