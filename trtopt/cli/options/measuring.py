"""Options shared by all commands that measure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from trtopt.cli.options.completion import files
from trtopt.cli.options.data import data_option
from trtopt.measure.contracts import DURATION_S, WARMUP_S
from trtopt.targets import BACKENDS


def backend_choice(text: str, *, default: str | None = None) -> Callable[[Callable[..., Any]], Any]:
    """`--backend`, for a purpose."""
    return click.option("--backend", type=click.Choice(["auto", *BACKENDS]), default=default, help=text)


backend_option = backend_choice(
    "Backend to run with [default: auto, the engines' own, or the CPU if there is no GPU]."
)
duration_option = click.option(
    "--duration",
    type=float,
    default=DURATION_S,
    show_default=True,
    metavar="S",
    help="Seconds of sampling per pass.",
)
warmup_option = click.option(
    "--warmup",
    type=float,
    default=WARMUP_S,
    show_default=True,
    metavar="S",
    help="Seconds of warm-up before samples count.",
)

timeout_option = click.option(
    "--timeout",
    type=float,
    metavar="S",
    help="Seconds that the measurement of one batch size may take [default: no limit].",
)
trust_option = click.option(
    "--trust",
    multiple=True,
    metavar="ENGINE|LIB.so",
    shell_complete=files,
    help="Load an engine without a manifest, or a plugin that engines need: native code.",
)
nvtx_option = click.option("--nvtx", is_flag=True, help="Mark the phases with NVTX ranges, for profilers.")
inputs_option = data_option("Inputs to measure with [default: seeded random ones]", aliases=("--input",))
