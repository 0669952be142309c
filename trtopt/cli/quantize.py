"""`trtopt quantize`: inserts Q/DQ into the graph, placed by rule and calibrated on real data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtopt.cli.options.alarms import check_alarms, strict_option
from trtopt.cli.options.target import target_option
from trtopt.targets import DEFAULT, targets_where

if TYPE_CHECKING:
    from trtopt.precision.quantize import Smoothing
    from trtopt.workflows.precision.quantize import Request


_WITHOUT_STORED_WEIGHTS = ", ".join(targets_where(lambda target: not target.stored_weights))


def _smoothing(text: str) -> float | str:
    """A number as such; names are validated with the rest of the request."""
    try:
        return float(text)
    except ValueError:
        return text


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    "out",
    required=True,
    type=click.Path(path_type=Path),
    help="File to write the model to.",
)
@click.option("--precision", required=True, metavar="int8|fp8|int4", help="The quantised precision.")
@click.option(
    "--calib",
    metavar="DATA",
    help="Samples: an .npz, a folder of them, JSON or module:function.",
)
@target_option("write for", otherwise=f"{DEFAULT}; of --verdict: the one here")
@click.option(
    "--method",
    metavar="NAME",
    help="auto, max, percentile-99.9, -99.99, -99.999, mse or entropy [default: auto; FP8: max].",
)
@click.option(
    "--exclude", multiple=True, metavar="PATTERN", help="Nodes (with * and ?) or operators not to quantise."
)
@click.option("--include", multiple=True, metavar="PATTERN", help="Nodes or operators to quantise anyway.")
@click.option(
    "--table",
    type=click.Path(path_type=Path),
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
@click.option(
    "--store-weights",
    is_flag=True,
    help=f"Keep weights in their narrow type (INT4 always; not on {_WITHOUT_STORED_WEIGHTS}).",
)
@click.option(
    "--random-data", is_flag=True, help="Calibrate on random values: for trials, never for deployment."
)
@click.option(
    "--verdict",
    is_flag=False,
    flag_value="",
    metavar="[N,N,…]",
    help="Measure on this GPU, at these batch sizes, where quantising pays; the rest stays float [sizes: 1].",
)
@click.option("--profile", metavar="NAME|FILE", help="The recipe that --verdict builds with.")
@click.option("--explain", metavar="NODE", help="Explain the decision on this node.")
@strict_option
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def quantize(
    model: Path,
    out: Path,
    precision: str,
    calib: str | None,
    target: str | None,
    method: str | None,
    exclude: tuple[str, ...],
    include: tuple[str, ...],
    table: Path | None,
    smoothquant: Smoothing,
    store_weights: bool,
    random_data: bool,
    verdict: str | None,
    profile: str | None,
    explain: str | None,
    strict: bool,
    as_json: bool,
) -> None:
    """Quantise the ONNX file MODEL: write Q/DQ where TensorRT profits from them."""
    from trtopt.cli.console import say, show_notes, warn
    from trtopt.cli.progress import phases
    from trtopt.records import to_json
    from trtopt.report.notes import plain
    from trtopt.report.quantize import explain as explained
    from trtopt.report.quantize import quantize_summary
    from trtopt.workflows.listener import Listener
    from trtopt.workflows.precision.quantize import Request
    from trtopt.workflows.precision.quantize import quantize as run

    request = Request(
        precision=precision,
        target=target or DEFAULT,
        calib=calib,
        table=table,
        method=method,
        exclude=exclude,
        include=include,
        smoothquant=smoothquant,
        store_weights=store_weights,
        random_data=random_data,
    )
    if verdict is not None:
        alarms = _by_verdict(
            model, out, replace(request, target=target or ""), verdict, profile, explain, as_json
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
    if as_json:
        click.echo(to_json(report).decode(), nl=False)
    elif explain is not None:
        say(*explained(report, explain))
    else:
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
    as_json: bool,
) -> tuple[str, ...]:
    """Measure, write the best candidate, and show its results; the alarms about it."""
    from trtopt.cli.console import say, show, show_notes, warn
    from trtopt.cli.progress import listening
    from trtopt.errors import UsageError
    from trtopt.precision.alarms import verdict_alarms
    from trtopt.recipe import parse_batches
    from trtopt.records import to_json
    from trtopt.report.notes import plain
    from trtopt.report.verdict import verdict_summary
    from trtopt.workflows.build.break_even import quantize_where_it_pays

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
    if as_json:
        click.echo(to_json(result.verdict).decode(), nl=False)
        return alarms
    show(verdict_summary(result.verdict))
    for path, sizes in result.written.items():
        say(f"written: {path} for batch {', '.join(map(str, sizes))}")
    show_notes(plain(result.verdict.notes))
    return alarms
