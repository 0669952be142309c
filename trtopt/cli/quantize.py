"""`trtopt quantize`: inserts Q/DQ into the graph, placed by rule and calibrated on real data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import click

from trtopt.cli.declared import command, option
from trtopt.cli.exit_codes import check_alarms, strict_option
from trtopt.cli.options.completion import node_names
from trtopt.cli.options.outputs import JsonOutput, json_option, takes_stdout, write_json
from trtopt.requests.models import QuantizeRequest
from trtopt.requests.shared import Profile


@command(QuantizeRequest, has_sections=True)
@click.option(
    "--verdict",
    is_flag=False,
    flag_value="",
    metavar="[N,N,…]",
    help="Measure on this GPU, at these batch sizes, where quantising pays; the rest stays float [sizes: 1].",
)
@option("profile", Annotated[Profile, "The recipe that --verdict builds with."])
@click.option(
    "--explain", metavar="NODE", shell_complete=node_names, help="Explain the decision on this node."
)
@strict_option
@json_option("trtopt.quantization")
def quantize(
    request: QuantizeRequest,
    verdict: str | None,
    profile: str | None,
    explain: str | None,
    strict: bool,
    json: JsonOutput | None,
) -> None:
    """Quantise the ONNX file MODEL: write Q/DQ where TensorRT profits from them."""
    from trtopt.cli.console import say, show_view, warn
    from trtopt.cli.progress import phases
    from trtopt.errors import UsageError
    from trtopt.report.precision import explain_quantisation, quantize_view
    from trtopt.workflows.listener import Listener
    from trtopt.workflows.requested import quantize as run

    if profile is not None and verdict is None:
        raise UsageError(f"--recipe {profile}: nothing is built", "add --verdict, or omit --recipe")
    if verdict is not None:
        alarms = _by_verdict(request, verdict, profile, explain, json)
        check_alarms(alarms, strict=strict)
        return
    with phases(f"quantising {Path(request.model).name}") as enter:
        listener = Listener(note=enter)
        report = run(
            request, listener, lambda report: explain is None or explain_quantisation(report, explain)
        )
    warn(report.alarms)
    write_json(json, report)
    if explain is not None and not takes_stdout(json):
        say(*explain_quantisation(report, explain))
    elif not takes_stdout(json):
        show_view(quantize_view(report))
    check_alarms(report.alarms, strict=strict)


def _by_verdict(
    request: QuantizeRequest,
    batches: str,
    profile: str | None,
    explain: str | None,
    json: JsonOutput | None,
) -> tuple[str, ...]:
    """Measure, write the best candidate, and show its results; the alarms about it."""
    from trtopt.cli.console import say, show, show_notes, warn
    from trtopt.cli.progress import listening
    from trtopt.errors import UsageError
    from trtopt.precision.bounds import verdict_alarms
    from trtopt.report.precision import verdict_view
    from trtopt.requests.shared import parse_batches
    from trtopt.workflows.build.quantize_by_measurement import quantize_where_it_pays
    from trtopt.workflows.requested import quantisation

    if explain is not None:
        raise UsageError("--explain: applies to one graph, --verdict makes several", "omit one of them")
    with listening() as listener:
        result = quantize_where_it_pays(
            request.model,
            request.output,
            replace(quantisation(request), target=request.target or ""),
            batch=parse_batches(batches) if batches else None,
            profile=profile,
            listener=listener,
        )
    alarms = verdict_alarms(result.verdict)
    warn(alarms)
    write_json(json, result.verdict)
    if takes_stdout(json):
        return alarms
    view = verdict_view(result.verdict)
    show(view)
    for path, sizes in result.written.items():
        say(f"written: {path} for batch {', '.join(map(str, sizes))}")
    show_notes(view.notes)
    return alarms
