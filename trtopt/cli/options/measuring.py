"""Options that mean the same to every command that measures."""

from __future__ import annotations

import click

backend_option = click.option(
    "--backend",
    metavar="auto|tensorrt|tensorrt-rtx|onnxruntime",
    help="What to run with [default: what the engines were built with; auto: the CPU where no GPU is].",
)
duration_option = click.option(
    "--duration", type=float, default=3.0, show_default=True, metavar="S", help="Seconds of sampling a pass."
)
warmup_option = click.option(
    "--warmup", type=float, default=0.2, show_default=True, metavar="S", help="Seconds before samples count."
)
timeout_option = click.option(
    "--timeout", type=float, metavar="S", help="A measurement of one batch size that takes longer has failed."
)
trust_option = click.option(
    "--trust",
    multiple=True,
    metavar="ENGINE|LIB.so",
    help="Load an engine that no manifest vouches for, or a plugin that engines need: native code.",
)
nvtx_option = click.option("--nvtx", is_flag=True, help="Mark what is done with NVTX ranges, for profilers.")
input_option = click.option(
    "--input", "data", metavar="DATA", help="An .npz, a folder of them, Polygraphy's JSON or module:function."
)
