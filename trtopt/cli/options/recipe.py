"""Build options shared by several commands."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

_OPTIONS = {
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
    "opt_level": click.option("--opt-level", type=int, help="Builder optimisation level, 0 to 5."),
    "workspace_mib": click.option(
        "--workspace",
        "workspace_mib",
        type=int,
        metavar="MIB",
        help="Limit of the builder's scratch memory.",
    ),
    "tactic_sources": click.option("--tactic-sources", metavar="NAME,NAME,…", help="Allowed tactic sources."),
    "compute_capability": click.option(
        "--compute-capability", metavar="CC,CC,…", help="GPUs to build for, such as 8.9 (TensorRT-RTX)."
    ),
    "plugins": click.option(
        "--plugin", "plugins", multiple=True, metavar="LIB.so", help="Plugin library to load: native code."
    ),
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
    "rewrite": click.option(
        "--rewrite/--no-rewrite",
        default=None,
        help="Rewrite the graph first so that it fuses better [default: yes].",
    ),
}
"""By click's parameter names."""


def recipe_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add them all. The command receives `recipe`, the given fields of `recipe.Recipe`, and `profile`.

    Raises:
        UsageError: an input given twice, or an invalid shape.
    """
    return recipe_options_but()(command)


def recipe_options_but(*left_out: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`recipe_options` except some, by parameter name."""
    taken = {name: option for name, option in _OPTIONS.items() if name not in left_out}

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_recipe(**arguments: Any) -> Any:
            given = {name: arguments.pop(name) for name in taken}
            return command(**arguments, recipe=_as_fields(given))

        for option in reversed(taken.values()):
            with_recipe = option(with_recipe)
        return with_recipe

    return decorate


def _as_fields(given: dict[str, Any]) -> dict[str, Any]:
    fields = {
        **given,
        "tactic_sources": _names(given.get("tactic_sources")),
        "compute_capability": _names(given.get("compute_capability")),
        "plugins": given["plugins"] or None,
        "shapes": _by_name(given["shapes"]),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _names(text: str | None) -> tuple[str, ...] | None:
    return tuple(part.strip() for part in text.split(",")) if text is not None else None


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
