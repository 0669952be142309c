"""The options that make a recipe: what to build and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from trtopt.builder_settings import BuilderSettings, SweptSettings
from trtopt.options import Option
from trtopt.recipe import Precision, Recipe, Rewriting, make_recipe
from trtopt.records.precision import CHOICES
from trtopt.requests.shared import (
    Axes,
    Executor,
    GpuModel,
    Io,
    Normalize,
    Preprocess,
    Profile,
    Request,
    Retries,
    Shapes,
)

_FORMS = "; ".join(f"{name}={'|'.join(choices)}" for name, choices in CHOICES.items())
Forms = Annotated[
    str | None,
    Option(
        f"The form of an INT8 graph, such as residual=both,attention=on: {_FORMS}.", metavar="FORM=CHOICE,…"
    ),
]
Excluded = Annotated[
    Sequence[str] | None,
    Option("Nodes (with * and ?) or operators not to quantise.", metavar="PATTERN"),
]


@dataclass(frozen=True, kw_only=True)
class SweptOptions(SweptSettings, Request):
    """The fields of a recipe that a sweep has too; None is not given."""

    shapes: Shapes = None
    profile: Profile = None
    build_timeout: Annotated[
        float | None,
        Option("Seconds that the build of one engine may take [default: no limit].", metavar="S"),
    ] = None
    jobs: Annotated[
        int | None,
        Option(
            "Engines built concurrently, on GPUs of the same model in turn [default: 1].",
            python="engines built at once, 1 to 256, on the GPUs of one model in turn; above 1 a sweep "
            "builds all "
            "that are known beforehand first, and measures with nothing else at work [default: 1].",
            metavar="N",
        ),
    ] = None
    executor: Executor = None
    gpu_model: GpuModel = None
    retries: Retries = None
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
    exclude: Excluded = None
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
    io: Io = None
    normalize: Normalize = None
    preprocess: Preprocess = None


@dataclass(frozen=True, kw_only=True)
class RecipeOptions(SweptOptions, BuilderSettings):
    """The fields of a recipe that have an option of their own; None is not given."""

    dynamic: Annotated[
        bool | None,
        Option(
            "One engine for --batch MIN,OPT,MAX instead.",
            python="one engine for all batch sizes [default: no].",
        ),
    ] = None
    axes: Axes = None
    precision: Annotated[
        Precision | None,
        Option(
            "Write this precision into the graph before building; best: the fastest one measured "
            "[default: the graph's]."
        ),
    ] = None


def recipe_of(request: Request, **changed: object) -> Recipe:
    """The recipe that a request makes, some fields `changed`: the profile's, overridden by what is given."""
    given = {name: getattr(request, name, None) for name in Recipe.__struct_fields__}
    return make_recipe(getattr(request, "profile", None), given | changed)
