"""`trtopt cast`: writes FP16 or BF16 into a graph."""

from __future__ import annotations

from pathlib import Path

import click

from trtopt.cli.options.alarms import check_alarms, strict_option
from trtopt.cli.options.aliases import OptionWithAliases
from trtopt.cli.options.completion import node_names
from trtopt.cli.options.data import data_option
from trtopt.cli.options.json_output import JsonOutput, json_option, takes_stdout, write_json
from trtopt.cli.options.model import OnnxFile
from trtopt.cli.options.output import model_file, output_option
from trtopt.cli.options.target import target_option


@click.command()
@click.argument("model", type=OnnxFile())
@output_option("FILE", "File to write.", model_file, name="out", required=True)
@click.option(
    "--precision",
    type=click.Choice(["fp16", "bf16"]),
    default="fp16",
    show_default=True,
    help="The 16-bit type to write.",
)
@data_option("Real inputs, which decide what stays FP32")
@target_option("cast for (scales)")
@click.option(
    "--exclude",
    "keep",
    multiple=True,
    metavar="PATTERN",
    cls=OptionWithAliases,
    aliases=("--keep",),
    help="Nodes to keep in FP32: 'encoder.0.*'.",
)
@click.option("--keep-op", multiple=True, metavar="OP", help="Operators to keep in FP32: Softmax.")
@click.option("--include", multiple=True, metavar="PATTERN", help="Nodes to cast regardless of their values.")
@click.option(
    "--threshold",
    type=float,
    metavar="VALUE",
    help="Largest |x| in 16 bits [default: a quarter of the type's largest].",
)
@click.option("--cast-io", is_flag=True, help="Make the model's FP32 inputs and outputs 16-bit too.")
@click.option("--no-compare", is_flag=True, help="Do not compare the result with the original.")
@click.option(
    "--explain",
    metavar="NODE",
    shell_complete=node_names,
    help="Explain why this node became 16-bit or stayed FP32.",
)
@strict_option
@json_option("trtopt.cast")
def cast(
    model: Path,
    out: Path,
    precision: str,
    data: str | None,
    target: str,
    keep: tuple[str, ...],
    keep_op: tuple[str, ...],
    include: tuple[str, ...],
    threshold: float | None,
    cast_io: bool,
    no_compare: bool,
    explain: str | None,
    strict: bool,
    json: JsonOutput | None,
) -> None:
    """Write MODEL with its nodes in 16 bits where that is safe, and show what stayed FP32 and why."""
    from trtopt.cli.console import note, say, show_notes, warn
    from trtopt.cli.progress import phases
    from trtopt.precision.casting.cast import cast_model
    from trtopt.report.casting import cast_notes, cast_summary, of_node

    with phases(f"casting {model.name}"):
        report = cast_model(
            model,
            out,
            precision="bf16" if precision == "bf16" else "fp16",
            target=target,
            data=data,
            threshold=threshold,
            keep=keep,
            keep_op=keep_op,
            include=include,
            cast_io=cast_io,
            compare=not no_compare,
            accept=lambda report: explain is None or of_node(report, explain),
            note=note,
        )
    warn(report.alarms)
    write_json(json, report)
    if explain is not None and not takes_stdout(json):
        say(*of_node(report, explain))
    elif not takes_stdout(json):
        say(*cast_summary(report))
        show_notes(cast_notes(report))
    check_alarms(report.alarms, strict=strict)
