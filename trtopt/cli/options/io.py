"""`--io`, `--normalize` and `--preprocess`: types, layouts and normalisation of inputs and outputs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from trtopt.errors import UsageError
from trtopt.records.tensors import PREPROCESSING, read_io_request, split_io, split_normalize


def _by_name(
    _context: click.Context, option: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str] | None:
    """Each text by the tensor that it names; None without any.

    Raises:
        UsageError: not of the option's form, or a tensor twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, rest = split_io(text) if option.name == "io" else split_normalize(text)
        if name in found:
            raise UsageError(f"--{option.name} {name}: is given twice", "give each tensor once")
        found[name] = rest
    return found or None


IO_OPTIONS: dict[str, Callable[[Callable[..., None]], Callable[..., None]]] = {
    "io": click.option(
        "--io",
        multiple=True,
        metavar="NAME=TYPE[:LAYOUT]",
        callback=_by_name,
        help="Give an input or output another type (fp32, fp16, bf16, int8, uint8) and layout (nchw, nhwc; "
        "in engines also chw2, chw4, chw16, chw32, hwc8, hwc16).",
    ),
    "normalize": click.option(
        "--normalize",
        multiple=True,
        metavar="NAME:mean=…:std=…",
        callback=_by_name,
        help="Compute (x - mean) / std of an input in the graph, per channel, in the new input's units.",
    ),
    "preprocess": click.option(
        "--preprocess",
        type=click.Choice(list(PREPROCESSING)),
        help="Normalise the image input in the graph with these means and deviations.",
    ),
}
"""By click's parameter names; the commands that take recipes get their values as fields of one."""


def io_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add all of them to a command that takes no recipe. It gets `io`, an `IoRequest`."""

    @functools.wraps(command)
    def with_io(
        io: dict[str, str] | None,
        normalize: dict[str, str] | None,
        preprocess: str | None,
        **arguments: Any,
    ) -> None:
        command(**arguments, io=read_io_request(io or {}, normalize or {}, preprocess))

    decorated: Callable[..., None] = with_io
    for option in reversed(IO_OPTIONS.values()):
        decorated = option(decorated)
    return decorated
