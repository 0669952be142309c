"""`trtopt optimize`."""

from __future__ import annotations

from pathlib import Path

import click

from trtopt.cli.declared import command
from trtopt.cli.exit_codes import NOT_MET
from trtopt.cli.options.outputs import JsonOutput, json_option, takes_stdout, write_json
from trtopt.requests.build import OptimizeRequest

PAGE = "report.html"


@command(OptimizeRequest)
@json_option("trtopt.optimize", "the result")
def optimize(request: OptimizeRequest, json: JsonOutput | None) -> None:
    """Find the fastest engine of MODEL, an ONNX file, that meets a latency and an accuracy bound.

    Lints and rewrites the model, builds engines, measures them, compares their outputs with those of MODEL
    and writes report.html into the build folder. With --data the precision is chosen too, where engines can
    be measured. Exits with 3 if a bound is missed.
    """
    from trtopt.cli.console import show_view, warn
    from trtopt.cli.progress import listening
    from trtopt.report.tuning import optimized_view
    from trtopt.workflows.optimize import optimize as run

    with listening() as listener:
        found = run(request, listener)
    warn(found.alarms)
    write_json(json, found)
    show_view(optimized_view(found), err=takes_stdout(json))
    write_report(Path(found.folder))
    if not found.met:
        raise click.exceptions.Exit(NOT_MET)


def write_report(folder: Path) -> None:
    """The report of a folder, or one line that says what is missing for it."""
    from trtopt.cli.console import say
    from trtopt.cli.report import write_build_page
    from trtopt.errors import BackendMissingError

    try:
        write_build_page(folder, folder / PAGE)
    except BackendMissingError as error:
        say(f"trtopt: no report page: {error.problem}; {error.remedy}", err=True)
