"""Build options shared by several commands."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from trtopt.builder_settings import SETTINGS, BuilderSetting
from trtopt.cli.options.aliases import OptionWithAliases
from trtopt.cli.options.completion import files, names_or_files, recipe_names
from trtopt.cli.options.io import IO_OPTIONS
from trtopt.cli.options.shapes import axis_option, shape_option
from trtopt.recipe import LOCAL, PRECISIONS, RAY, REWRITINGS, Recipe, make_recipe
from trtopt.records.precision import CHOICES

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def option_for(setting: BuilderSetting) -> Decorator:
    """The option of a builder setting; the command gets None where it is not given."""
    kinds: dict[str, dict[str, Any]] = {
        "number": {"type": int, "metavar": "N"},
        "names": {"callback": _names},
        "choice": {"type": click.Choice(setting.choices)},
        "text": {},
        "libraries": {
            "multiple": True,
            "shell_complete": files,
            "callback": lambda context, option, paths: paths or None,
        },
        "switch": {"is_flag": True, "default": None},
    }
    kind = kinds[setting.takes]
    metavar = {"metavar": setting.metavar} if setting.metavar else {}
    return click.option(setting.flag, setting.name, help=setting.help, **(kind | metavar))


def _names(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    return tuple(part.strip() for part in text.split(",")) if text is not None else None


def recipe_option(text: str) -> Decorator:
    """`--recipe`, which was called `--profile`; the command gets `profile`."""
    return click.option(
        "--recipe",
        "profile",
        metavar="NAME|FILE",
        cls=OptionWithAliases,
        aliases=("--profile",),
        shell_complete=names_or_files(recipe_names),
        help=text,
    )


forms_option = click.option(
    "--forms",
    metavar="FORM=CHOICE,…",
    help="The form of an INT8 graph, such as residual=both,attention=on: "
    + "; ".join(f"{name}={'|'.join(choices)}" for name, choices in CHOICES.items())
    + ".",
)

exclude_option = click.option(
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    callback=lambda context, option, texts: texts or None,
    help="Nodes (with * and ?) or operators not to quantise.",
)

_OPTIONS: dict[str, Decorator] = {
    "dynamic": click.option(
        "--dynamic", is_flag=True, default=None, help="One engine for --batch MIN,OPT,MAX instead."
    ),
    "shapes": shape_option,
    "axes": axis_option,
    "profile": recipe_option("A shipped recipe or a TOML file; flags override it."),
    **{setting.name: option_for(setting) for setting in SETTINGS},
    "precision": click.option(
        "--precision",
        type=click.Choice(PRECISIONS),
        help="Write this precision into the graph before building; best: the fastest one measured "
        "[default: the graph's].",
    ),
    "build_timeout": click.option(
        "--build-timeout",
        type=float,
        metavar="S",
        help="Seconds that the build of one engine may take [default: no limit].",
    ),
    "jobs": click.option(
        "--jobs",
        type=int,
        metavar="N",
        help="Engines built concurrently, on GPUs of the same model in turn [default: 1].",
    ),
    "executor": click.option(
        "--executor",
        metavar="local|ray|ray://HOST:PORT",
        shell_complete=names_or_files(lambda: (LOCAL, RAY)),
        help="Where jobs run: here, or on a Ray cluster: that of $RAY_ADDRESS, or the one at an address "
        "[default: local].",
    ),
    "gpu_model": click.option(
        "--gpu-model", metavar="NAME", help="GPUs of the cluster to use [default: the first node's]."
    ),
    "retries": click.option(
        "--retries",
        type=int,
        metavar="N",
        help="How often a job is tried again whose node was lost [default: 2].",
    ),
    "timing_cache": click.option(
        "--timing-cache",
        metavar="FILE|none",
        shell_complete=names_or_files(lambda: ("none",)),
        help="Timing cache to read, extend and save; none: start empty [default: the store].",
    ),
    "forms": forms_option,
    "exclude": exclude_option,
    "rewrite": click.option(
        "--rewrite",
        type=click.Choice(REWRITINGS),
        help="Rewrite rules to apply first: default (those with evidence for this TensorRT), all, or none.",
    ),
    "add_rule": click.option(
        "--add-rule",
        multiple=True,
        metavar="NAME",
        callback=lambda context, option, texts: texts or None,
        help="Rewrite rule to apply too, of those that are off (trtopt rewrite --list).",
    ),
    **IO_OPTIONS,
    "split": click.option(
        "--split",
        multiple=True,
        metavar="TENSOR[=LAYOUT][,…]:PARTS",
        callback=lambda context, option, texts: texts or None,
        help="Cut the graph at a tensor and run what is before it on parts of the batch: a chain of engines.",
    ),
}
"""By click's parameter names."""


def executor_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--executor`, `--gpu-model` and `--retries`."""
    return _OPTIONS["executor"](_OPTIONS["gpu_model"](_OPTIONS["retries"](command)))


cache_dir_option = click.option(
    "--cache-dir",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
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
        return make_recipe(self.profile, {**self.fields, **(more or {})})

    def calibrated_on(self, data: str | None) -> Recipe:
        """The recipe with data for its precision, if it writes one.

        Raises:
            UsageError: see `recipe`.
        """
        plain = self.recipe()
        return plain if plain.precision is None or data is None else self.recipe({"calib": data})


def recipe_options(*left_out: str) -> Decorator:
    """Add all of them but some, by the names of their values. The command gets `recipe`, a `RecipeFlags`."""
    taken = {name: option for name, option in _OPTIONS.items() if name not in left_out}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_recipe(profile: str | None, **arguments: object) -> None:
            given = {name: arguments.pop(name) for name in taken if name != "profile"}
            command(**arguments, recipe=RecipeFlags(profile, given))

        decorated: Callable[..., None] = with_recipe
        for option in reversed(taken.values()):
            decorated = option(decorated)
        return decorated

    return decorate
