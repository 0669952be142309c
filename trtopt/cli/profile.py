"""`trtopt profile`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtopt.cli.options.batch import batch_option
from trtopt.cli.options.json_output import JsonOutput, json_option, takes_stdout, write_json
from trtopt.cli.options.measuring import (
    backend_choice,
    inputs_option,
    nvtx_option,
    timeout_option,
    trust_option,
)
from trtopt.cli.options.output import output_option
from trtopt.cli.options.sections import SectionedCommand
from trtopt.cli.options.shapes import shape_options

if TYPE_CHECKING:
    from trtopt.files.outputs import Kind


def profile_files(folder: Path) -> Mapping[Path, Kind]:
    """The files of a profile in their folder; before that is there, the folder itself."""
    from trtopt.files.outputs import json_kind, kind_beginning
    from trtopt.report.trace import TRACE_BEGINS
    from trtopt.workflows.profile.profile import PROFILE_FILE, TRACE_FILE

    report, trace = json_kind("trtopt.profile"), kind_beginning("profile's trace", TRACE_BEGINS)
    return (
        {folder / PROFILE_FILE: report, folder / TRACE_FILE: trace} if folder.is_dir() else {folder: report}
    )


@click.command(cls=SectionedCommand)
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@output_option("FOLDER", "Folder to write profile.json into.", profile_files)
@batch_option("Batch sizes [default: those of the engines].")
@shape_options
@inputs_option
@backend_choice("Backend to run with [default: the engines' own; auto: the CPU if there is no GPU].")
@click.option(
    "--result",
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE",
    help="Use a result file of `trtopt bench --layers` instead of measuring here.",
)
@click.option(
    "--against",
    type=click.Path(exists=True, path_type=Path),
    metavar="PROFILE",
    help="An earlier profile (file or folder): show the differences, layer by layer.",
)
@click.option(
    "--trace", "with_trace", is_flag=True, help="Write trace.json for Perfetto next to profile.json."
)
@click.option("--memory", is_flag=True, help="Trace every allocation too, in a separate pass.")
@click.option("--kernels", is_flag=True, help="Record every kernel too (CUPTI), in a separate pass.")
@timeout_option
@trust_option
@nvtx_option
@click.option(
    "--probe-peaks",
    is_flag=True,
    help="Measure the device's peak rates, for floors; stored for later profiles.",
)
@click.option(
    "--duration",
    type=float,
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds of the latency pass that accompanies the layer pass.",
)
@json_option("trtopt.profile", "the profile")
def profile(
    path: Path,
    output: Path | None,
    batch: tuple[int, ...] | None,
    shapes: dict[str, str] | None,
    axes: dict[str, tuple[int, ...]] | None,
    data: str | None,
    backend: str | None,
    result: Path | None,
    against: Path | None,
    with_trace: bool,
    memory: bool,
    kernels: bool,
    timeout: float | None,
    trust: tuple[str, ...],
    nvtx: bool,
    probe_peaks: bool,
    duration: float,
    json: JsonOutput | None,
) -> None:
    """Profile PATH: a build folder, one engine of it, or an ONNX file.

    Shows where the time goes, layer by layer, with the names of the ONNX file; which types ran; what fused,
    what did not and why; and how far each layer is from the device's limits.
    """
    from trtopt.cli.console import is_verbose, note, show, show_notes
    from trtopt.cli.progress import listening
    from trtopt.errors import UsageError
    from trtopt.files.outputs import write_output
    from trtopt.records import to_json
    from trtopt.report.profile import profile_notes, profile_summary
    from trtopt.report.trace import trace
    from trtopt.workflows.profile.profile import PROFILE_FILE, TRACE_FILE, profile as run
    from trtopt.workflows.profile.request import ProfileRequest

    if with_trace and output is None:
        raise UsageError("--trace: no folder to write trace.json into", "name one with -o")
    file = output / PROFILE_FILE if output is not None else None
    request = ProfileRequest(
        batch=batch,
        shapes=shapes,
        axes=axes,
        data=data,
        backend=backend,
        result=result,
        against=against,
        memory=memory,
        kernels=kernels,
        nvtx=nvtx,
        probe_peaks=probe_peaks,
        duration=duration,
        timeout=timeout,
        trust=trust,
    )
    with listening() as listener:
        report = run(path, request, listener)
    if file is not None:
        file.parent.mkdir(exist_ok=True)
        kinds = profile_files(file.parent)
        write_output(file, to_json(report, indent=None), kinds[file])
    write_json(json, report, indent=None)
    show(profile_summary(report, verbose=is_verbose()), err=takes_stdout(json))
    show_notes(profile_notes(report), err=takes_stdout(json))
    if file is not None and with_trace:
        if any(layer.ms for engine in report.engines for layer in engine.layers):
            place = file.with_name(TRACE_FILE)
            write_output(place, trace(report), kinds[place])
        else:
            note(f"no {TRACE_FILE}: nothing was timed")
