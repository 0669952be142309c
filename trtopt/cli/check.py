"""`trtopt check`."""

from __future__ import annotations

import click

from trtopt.cli.declared import command
from trtopt.cli.exit_codes import NOT_MET
from trtopt.cli.options.outputs import JsonOutput, json_option, takes_stdout, write_json
from trtopt.requests.models import CheckRequest


@command(CheckRequest)
@json_option("trtopt.check")
def check(request: CheckRequest, json: JsonOutput | None) -> None:
    """Compare MODEL, an ONNX file, a build folder or an engine in one, with a reference ONNX file.

    Exits with 3 if a bound is not met.
    """
    from trtopt.cli.console import show_view, warn
    from trtopt.cli.progress import listening
    from trtopt.report.precision import check_view
    from trtopt.workflows.precision.check import check as run

    with listening() as listener:
        report = run(request, listener)
    warn(report.alarms)
    write_json(json, report)
    if not takes_stdout(json):
        show_view(check_view(report))
    if not report.passed:
        raise click.exceptions.Exit(NOT_MET)
