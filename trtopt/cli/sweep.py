"""`trtopt sweep`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from trtopt.cli.declared import OnnxFile, command
from trtopt.cli.options.outputs import JsonOutput, json_option, takes_stdout, write_json
from trtopt.requests.build import SweepRequest


@command(SweepRequest, has_sections=True, later={"model": Path()})
@click.argument("models", metavar="MODEL…", nargs=-1, required=True, type=OnnxFile())
@click.option("--input", metavar="DATA", hidden=True)
@click.option("--calib", metavar="DATA", hidden=True)
@json_option("trtopt.sweep")
def sweep(
    request: SweepRequest,
    models: tuple[Path, ...],
    input: str | None,
    calib: str | None,
    json: JsonOutput | None,
) -> None:
    """Build and measure each MODEL, an ONNX file, at every combination of the given values.

    The folder holds sweep.json, sweep.csv, build folders and a result file for each point. The same command
    continues an interrupted sweep, and measures nothing twice. `trtopt report FOLDER` draws the curves.

    Several models are swept alike, each into a folder of its own; on a cluster several at a time. Then
    --json writes a line for each.
    """
    from trtopt.cli.console import say, show_view
    from trtopt.cli.progress import listening_to_sweep
    from trtopt.records import SweepReport
    from trtopt.report.sweep import sweep_view
    from trtopt.workflows.sweep.sweep import Outcomes, require_reports, sweep as run, sweep_models

    data = input or request.data
    request = replace(request, model=models[0], data=data, calib=calib or request.data)
    try:
        with listening_to_sweep(is_of_one=len(models) == 1) as listener:
            if len(models) == 1:
                outcomes: Outcomes = {models[0]: run(request, listener)}
            else:
                outcomes = sweep_models(models, request, listener)
    except KeyboardInterrupt:
        say("trtopt: run the same command again to continue after the measured points", err=True)
        raise
    reports = [one for one in outcomes.values() if isinstance(one, SweepReport)]
    write_json(json, *reports)
    for report in reports:
        show_view(sweep_view(report), err=takes_stdout(json))
    require_reports(outcomes)
