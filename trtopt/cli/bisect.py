"""`trtopt bisect`: finds the nodes that must stay in higher precision."""

from __future__ import annotations

import click

from trtopt.cli.declared import command
from trtopt.cli.exit_codes import NOT_MET
from trtopt.cli.options.outputs import JsonOutput, json_option, takes_stdout, write_json
from trtopt.requests.models import BisectRequest


@command(BisectRequest)
@json_option("trtopt.bisect", "the report, with the front and all nodes,")
def bisect(request: BisectRequest, json: JsonOutput | None) -> None:
    """Find the fewest nodes of MODEL to keep in higher precision so that the bounds are met.

    Exits with 3 if they are not met even with all nodes kept.
    """
    from trtopt.cli.console import show_view
    from trtopt.cli.progress import listening
    from trtopt.report.precision import bisect_view
    from trtopt.workflows.precision.bisect import bisect as run

    with listening() as listener:
        report = run(request, listener)
    write_json(json, report)
    if not takes_stdout(json):
        show_view(bisect_view(report))
    if report.verdict == "not met":
        raise click.exceptions.Exit(NOT_MET)
