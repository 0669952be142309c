"""`trtopt bench`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtopt.cli.declared import command
from trtopt.cli.exit_codes import UNTRUSTWORTHY
from trtopt.cli.options.outputs import JsonOutput, Output, json_option, takes_stdout, write_json
from trtopt.requests.measure import BenchRequest

if TYPE_CHECKING:
    from trtopt.files.outputs import Kind
    from trtopt.records import BenchReport


def times_file(path: Path) -> Mapping[Path, Kind]:
    """Times in trtexec's form."""
    from trtopt.files.outputs import kind_beginning
    from trtopt.report.trtexec import TIMES_BEGIN

    return {path: kind_beginning("bench's times", TIMES_BEGIN)}


def layers_file(path: Path) -> Mapping[Path, Kind]:
    """Layers in trtexec's form."""
    from trtopt.files.outputs import kind_beginning
    from trtopt.report.trtexec import LAYERS_BEGIN

    return {path: kind_beginning("bench's layers", LAYERS_BEGIN)}


@command(BenchRequest, has_sections=True)
@click.option("--strict", is_flag=True, help="Exit with 4 if a figure is not trustworthy, or unsteady.")
@json_option("trtopt.bench", "the result, raw samples included,")
@click.option(
    "--export-times",
    type=Output(times_file),
    metavar="FILE",
    help="Write latencies as trtexec --exportTimes does; several batch sizes: FILE.batchN each.",
)
@click.option(
    "--export-profile",
    type=Output(layers_file),
    metavar="FILE",
    help="Write layer times as trtexec --exportProfile does; turns on --layers.",
)
def bench(
    request: BenchRequest,
    strict: bool,
    json: JsonOutput | None,
    export_times: Path | None,
    export_profile: Path | None,
) -> None:
    """Measure PATH: a build folder, one engine of it, or an ONNX file.

    With `--json -` the table goes to standard error. If an engine fails, earlier measurements are kept.
    """
    from trtopt.cli.progress import listening
    from trtopt.errors import TrtoptError
    from trtopt.report.bench import is_trustworthy
    from trtopt.workflows.bench.bench import bench as run

    request = replace(request, layers=request.layers or export_profile is not None)
    latest: BenchReport | None = None

    def save(report: BenchReport) -> None:
        """After every engine: a later failure must not take finished measurements along."""
        nonlocal latest
        latest = report
        if not takes_stdout(json):
            write_json(json, report, indent=None)

    def finish() -> None:
        if latest is not None:
            _export(latest, export_times, export_profile)
            _show(latest, Path(request.path).name, json)

    try:
        with listening(save) as listener:
            report = run(request, listener)
    except TrtoptError:
        finish()
        raise
    finish()
    if strict and not is_trustworthy(report):
        raise click.exceptions.Exit(UNTRUSTWORTHY)


def _show(report: BenchReport, subject: str, json: JsonOutput | None) -> None:
    """Print the table, to standard error if the result goes to standard output."""
    from trtopt.cli.console import is_verbose, show, show_notes, warn
    from trtopt.records import Trust
    from trtopt.report.bench import all_notes, bench_view, distrust
    from trtopt.report.notes import plain

    is_stdout = takes_stdout(json)
    if is_stdout:
        write_json(json, report, indent=None)
    warn(distrust([report], Trust.NONE))
    view = bench_view(report, subject)
    show(view.terminal(verbose=is_verbose()), err=is_stdout)
    show_notes(plain(all_notes(report)) if is_verbose() else view.notes, err=is_stdout)


def _export(report: BenchReport, times: Path | None, profile: Path | None) -> None:
    from trtopt.files.outputs import write_output
    from trtopt.report import trtexec

    for point in report.points:
        if (
            times is not None and point.latency.stages.start_ms
        ):  # None: the device failed before the first report
            file = trtexec.path_for(times, point.batch, len(report.points))
            write_output(file, trtexec.times(point.latency.stages), times_file(file)[file])
        if profile is not None and point.layers is not None:
            file = trtexec.path_for(profile, point.batch, len(report.points))
            write_output(file, trtexec.profile(point.layers), layers_file(file)[file])
