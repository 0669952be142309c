"""The options of a recipe, and the one validated recipe that a request and its profile make."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, SupportsIndex

import msgspec

from trtopt.builder_settings import BuilderSettings, SweptSettings
from trtopt.errors import UsageError
from trtopt.options import Option, check_values, choices_of, declared_in, field_of
from trtopt.precision.placement.forms import CHOICES, parse_forms
from trtopt.recipe import (
    LOCAL,
    MAX_AXIS,
    RAY,
    SELECTION_BUDGET,
    Precision,
    Recipe,
    Rewriting,
    io_request,
    load_profile,
)
from trtopt.requests import shared

_RAY_CLIENT = re.compile(r"ray://[^/\s]+:\d+")
_FORMS = "; ".join(f"{name}={'|'.join(choices)}" for name, choices in CHOICES.items())
Forms = Annotated[
    str | None,
    Option(
        f"The form of an INT8 graph, such as residual=both,attention=on: {_FORMS}.", metavar="FORM=CHOICE,…"
    ),
]


@dataclass(frozen=True, kw_only=True)
class SweptOptions(SweptSettings, shared.JobOptions, shared.TensorOptions):
    """The fields of a recipe that a sweep has too; None is not given."""

    shapes: shared.Shapes = None
    profile: shared.Profile = None
    build_timeout: Annotated[
        shared.Timeout, "Seconds that the build of one engine may take [default: no limit]."
    ] = None
    jobs: Annotated[
        int | None,
        Option(
            "Engines built at once, 1 to 256, on GPUs of one model in turn; above 1 a sweep builds first, "
            "and measures with nothing else at work [default: 1].",
            metavar="N",
            range=(1, 256),
        ),
    ] = None
    timing_cache: Annotated[
        str | Path | None,
        Option(
            "Timing cache to read, extend and save; none: start empty [default: the store].",
            metavar="FILE|none",
            names=lambda: ("none",),
            is_path=True,
        ),
    ] = None
    forms: Forms = None
    exclude: Annotated[
        Sequence[str] | None,
        Option("Nodes (with * and ?) or operators not to quantise.", metavar="PATTERN"),
    ] = None
    rewrite: Annotated[
        Rewriting | None,
        Option(
            "Rewrite rules to apply first: default (those with evidence for this TensorRT), all, or none."
        ),
    ] = None
    add_rule: Annotated[
        Sequence[str] | None,
        Option("Rewrite rule to apply too, of those that are off (trtopt rewrite --list).", metavar="NAME"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class RecipeOptions(SweptOptions, BuilderSettings):
    """The fields of a recipe that have an option of their own; None is not given."""

    dynamic: Annotated[bool | None, Option("One engine for all batch sizes.")] = None
    axes: shared.Axes = None
    precision: Annotated[
        Precision | None,
        Option(
            "Write this precision into the graph before building; best: the fastest one measured "
            "[default: the graph's]."
        ),
    ] = None
    fused_plugins: Annotated[
        bool | None,
        Option(
            "Measure encoder layers as INT8 plugins of TensorRT 8.6 too, with --precision int8 or best: "
            "sequences of full length, without a mask."
        ),
    ] = None


SelectionBudget = Annotated[
    int | None,
    Option(
        "Quantised engines to build for each batch size at most, in forms that may be faster "
        f"[default: {SELECTION_BUDGET}].",
        metavar="N",
        range=(1, 100),
    ),
]
_OF_A_RECIPE = (
    *(one for one in declared_in(RecipeOptions) if one.name in Recipe.__struct_fields__),
    field_of("selection_budget", SelectionBudget, None),
)


def recipe_of(request: shared.Request, **changed: object) -> Recipe:
    """The recipe that a request makes, some fields `changed`: the profile's, overridden by what is given."""
    given = {name: getattr(request, name, None) for name in Recipe.__struct_fields__}
    return make_recipe(getattr(request, "profile", None), given | changed)


def make_recipe(profile: str | None, flags: Mapping[str, object]) -> Recipe:
    """One validated recipe: the profile's values, overridden by every flag that is not None."""
    values: dict[str, object] = load_profile(profile) if profile else {}
    given = {key: value for key, value in flags.items() if value is not None}
    if isinstance(size := given.get("batch"), SupportsIndex):  # one may stand for itself
        given["batch"] = [size]
    _check_inert(str(profile), {key: value for key, value in values.items() if key not in given})
    if given.keys() & {"batch", "ranges"}:  # one of them overrides the other as well
        values = {key: value for key, value in values.items() if key not in ("batch", "ranges")}
    values |= given
    if isinstance(axes := values.get("axes"), Mapping):  # one length may stand for itself
        values["axes"] = {
            name: [size] if isinstance(size, SupportsIndex) else size for name, size in axes.items()
        }
    values = {key: _plain(value) for key, value in values.items()}
    try:
        recipe = msgspec.convert(values, Recipe)
    except msgspec.ValidationError as error:
        raise _refusal(profile, values, str(error)) from None
    check_recipe(recipe)
    return recipe


