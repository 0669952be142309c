"""`trtopt rewrite`: a graph that TensorRT fuses better, verified to be the same function."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtopt.cli.options.completion import lists_of, node_names, rule_names
from trtopt.cli.options.data import data_option
from trtopt.cli.options.io import io_options
from trtopt.cli.options.json_output import JsonOutput, json_option, takes_stdout, write_json
from trtopt.cli.options.model import OnnxFile
from trtopt.cli.options.output import model_file, output_option
from trtopt.cli.options.target import target_option

if TYPE_CHECKING:
    from trtopt.records.tensors import IoRequest


def _names(_context: click.Context, _option: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    return None if value is None else tuple(name.strip() for name in value.split(",") if name.strip())


@click.command()
@click.argument("model", type=OnnxFile(), required=False)
@output_option("FILE", "File to write the rewritten model to.", model_file, name="out")
@target_option("rewrite for")
@click.option(
    "--rules",
    callback=_names,
    metavar="NAME,…",
    shell_complete=lists_of(rule_names),
    help="Only these rules (also ones that are off).",
)
@click.option(
    "--skip",
    callback=_names,
    metavar="NAME,…",
    shell_complete=lists_of(rule_names),
    help="Skip these rules.",
)
@click.option("--clean", is_flag=True, help="Also apply rules that tidy the graph and that no build needs.")
@click.option("--list", "listing", is_flag=True, help="List the rules (with --json: as JSON) and exit.")
@click.option(
    "--explain",
    metavar="NODE",
    shell_complete=node_names,
    help="Show what was done or declined at this node, and why.",
)
@click.option("--no-check", is_flag=True, help="Do not run both models to compare them.")
@data_option("Real inputs for the check")
@io_options
@click.option("--dynamic-batch", is_flag=True, help="Give a fixed batch axis the name `batch`.")
@click.option("--keep-going", is_flag=True, help="Skip a rule that fails instead of stopping.")
@json_option("trtopt.rewrite", "the trace")
def rewrite(
    model: Path | None,
    out: Path | None,
    target: str,
    rules: tuple[str, ...] | None,
    skip: tuple[str, ...] | None,
    clean: bool,
    listing: bool,
    explain: str | None,
    no_check: bool,
    data: str | None,
    io: IoRequest,
    dynamic_batch: bool,
    keep_going: bool,
    json: JsonOutput | None,
) -> None:
    """Rewrite the ONNX file MODEL for TensorRT and check that it still computes the same function."""
    from trtopt.cli.console import note, say, show_notes, warn
    from trtopt.cli.progress import phases
    from trtopt.errors import UsageError
    from trtopt.report.notes import plain
    from trtopt.rewrite import explain as words
    from trtopt.rewrite.catalogue import RULES
    from trtopt.rewrite.rewrite import rewrite_model

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
    if model is None or out is None:
        raise UsageError("a model and -o are needed", "trtopt rewrite MODEL.onnx -o OUT.onnx")
    with phases(f"rewriting {model.name}"):
        trace = rewrite_model(
            model,
            out,
            target=target,
            rules=rules,
            skip=skip or (),
            clean=clean,
            check=not no_check,
            data=data,
            keep_going=keep_going,
            dynamic_batch=dynamic_batch,
            io=io,
            accept=lambda trace: explain is None or words.of_node(trace, explain),
            note=note,
        )
    warn(trace.alarms)
    write_json(json, trace)
    if explain is not None and not takes_stdout(json):
        say(*words.of_node(trace, explain))
    elif not takes_stdout(json):
        say(*words.summary(trace))
        show_notes(plain(trace.notes))
