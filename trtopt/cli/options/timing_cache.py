"""Options that select the timing caches of a build."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

_OPTIONS = (
    click.option(
        "--timing-cache",
        metavar="FILE|none",
        help="Timing cache to read, extend and save; none: start empty [default: the store].",
    ),
    click.option(
        "--cache-dir",
        type=click.Path(path_type=Path),
        help="The store of timing caches [default: $TRTOPT_CACHE_DIR, else ~/.cache/trtopt].",
    ),
    click.option(
        "--reproducible",
        is_flag=True,
        default=None,
        help="Fail if the timing cache lacks a timing (TensorRT 10.8 and newer).",
    ),
)
_NAMES = ("timing_cache", "cache_dir", "reproducible")


def cache_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add them all; the command receives `caches`: arguments of `trtopt.build`."""

    @functools.wraps(command)
    def with_caches(**arguments: Any) -> Any:
        caches = {name: arguments.pop(name) for name in _NAMES}
        return command(**arguments, caches=caches)

    for option in reversed(_OPTIONS):
        with_caches = option(with_caches)
    return with_caches