def _plain(value: object) -> object:
    """A value as TOML has it: paths as text, NumPy's integers as Python's."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(one) for one in value]
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        return operator.index(value)
    return str(value) if isinstance(value, Path) else value


def _refusal(profile: str | None, values: Mapping[str, object], reason: str) -> UsageError:
    """The error of a value that a recipe cannot have; of one out of a closed set, what it can be."""
    key = reason.rpartition("`$.")[2].strip("`")
    choices = [word for one in _OF_A_RECIPE if one.name == key for word in choices_of(one)]
    if reason.startswith("Invalid enum value") and choices:
        written = (
            f"--{key.replace('_', '-')} {values[key]}"
            if profile is None
            else f"{profile}: {key} = {values[key]!r}"
        )
        return UsageError(f"{written}: no such choice", f"choose among {', '.join(choices)}")
    return UsageError(
        f"{profile or 'recipe'}: {reason}", f"known keys: {', '.join(Recipe.__struct_fields__)}"
    )


def _check_inert(profile: str, values: Mapping[str, object]) -> None:
    """A profile may come from anybody: only options load code, and send models to other hosts."""
    if "executor" in values:
        raise UsageError(
            f"{profile}: executor = {values['executor']!r}: no profile sends models to other hosts",
            f"give --executor {values['executor']}, if you trust that cluster",
        )
    if "plugins" in values:
        raise UsageError(
            f"{profile}: plugins are native code, which a recipe cannot load", "give --plugin LIB.so"
        )
    calib = values.get("calib")
    if isinstance(calib, str) and not Path(calib).exists():
        raise UsageError(
            f"{profile}: calib = {calib!r} is not a file, and a recipe cannot run functions",
            f"give --data {calib}, if it is a function and you trust it",
        )


def check_recipe(recipe: Recipe) -> None:
    """Judge values that no model is needed for."""
    check_values(recipe, _OF_A_RECIPE)
    io_request(recipe)
    parse_forms(recipe.forms or "")
    _check_executor(recipe)
    for sizes in (*(() if recipe.batch is None else (recipe.batch,)), *recipe.ranges):
        if not all(1 <= size <= MAX_AXIS for size in sizes or (0,)):
            raise UsageError(
                f"batch = {list(sizes)}: batch sizes are whole numbers from 1 on", "write [1, 8, 32]"
            )
    for name, lengths in recipe.axes.items():
        is_range = len(lengths) in (1, 3) and list(lengths) == sorted(lengths)
        if not is_range or not 1 <= lengths[0] <= lengths[-1] <= MAX_AXIS:
            raise UsageError(
                f"--axis {name}: {','.join(map(str, lengths))}: not one length from 1 on, nor a smallest, "
                "a tuned and a largest one",
                f"write, say, --axis {name}=1,128,512; several lengths are measured by trtopt sweep",
            )
    if recipe.ranges and (recipe.batch is not None or not recipe.dynamic):
        raise UsageError(
            "ranges of batch sizes are optimisation profiles of a dynamic engine, instead of batch sizes",
            "add --dynamic, or write all sizes after one --batch for one engine each",
        )


def _check_executor(recipe: Recipe) -> None:
    if recipe.executor not in (LOCAL, RAY) and _RAY_CLIENT.fullmatch(recipe.executor) is None:
        raise UsageError(
            f"--executor {recipe.executor}: no such executor", f"write {LOCAL}, {RAY} or ray://HOST:PORT"
        )
    if recipe.executor == LOCAL and recipe.gpu_model is not None:
        raise UsageError(
            f"--gpu-model {recipe.gpu_model}: jobs run on this host", "add --executor ray, or omit it"
        )


def sizes_in(shapes: Mapping[str, str] | None, axes: Mapping[str, int | Sequence[int]] | None) -> Recipe:
    """Shapes of inputs and lengths of axes, as a recipe that gives nothing else."""
    return make_recipe(None, {"shapes": shapes, "axes": axes})


# ── what engines run on ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class RunOptions(shared.Request):
    """Which sizes engines run at, for how long, and which native code they may load."""

    shapes: shared.Shapes = None
    axes: shared.Axes = None
    timeout: shared.Timeout = None
    trust: shared.Trust = ()

    @property
    def sizes(self) -> Recipe:
        """The shapes and axes, as a recipe that gives nothing else."""
        return sizes_in(self.shapes, self.axes)
