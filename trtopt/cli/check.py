"""`trtopt check`."""

from __future__ import annotations

from pathlib import Path

import click

from trtopt.cli.exit_codes import NOT_MET
from trtopt.cli.options.accuracy_bounds import bounds_options
from trtopt.cli.options.batch import batch_option
from trtopt.cli.options.completion import model_names, names_or_files
from trtopt.cli.options.data import data_option
from trtopt.cli.options.json_output import JsonOutput, json_option, takes_stdout, write_json
from trtopt.cli.options.measuring import backend_choice, timeout_option, trust_option
from trtopt.cli.options.shapes import shape_options
from trtopt.precision.bounds import Bounds


@click.command()
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--against", type=click.Path(exists=True, path_type=Path), required=True, help="The reference ONNX file."
)
@data_option("Samples [default: seeded random ones]")
@click.option(
    "--model",
    "task",
    metavar="NAME|FILE.toml",
    shell_complete=names_or_files(model_names),
    help="Measure this model's task metric too.",
)
@batch_option("Batch sizes of engines [default: each engine's own].")
@shape_options
@backend_choice("What to run engines with [default: auto, their own, or the CPU if there is no GPU].")
@timeout_option
@trust_option
@bounds_options()
@click.option("--layers", is_flag=True, help="Rank where in the graph the error enters (ONNX files).")
@json_option("trtopt.check")
def check(
    model: Path,
    against: Path,
    data: str | None,
    task: str | None,
    batch: tuple[int, ...] | None,
    shapes: dict[str, str] | None,
    axes: dict[str, tuple[int, ...]] | None,
    backend: str | None,
    timeout: float | None,
    trust: tuple[str, ...],
    bounds: Bounds,
    layers: bool,
    json: JsonOutput | None,
) -> None:
    """Compare MODEL, an ONNX file, a build folder or an engine in one, with a reference ONNX file.

    Exits with 3 if a bound is not met.
    """
    from trtopt.cli.console import say, show_notes, warn
    from trtopt.cli.progress import listening
    from trtopt.report.checking import check_notes, check_summary
    from trtopt.workflows.precision.check import CheckRequest, check as run

    request = CheckRequest(
        data=data,
        task=task,
        batch=batch,
        shapes=shapes,
        axes=axes,
        backend=backend,
        bounds=bounds,
        layers=layers,
        timeout=timeout,
        trust=trust,
    )
    with listening() as listener:
        report = run(model, against, request, listener)
    warn(report.alarms)
    write_json(json, report)
    if not takes_stdout(json):
        say(*check_summary(report))
        show_notes(check_notes(report))
    if not report.passed:
        raise click.exceptions.Exit(NOT_MET)
