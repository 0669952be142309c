"""`trtopt cast`: writes FP16 or BF16 into a graph."""

from __future__ import annotations

from pathlib import Path

import click

from trtopt.cli.declared import command
from trtopt.cli.exit_codes import check_alarms, strict_option
from trtopt.cli.options.completion import node_names
from trtopt.cli.options.outputs import JsonOutput, json_option, takes_stdout, write_json
from trtopt.requests.models import CastRequest


@command(CastRequest)
@click.option(
    "--explain",
    metavar="NODE",
    shell_complete=node_names,
    help="Explain why this node became 16-bit or stayed FP32.",
)
@strict_option
@json_option("trtopt.cast")
def cast(request: CastRequest, explain: str | None, strict: bool, json: JsonOutput | None) -> None:
    """Write MODEL with its nodes in 16 bits where that is safe, and show what stayed FP32 and why."""
    from trtopt.cli.console import note, say, show_view, warn
    from trtopt.cli.progress import phases
    from trtopt.report.precision import cast_view, explain_cast
    from trtopt.workflows.requested import cast as run

    with phases(f"casting {Path(request.model).name}"):
        report = run(request, note, lambda report: explain is None or explain_cast(report, explain))
    warn(report.alarms)
    write_json(json, report)
    if explain is not None and not takes_stdout(json):
        say(*explain_cast(report, explain))
    elif not takes_stdout(json):
        show_view(cast_view(report))
    check_alarms(report.alarms, strict=strict)
