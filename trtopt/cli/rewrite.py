"""`trtopt rewrite`: a graph that TensorRT fuses better, verified to be the same function."""

from __future__ import annotations

from pathlib import Path

import click

from trtopt.cli.declared import command
from trtopt.cli.options.completion import node_names
from trtopt.cli.options.outputs import JsonOutput, json_option, takes_stdout, write_json
from trtopt.requests.models import RewriteRequest


@command(RewriteRequest, optional=("model", "output"))
@click.option("--list", "listing", is_flag=True, help="List the rules (with --json: as JSON) and exit.")
@click.option(
    "--explain",
    metavar="NODE",
    shell_complete=node_names,
    help="Show what was done or declined at this node, and why.",
)
@json_option("trtopt.rewrite", "the trace")
def rewrite(
    request: RewriteRequest | None, listing: bool, explain: str | None, json: JsonOutput | None
) -> None:
    """Rewrite the ONNX file MODEL for TensorRT and check that it still computes the same function."""
    from trtopt.cli.console import note, say, show_notes, warn
    from trtopt.cli.progress import phases
    from trtopt.errors import UsageError
    from trtopt.report.notes import plain
    from trtopt.rewrite import explain as words
    from trtopt.rewrite.catalogue import RULES
    from trtopt.workflows.requested import rewrite as run

    if listing:
        if json is not None:
            json.write(f"{words.catalogue_json(RULES)}\n".encode())
        else:
            click.echo("\n".join(words.catalogue(RULES)))
        return
    if explain is not None and takes_stdout(json):
        raise UsageError(
            "--explain answers in words, --json - prints the whole trace",
            "omit one of them, or write the trace to a file with --json FILE",
        )
    if request is None:
        raise UsageError("a model and -o are needed", "trtopt rewrite MODEL.onnx -o OUT.onnx")
    with phases(f"rewriting {Path(request.model).name}"):
        trace = run(request, note, lambda trace: explain is None or words.of_node(trace, explain))
    warn(trace.alarms)
    write_json(json, trace)
    if explain is not None and not takes_stdout(json):
        say(*words.of_node(trace, explain))
    elif not takes_stdout(json):
        say(*words.summary(trace))
        show_notes(plain(trace.notes))
