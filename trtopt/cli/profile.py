"""`trtopt profile`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtopt.cli.declared import command
from trtopt.cli.options.outputs import JsonOutput, json_option, output_option, takes_stdout, write_json
from trtopt.requests.measure import ProfileRequest

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


@command(ProfileRequest, has_sections=True)
@output_option("FOLDER", "Folder to write profile.json into.", profile_files)
@click.option(
    "--trace", "with_trace", is_flag=True, help="Write trace.json for Perfetto next to profile.json."
)
@json_option("trtopt.profile", "the profile")
def profile(request: ProfileRequest, output: Path | None, with_trace: bool, json: JsonOutput | None) -> None:
    """Profile PATH: a build folder, one engine of it, or an ONNX file.

    Shows where the time goes, layer by layer, with the names of the ONNX file; which types ran; what fused,
    what did not and why; and how far each layer is from the device's limits.
    """
    from trtopt.cli.console import note, show_view
    from trtopt.cli.progress import listening
    from trtopt.errors import UsageError
    from trtopt.files.outputs import write_output
    from trtopt.records import to_json
    from trtopt.report.profile import profile_view
    from trtopt.report.trace import trace
    from trtopt.workflows.profile.profile import PROFILE_FILE, TRACE_FILE, profile as run

    if with_trace and output is None:
        raise UsageError("--trace: no folder to write trace.json into", "name one with -o")
    file = output / PROFILE_FILE if output is not None else None
    with listening() as listener:
        report = run(request, listener)
    if file is not None:
        file.parent.mkdir(exist_ok=True)
        kinds = profile_files(file.parent)
        write_output(file, to_json(report, indent=None), kinds[file])
    write_json(json, report, indent=None)
    show_view(profile_view(report), err=takes_stdout(json))
    if file is not None and with_trace:
        if any(layer.ms for engine in report.engines for layer in engine.layers):
            place = file.with_name(TRACE_FILE)
            write_output(place, trace(report), kinds[place])
        else:
            note(f"no {TRACE_FILE}: nothing was timed")
