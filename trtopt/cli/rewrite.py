"""`trtopt rewrite`: a graph that TensorRT fuses better, verified to be the same function."""

from __future__ import annotations

from pathlib import Path

import click

from trtopt.cli.options.target import target_option


def _names(_context: click.Context, _option: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    return None if value is None else tuple(name.strip() for name in value.split(",") if name.strip())


@click.command()
@click.argument("model", type=click.Path(path_type=Path), required=False)
@click.option(
    "-o", "--output", "out", type=click.Path(path_type=Path), help="File to write the rewritten model to."
)
@target_option("rewrite for")
@click.option("--rules", callback=_names, metavar="NAME,…", help="Only these rules (also ones that are off).")
@click.option("--skip", callback=_names, metavar="NAME,…", help="Leave these rules out.")
@click.option("--list", "listing", is_flag=True, help="List the rules (with --json: as JSON) and end.")
@click.option("--explain", metavar="NODE", help="Say what was done or declined at this node, and why.")
@click.option("--no-check", is_flag=True, help="Do not run both models to compare them.")
@click.option(
    "--data",
    metavar="DATA",
    help="Real inputs for the check: an .npz, a folder of them, JSON or module:function.",
)
@click.option("--dynamic-batch", is_flag=True, help="Give a fixed batch axis the name `batch`.")
@click.option("--keep-going", is_flag=True, help="Skip a rule that fails instead of stopping.")
@click.option("--json", "as_json", is_flag=True, help="Print the trace as JSON.")
def rewrite(
    model: Path | None,
    out: Path | None,
    target: str,
    rules: tuple[str, ...] | None,
    skip: tuple[str, ...] | None,
    listing: bool,
    explain: str | None,
    no_check: bool,
    data: str | None,
    dynamic_batch: bool,
    keep_going: bool,
    as_json: bool,
) -> None:
    """Rewrite the ONNX file MODEL for TensorRT and check that it still computes the same function."""
    from trtopt.cli.console import note, say, show_notes
    from trtopt.cli.progress import phases
    from trtopt.errors import UsageError
    from trtopt.records import to_json
    from trtopt.report.notes import plain
    from trtopt.rewrite import explain as words
    from trtopt.rewrite.catalogue import RULES
    from trtopt.rewrite.rewrite import rewrite_model

    if listing:
        click.echo(words.catalogue_json(RULES) if as_json else "\n".join(words.catalogue(RULES)))
        return
    if as_json and explain is not None:
        raise UsageError(
            "--explain answers in words, --json prints the whole trace",
            "omit one of them; in the trace, `applied`, `undone` and `declined` name the nodes",
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
            check=not no_check,
            data=data,
            keep_going=keep_going,
            dynamic_batch=dynamic_batch,
            accept=lambda trace: explain is None or words.of_node(trace, explain),
            note=note,
        )
    if as_json:
        click.echo(to_json(trace).decode(), nl=False)
    elif explain is not None:
        say(*words.of_node(trace, explain))
    else:
        say(*words.summary(trace))
        show_notes(plain(trace.notes))
