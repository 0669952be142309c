"""`trtopt check`."""

from __future__ import annotations

from pathlib import Path

import click

from trtopt.cli.exit_codes import NOT_MET
from trtopt.cli.options.bounds import bounds_options
from trtopt.cli.options.measuring import timeout_option, trust_option
from trtopt.precision.bounds import Bounds


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--against", type=click.Path(path_type=Path), required=True, help="The reference ONNX file.")
@click.option("--data", metavar="DATA", help="Samples: an .npz, a folder of them, JSON or module:function.")
@click.option("--model", "task", metavar="NAME|FILE.toml", help="Measure this model's task metric too.")
@click.option("--batch", metavar="N,N,…", help="Batch sizes of engines [default: each engine's own].")
@click.option("--backend", metavar="auto|tensorrt|tensorrt-rtx|onnxruntime", help="What to run engines with.")
@timeout_option
@trust_option
@bounds_options
@click.option("--layers", is_flag=True, help="Rank where in the graph the error enters (ONNX files).")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def check(
    model: Path,
    against: Path,
    data: str | None,
    task: str | None,
    batch: str | None,
    backend: str | None,
    timeout: float | None,
    trust: tuple[str, ...],
    bounds: Bounds,
    layers: bool,
    as_json: bool,
) -> None:
    """Compare MODEL, an ONNX file, a build folder or an engine in one, with a reference ONNX file.

    Exit code 3: a bound is not met.
    """
    from trtopt.cli.console import say, show_notes, warn
    from trtopt.cli.progress import listening
    from trtopt.recipe import parse_batches
    from trtopt.records import to_json
    from trtopt.report.checking import check_notes, check_summary
    from trtopt.workflows.precision.check import check as run

    with listening() as listener:
        report = run(
            model,
            against,
            data=data,
            model=task,
            batch=parse_batches(batch) if batch is not None else None,
            backend=backend,
            bounds=bounds,
            layers=layers,
            listener=listener,
            timeout=timeout,
            trust=trust,
        )
    warn(report.alarms)
    if as_json:
        click.echo(to_json(report).decode(), nl=False)
    else:
        say(*check_summary(report))
        show_notes(check_notes(report))
    if not report.passed:
        raise click.exceptions.Exit(NOT_MET)
