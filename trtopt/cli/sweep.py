"""`trtopt sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtopt.cli.options.contract import contract_flags_of_one_stream
from trtopt.cli.options.measuring import duration_option, input_option, timeout_option, warmup_option
from trtopt.cli.options.recipe import RecipeFlags, cache_dir_option, recipe_options

if TYPE_CHECKING:
    from trtopt.records import Terms


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The sweep's folder, new or to continue [default: MODEL.sweep].",
)
@click.option("--batch", metavar="N,N,…", help="Batch sizes, one engine each [default: 1,2,4,8,16,32].")
@click.option(
    "--precision", metavar="NAME,NAME,…", help="fp32, fp16, bf16, int8, fp8, int4 [default: the graph's]."
)
@click.option("--streams", metavar="N,N,…", default="1", show_default=True, help="Stream counts.")
@click.option(
    "--shapes",
    "axes",
    multiple=True,
    metavar="AXIS=N,N,…",
    help="Lengths of another open axis, by its name in the model or as INPUT.INDEX.",
)
@click.option(
    "--neighbours",
    metavar="pow2,8,32",
    help="Try the nearest powers of two and multiples of 8 and 32 around each size too.",
)
@click.option(
    "--adaptive", is_flag=True, help="Measure more batch sizes between those given where the curve bends."
)
@click.option(
    "--backend",
    metavar="auto|tensorrt|tensorrt-rtx|onnxruntime",
    help="Backend to build and measure with [default: auto, the CPU if there is no GPU].",
)
@contract_flags_of_one_stream
@recipe_options("dynamic", "precision", "compute_capability")
@cache_dir_option
@duration_option
@warmup_option
@input_option
@timeout_option
def sweep(
    model: Path,
    output: Path | None,
    batch: str | None,
    precision: str | None,
    streams: str,
    axes: tuple[str, ...],
    neighbours: str | None,
    adaptive: bool,
    backend: str | None,
    contract: str | None,
    terms: Terms,
    cache_dir: Path | None,
    duration: float,
    warmup: float,
    data: str | None,
    timeout: float | None,
    recipe: RecipeFlags,
) -> None:
    """Build and measure MODEL, an ONNX file, at every combination of the given values.

    The folder holds sweep.json, sweep.csv, build folders and a result file for each point. The same command
    continues an interrupted sweep, and measures nothing twice. `trtopt report FOLDER` draws the curves.
    """
    from trtopt.cli.console import say, show, show_notes
    from trtopt.cli.progress import listening_to_sweep
    from trtopt.recipe import parse_batches, parse_streams
    from trtopt.report.sweep import sweep_notes, sweep_summary
    from trtopt.workflows.sweep.request import SweepRequest
    from trtopt.workflows.sweep.sweep import sweep as run

    request = SweepRequest(
        recipe=recipe.recipe({"backend": backend}),
        batch=parse_batches(batch) if batch is not None else None,
        precisions=_names(precision),
        streams=parse_streams(streams),
        axes=_axes(axes),
        neighbours=_names(neighbours),
        adaptive=adaptive,
        contract=contract,
        terms=terms,
        duration=duration,
        warmup=warmup,
        data=data,
        timeout=timeout,
        cache_dir=cache_dir,
    )
    try:
        with listening_to_sweep() as listener:
            report = run(model, output, request, listener)
    except KeyboardInterrupt:
        say("trtopt: run the same command again to continue after the measured points", err=True)
        raise
    show(sweep_summary(report))
    show_notes(sweep_notes(report))


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",")) if text is not None else ()


def _axes(flags: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Lengths by axis.

    Raises:
        UsageError: a malformed flag, or an axis given twice.
    """
    from trtopt.errors import UsageError
    from trtopt.recipe import parse_axis_flag

    axes: dict[str, tuple[int, ...]] = {}
    for name, lengths in map(parse_axis_flag, flags):
        if name in axes:
            raise UsageError(f"--shapes {name}: given twice", "give each axis one --shapes")
        axes[name] = lengths
    return axes
