"""`trtopt bisect`: finds the nodes that must stay in higher precision."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtopt.cli.exit_codes import NOT_MET
from trtopt.cli.options.accuracy_bounds import bounds_options
from trtopt.cli.options.batch import batch_option
from trtopt.cli.options.completion import files, method_names, names
from trtopt.cli.options.data import data_option
from trtopt.cli.options.json_output import JsonOutput, json_option, takes_stdout, write_json
from trtopt.cli.options.measuring import backend_choice, timeout_option
from trtopt.cli.options.model import OnnxFile
from trtopt.cli.options.output import output_option, quantised_file
from trtopt.cli.options.recipe import recipe_option
from trtopt.cli.options.target import target_option
from trtopt.targets import DEFAULT

if TYPE_CHECKING:
    from trtopt.precision.bounds import Bounds
    from trtopt.workflows.precision.bisect import Precision


@click.command()
@click.argument("model", type=OnnxFile())
@output_option("FILE", "File to write the resulting model to.", quantised_file, name="out")
@click.option(
    "--precision",
    required=True,
    type=click.Choice(["fp16", "bf16", "int8", "fp8"]),
    help="The low precision.",
)
@bounds_options()
@data_option("Samples to evaluate accuracy on, and to find ranges on")
@click.option("--calib", metavar="DATA", shell_complete=files, help="Other samples for ranges and values.")
@click.option(
    "--table",
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE",
    help="Ranges from an earlier trtopt quantize.",
)
@click.option(
    "--method",
    metavar="NAME",
    shell_complete=names(method_names),
    help="How ranges are found, as for trtopt quantize.",
)
@target_option("write for", otherwise=f"the engines', else {DEFAULT}")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Nodes or operators to keep in any case.")
@click.option("--include", multiple=True, metavar="PATTERN", help="Nodes to lower regardless of the rules.")
@backend_choice(
    "Evaluator: engines [default with a GPU], or ONNX Runtime, which emulates the precision.", default="auto"
)
@batch_option("Batch sizes of the engines.")
@recipe_option("A recipe for the engines.")
@timeout_option
@click.option(
    "--max-evaluations",
    default=200,
    show_default=True,
    metavar="N",
    help="Maximum number of node sets to evaluate.",
)
@json_option("trtopt.bisect", "the report, with the front and all nodes,")
def bisect(
    model: Path,
    out: Path | None,
    precision: Precision,
    bounds: Bounds,
    data: str | None,
    calib: str | None,
    table: Path | None,
    method: str | None,
    target: str | None,
    exclude: tuple[str, ...],
    include: tuple[str, ...],
    backend: str,
    batch: tuple[int, ...] | None,
    profile: str | None,
    timeout: float | None,
    max_evaluations: int,
    json: JsonOutput | None,
) -> None:
    """Find the fewest nodes of MODEL to keep in higher precision so that the bounds are met.

    Exits with 3 if they are not met even with all nodes kept.
    """
    from trtopt.cli.console import say, show_notes
    from trtopt.cli.progress import listening
    from trtopt.report.bisecting import bisect_summary
    from trtopt.report.notes import plain
    from trtopt.workflows.precision.bisect import Request, bisect as run

    request = Request(
        precision=precision,
        bounds=bounds,
        data=data,
        calib=calib,
        table=table,
        method=method,
        target=target,
        exclude=exclude,
        include=include,
        backend=backend,
        batch=batch,
        profile=profile,
        timeout=timeout,
        evaluations=max_evaluations,
    )
    with listening() as listener:
        report = run(model, request, out, listener)
    write_json(json, report)
    if not takes_stdout(json):
        say(*bisect_summary(report))
        show_notes(plain(report.notes))
    if report.verdict == "not met":
        raise click.exceptions.Exit(NOT_MET)
