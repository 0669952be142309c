"""Options shared by all commands that measure."""

from __future__ import annotations

import click

backend_option = click.option(
    "--backend",
    metavar="auto|tensorrt|tensorrt-rtx|onnxruntime",
    help="Backend to run with [default: the engines' backend; auto: the CPU if there is no GPU].",
)
duration_option = click.option(
    "--duration",
    type=float,
    default=3.0,
    show_default=True,
    metavar="S",
    help="Seconds of sampling per pass.",
)
warmup_option = click.option(
    "--warmup",
    type=float,
    default=0.2,
    show_default=True,
    metavar="S",
    help="Seconds of warm-up before samples count.",
)
timeout_option = click.option(
    "--timeout", type=float, metavar="S", help="Time limit for the measurement of one batch size."
)
trust_option = click.option(
    "--trust",
    multiple=True,
    metavar="ENGINE|LIB.so",
    help="Load an engine without a manifest, or a plugin that engines need: native code.",
)
nvtx_option = click.option("--nvtx", is_flag=True, help="Mark the phases with NVTX ranges, for profilers.")
input_option = click.option(
    "--input", "data", metavar="DATA", help="An .npz, a folder of them, Polygraphy's JSON or module:function."
)
