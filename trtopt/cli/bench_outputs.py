"""Outputs of a measurement: the table, the result file, trtexec's files."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtopt.cli.options.json_output import JsonOutput, json_option, takes_stdout, write_json
from trtopt.cli.options.output import Output

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


_OPTIONS = (
    json_option("trtopt.bench", "the result, raw samples included,"),
    click.option(
        "--export-times",
        type=Output(times_file),
        metavar="FILE",
        help="Write latencies as trtexec --exportTimes does; several batch sizes: FILE.batchN each.",
    ),
    click.option(
        "--export-profile",
        type=Output(layers_file),
        metavar="FILE",
        help="Write layer times as trtexec --exportProfile does; turns on --layers.",
    ),
)


class Outputs:
    """Requested output files."""

    def __init__(self, json: JsonOutput | None, times: Path | None, profile: Path | None) -> None:
        self._json = json
        self._times, self._profile = times, profile
        self._latest: BenchReport | None = None

    @property
    def need_layers(self) -> bool:
        """Whether one of them needs layer times."""
        return self._profile is not None

    def save(self, report: BenchReport) -> None:
        """After every engine: a later failure must not take finished measurements along."""

        self._latest = report
        if not takes_stdout(self._json):
            write_json(self._json, report, indent=None)

    def finish(self, subject: str) -> None:
        """Write trtexec's files, then the table, to standard error if the result goes to standard output.

        They show the latest report on `subject`; without one nothing is written.
        """
        from trtopt.cli.console import is_verbose, show, show_notes, warn
        from trtopt.report.notes import plain
        from trtopt.report.text import bench_summary
        from trtopt.report.trust import all_notes, bench_notes, trust_warnings

        report = self._latest
        if report is None:
            return
        self._export(report)
        is_stdout = takes_stdout(self._json)
        if is_stdout:
            write_json(self._json, report, indent=None)
        warn(trust_warnings(report))
        show(bench_summary(report, subject, verbose=is_verbose()), err=is_stdout)
        notes = plain(all_notes(report)) if is_verbose() else bench_notes(report)
        show_notes(notes, err=is_stdout)

    def _export(self, report: BenchReport) -> None:
        from trtopt.files.outputs import write_output
        from trtopt.report import trtexec

        for point in report.points:
            if (
                self._times is not None and point.latency.stages.start_ms
            ):  # None: the device failed before the first report
                file = trtexec.path_for(self._times, point.batch, len(report.points))
                write_output(file, trtexec.times(point.latency.stages), times_file(file)[file])
            if self._profile is not None and point.layers is not None:
                file = trtexec.path_for(self._profile, point.batch, len(report.points))
                write_output(file, trtexec.profile(point.layers), layers_file(file)[file])


def output_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags that name files; the command gets `outputs`."""

    @functools.wraps(command)
    def with_outputs(
        json: JsonOutput | None, export_times: Path | None, export_profile: Path | None, **arguments: object
    ) -> None:
        command(**arguments, outputs=Outputs(json, export_times, export_profile))

    for option in reversed(_OPTIONS):
        with_outputs = option(with_outputs)
    return with_outputs
