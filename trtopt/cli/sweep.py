"""`trtopt sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtopt.cli.options.aliases import OptionWithAliases
from trtopt.cli.options.batch import batch_option
from trtopt.cli.options.completion import lists_of, neighbour_names
from trtopt.cli.options.contract import contract_flags_of_one_stream
from trtopt.cli.options.data import data_option, older_data_option
from trtopt.cli.options.json_output import JsonOutput, json_option, takes_stdout, write_json
from trtopt.cli.options.measuring import backend_choice, duration_option, timeout_option, warmup_option
from trtopt.cli.options.model import OnnxFile
from trtopt.cli.options.output import output_option
from trtopt.cli.options.recipe import RecipeFlags, cache_dir_option, recipe_options
from trtopt.cli.options.sections import SectionedCommand
from trtopt.cli.options.shapes import axes_by_name
from trtopt.recipe import GRAPH_PRECISIONS

if TYPE_CHECKING:
    from trtopt.records import Terms


@click.command(cls=SectionedCommand)
@click.argument(
    "models",
    metavar="MODEL…",
    nargs=-1,
    required=True,
    type=OnnxFile(),
)
@output_option(
    "FOLDER",
    "The sweep's folder, new or to continue [default: MODEL.sweep]; of several models, the folder for "
    "their folders [default: the current one].",
)
@batch_option("Batch sizes, one engine each [default: 1,2,4,8,16,32].")
@click.option(
    "--precision",
    metavar="NAME,NAME,…",
    shell_complete=lists_of(lambda: GRAPH_PRECISIONS),
    help=f"{', '.join(GRAPH_PRECISIONS)} [default: the graph's].",
)
@click.option("--streams", metavar="N,N,…", default="1", show_default=True, help="Stream counts.")
@click.option(
    "--axis",
    "axes",
    multiple=True,
    metavar="NAME=N,N,…",
    cls=OptionWithAliases,
    aliases=("--shapes",),
    callback=lambda context, option, flags: axes_by_name(flags) or {},
    help="Lengths of another dynamic axis, by its name in the model or as INPUT.INDEX.",
)
@click.option(
    "--neighbours",
    metavar="pow2,8,32",
    shell_complete=lists_of(neighbour_names),
    help="Try the nearest powers of two and multiples of 8 and 32 around each size too.",
)
@click.option(
    "--adaptive", is_flag=True, help="Measure more batch sizes between those given where the curve bends."
)
@backend_choice("Backend to build and measure with [default: auto, the CPU if there is no GPU].")
@contract_flags_of_one_stream
@recipe_options("dynamic", "precision", "compute_capability", "axes", "split")
@cache_dir_option
@duration_option
@warmup_option
@data_option("Inputs to measure with, and for precisions that need data [default: seeded random ones]")
@older_data_option("--input")
@older_data_option("--calib")
@timeout_option
@json_option("trtopt.sweep")
def sweep(
    models: tuple[Path, ...],
    output: Path | None,
    batch: tuple[int, ...] | None,
    precision: str | None,
    streams: str,
    axes: dict[str, tuple[int, ...]],
    neighbours: str | None,
    adaptive: bool,
    backend: str | None,
    contract: str | None,
    terms: Terms,
    cache_dir: Path | None,
    duration: float,
    warmup: float,
    data: str | None,
    input: str | None,
    calib: str | None,
    timeout: float | None,
    json: JsonOutput | None,
    recipe: RecipeFlags,
) -> None:
    """Build and measure each MODEL, an ONNX file, at every combination of the given values.

    The folder holds sweep.json, sweep.csv, build folders and a result file for each point. The same command
    continues an interrupted sweep, and measures nothing twice. `trtopt report FOLDER` draws the curves.

    Several models are swept alike, each into a folder of its own; on a cluster several at a time. Then
    --json writes a line for each.
    """
    from trtopt.cli.console import say, show, show_notes
    from trtopt.cli.options.batch import parse_streams
    from trtopt.cli.progress import listening_to_sweep
    from trtopt.records import SweepReport
    from trtopt.report.sweep import sweep_notes, sweep_summary
    from trtopt.workflows.sweep.request import SweepRequest
    from trtopt.workflows.sweep.sweep import Outcomes, require_reports, sweep as run, sweep_models

    request = SweepRequest(
        recipe=recipe.recipe({"backend": backend, "calib": calib or data}),
        batch=batch,
        precisions=_names(precision),
        streams=parse_streams(streams),
        axes=axes,
        neighbours=_names(neighbours),
        adaptive=adaptive,
        contract=contract,
        terms=terms,
        duration=duration,
        warmup=warmup,
        data=input or data,
        timeout=timeout,
        cache_dir=cache_dir,
    )
    try:
        with listening_to_sweep(is_of_one=len(models) == 1) as listener:
            if len(models) == 1:
                outcomes: Outcomes = {models[0]: run(models[0], output, request, listener)}
            else:
                outcomes = sweep_models(models, output or Path(), request, listener)
    except KeyboardInterrupt:
        say("trtopt: run the same command again to continue after the measured points", err=True)
        raise
    reports = [one for one in outcomes.values() if isinstance(one, SweepReport)]
    write_json(json, *reports)
    for report in reports:
        show(sweep_summary(report), err=takes_stdout(json))
        show_notes(sweep_notes(report), err=takes_stdout(json))
    require_reports(outcomes)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",")) if text is not None else ()
