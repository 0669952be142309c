"""`trtopt quantize`: inserts Q/DQ into the graph, placed by rule and calibrated on real data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtopt.cli.options.alarms import check_alarms, strict_option
from trtopt.cli.options.completion import method_names, names, node_names
from trtopt.cli.options.data import data_option
from trtopt.cli.options.io import io_options
from trtopt.cli.options.json_output import JsonOutput, json_option, takes_stdout, write_json
from trtopt.cli.options.model import OnnxFile
from trtopt.cli.options.output import output_option, quantised_file
from trtopt.cli.options.recipe import exclude_option, forms_option, recipe_option
from trtopt.cli.options.sections import SectionedCommand
from trtopt.cli.options.target import target_option
from trtopt.targets import DEFAULT, targets_where

if TYPE_CHECKING:
    from trtopt.precision.quantize import Smoothing
    from trtopt.records.tensors import IoRequest
    from trtopt.workflows.precision.quantize import Request


_WITHOUT_STORED_WEIGHTS = ", ".join(targets_where(lambda target: not target.stored_weights))


def _smoothing(text: str) -> float | str:
    """A number as such; names are validated with the rest of the request."""
    try:
        return float(text)
    except ValueError:
        return text


@click.command(cls=SectionedCommand)
@click.argument("model", type=OnnxFile())
@output_option("FILE", "File to write the model to.", quantised_file, name="out", required=True)
@click.option(
    "--precision",
    required=True,
    type=click.Choice(["int8", "fp8", "int4"]),
    help="The quantised precision; trtopt cast writes fp16 and bf16.",
)
@data_option("Samples to calibrate on", aliases=("--calib",))
@target_option("write for", otherwise=f"{DEFAULT}; of --verdict: the one here")
@click.option(
    "--method",
    metavar="NAME",
    shell_complete=names(method_names),
    help="auto, max, percentile-99.9, -99.99, -99.999, mse or entropy [default: auto; FP8: max].",
)
@exclude_option
@click.option("--include", multiple=True, metavar="PATTERN", help="Nodes or operators to quantise anyway.")
@click.option(
    "--table",
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE",
    help="Ranges from an earlier run, no data needed.",
)
@click.option(
    "--smoothquant",
    default="auto",
    callback=lambda context, option, text: _smoothing(text),
    metavar="auto|off|ALPHA",
    help="Move outlier channels into weights: auto where INT8 gains by it, or SmoothQuant [default: auto].",
)
@forms_option
@click.option(
    "--store-weights",
    is_flag=True,
    help=f"Keep weights in their narrow type (INT4 always; not on {_WITHOUT_STORED_WEIGHTS}).",
)
@click.option(
    "--random-data", is_flag=True, help="Calibrate on random values: for trials, never for deployment."
)
@io_options
@click.option(
    "--verdict",
    is_flag=False,
    flag_value="",
    metavar="[N,N,…]",
    help="Measure on this GPU, at these batch sizes, where quantising pays; the rest stays float [sizes: 1].",
)
@recipe_option("The recipe that --verdict builds with.")
@click.option(
    "--explain", metavar="NODE", shell_complete=node_names, help="Explain the decision on this node."
)
@strict_option
@json_option("trtopt.quantization")
def quantize(
    model: Path,
    out: Path,
    precision: str,
    data: str | None,
    target: str | None,
    method: str | None,
    exclude: tuple[str, ...] | None,
    include: tuple[str, ...],
    table: Path | None,
    smoothquant: Smoothing,
    forms: str | None,
    store_weights: bool,
    random_data: bool,
    io: IoRequest,
    verdict: str | None,
    profile: str | None,
    explain: str | None,
    strict: bool,
    json: JsonOutput | None,
) -> None:
    """Quantise the ONNX file MODEL: write Q/DQ where TensorRT profits from them."""
    from trtopt.cli.console import say, show_notes, warn
    from trtopt.cli.progress import phases
    from trtopt.errors import UsageError
    from trtopt.records.precision import parse_forms
    from trtopt.report.notes import plain
    from trtopt.report.quantize import explain as explained, quantize_summary
    from trtopt.workflows.listener import Listener
    from trtopt.workflows.precision.quantize import Request, quantize as run

    request = Request(
        precision=precision,
        target=target or DEFAULT,
        calib=data,
        table=table,
        method=method,
        exclude=exclude or (),
        include=include,
        smoothquant=smoothquant,
        forms=None if forms is None else parse_forms(forms),
        store_weights=store_weights,
        random_data=random_data,
        io=io,
    )
    if profile is not None and verdict is None:
        raise UsageError(f"--recipe {profile}: nothing is built", "add --verdict, or omit --recipe")
    if verdict is not None:
        alarms = _by_verdict(
            model, out, replace(request, target=target or ""), verdict, profile, explain, json
        )
        check_alarms(alarms, strict=strict)
        return
    with phases(f"quantising {model.name}") as enter:
        report = run(
            model,
            out,
            request,
            Listener(note=enter),
            accept=lambda report: explain is None or explained(report, explain),
        )
    warn(report.alarms)
    write_json(json, report)
    if explain is not None and not takes_stdout(json):
        say(*explained(report, explain))
    elif not takes_stdout(json):
        say(*quantize_summary(report))
        show_notes(plain(report.notes))
    check_alarms(report.alarms, strict=strict)


def _by_verdict(
    model: Path,
    out: Path,
    request: Request,
    batches: str,
    profile: str | None,
    explain: str | None,
    json: JsonOutput | None,
) -> tuple[str, ...]:
    """Measure, write the best candidate, and show its results; the alarms about it."""
    from trtopt.cli.console import say, show, show_notes, warn
    from trtopt.cli.options.batch import parse_batches
    from trtopt.cli.progress import listening
    from trtopt.errors import UsageError
    from trtopt.precision.alarms import verdict_alarms
    from trtopt.report.notes import plain
    from trtopt.report.verdict import verdict_summary
    from trtopt.workflows.build.quantize_by_measurement import quantize_where_it_pays

    if explain is not None:
        raise UsageError("--explain: applies to one graph, --verdict makes several", "omit one of them")
    with listening() as listener:
        result = quantize_where_it_pays(
            model,
            out,
            request,
            batch=parse_batches(batches) if batches else None,
            profile=profile,
            listener=listener,
        )
    alarms = verdict_alarms(result.verdict)
    warn(alarms)
    write_json(json, result.verdict)
    if takes_stdout(json):
        return alarms
    show(verdict_summary(result.verdict))
    for path, sizes in result.written.items():
        say(f"written: {path} for batch {', '.join(map(str, sizes))}")
    show_notes(plain(result.verdict.notes))
    return alarms
