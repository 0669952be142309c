"""Build options shared by several commands."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtopt.settings import SETTINGS, BuilderSetting

if TYPE_CHECKING:
    from trtopt.recipe import Recipe


Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def option_for(setting: BuilderSetting) -> Decorator:
    """The option of a builder setting; the command gets None where it is not given."""
    kinds: dict[str, dict[str, Any]] = {
        "number": {"type": int},
        "names": {"callback": _names},
        "libraries": {"multiple": True, "callback": lambda context, option, paths: paths or None},
        "switch": {"is_flag": True, "default": None},
    }
    kind = kinds[setting.takes]
    return click.option(setting.flag, setting.name, metavar=setting.metavar, help=setting.help, **kind)


def _names(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    return tuple(part.strip() for part in text.split(",")) if text is not None else None


_OPTIONS: dict[str, Decorator] = {
    "dynamic": click.option(
        "--dynamic", is_flag=True, default=None, help="One engine for --batch MIN,OPT,MAX instead."
    ),
    "shapes": click.option(
        "--shape",
        "shapes",
        multiple=True,
        metavar="NAME:MIN,OPT,MAX",
        help="Shapes of an input with dynamic axes besides the batch: ids:Nx1,Nx128,Nx512 (N is the batch).",
    ),
    "profile": click.option(
        "--profile",
        metavar="NAME|FILE",
        help="A recipe: a shipped profile or a TOML file; flags override it.",
    ),
    **{setting.name: option_for(setting) for setting in SETTINGS},
    "precision": click.option(
        "--precision",
        type=click.Choice(["fp32", "fp16", "bf16", "int8", "fp8", "int4", "best"]),
        help="Write this precision into the graph before building; best: the fastest one measured "
        "[default: the graph's].",
    ),
    "calib": click.option(
        "--calib",
        metavar="DATA",
        help="Real inputs for --precision: they decide what stays FP32, and the scales.",
    ),
    "build_timeout": click.option(
        "--build-timeout", type=float, metavar="S", help="Time limit for building one engine."
    ),
    "jobs": click.option(
        "--jobs",
        type=int,
        metavar="N",
        help="Engines built concurrently, on GPUs of the same model in turn [default: 1].",
    ),
    "timing_cache": click.option(
        "--timing-cache",
        metavar="FILE|none",
        help="Timing cache to read, extend and save; none: begin with nothing [default: the store].",
    ),
    "rewrite": click.option(
        "--rewrite/--no-rewrite",
        default=None,
        help="Rewrite the graph first so that it fuses better [default: yes].",
    ),
}
"""By click's parameter names."""


cache_dir_option = click.option(
    "--cache-dir",
    type=click.Path(path_type=Path),
    help="The store of timing caches [default: $TRTOPT_CACHE_DIR, else ~/.cache/trtopt].",
)


@dataclass(frozen=True)
class RecipeFlags:
    """What the command line gave: a profile, and fields of `trtopt.recipe.Recipe` that override it."""

    profile: str | None
    fields: Mapping[str, object]

    def recipe(self, more: Mapping[str, object] | None = None) -> Recipe:
        """The recipe that comes of it, with `more` fields; those that are None were not given.

        Raises:
            UsageError: see `trtopt.recipe.make_recipe`.
        """
        from trtopt.recipe import make_recipe

        return make_recipe(self.profile, {**self.fields, **(more or {})})


def recipe_options(*left_out: str) -> Decorator:
    """Add all of them but some, by the names of their values. The command gets `recipe`, a `RecipeFlags`."""
    taken = {name: option for name, option in _OPTIONS.items() if name not in left_out}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_recipe(profile: str | None, **arguments: object) -> None:
            given: dict[str, Any] = {name: arguments.pop(name) for name in taken if name != "profile"}
            command(**arguments, recipe=RecipeFlags(profile, given | {"shapes": _by_name(given["shapes"])}))

        decorated: Callable[..., None] = with_recipe
        for option in reversed(taken.values()):
            decorated = option(decorated)
        return decorated

    return decorate


def _by_name(flags: tuple[str, ...]) -> dict[str, str] | None:
    """`NAME:SHAPES` flags as the recipe stores them, which validates each."""
    from trtopt.errors import UsageError
    from trtopt.recipe import parse_shape_flag

    by_name: dict[str, str] = {}
    for flag in flags:
        name, _ = parse_shape_flag(flag)
        if name in by_name:
            raise UsageError(f"--shape {name}: given twice", "give each input one --shape")
        by_name[name] = flag[len(name) + 1 :]
    return by_name or None
