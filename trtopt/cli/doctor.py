"""`trtopt doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtopt.cli.options.outputs import JsonOutput, Output, json_option, takes_stdout, write_json

if TYPE_CHECKING:
    from trtopt.files.outputs import Kind


def bundle_file(path: Path) -> Mapping[Path, Kind]:
    """The zip of a bug report."""
    from trtopt.workflows.doctor import BUNDLE

    return {path: BUNDLE}


@click.command()
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(exists=True, path_type=Path))
@json_option("trtopt.doctor", "the findings")
@click.option(
    "--bundle",
    type=Output(bundle_file),
    metavar="FILE.zip",
    help="Pack the data for a bug report, with the build folder DIR; read it before you send it.",
)
def doctor(folder: Path | None, json: JsonOutput | None, bundle: Path | None) -> None:
    """Show what is installed, which commands work here and what to install for the others.

    With --bundle all of that is packed, with the versions of all packages, the names (never the values) of
    environment variables and the manifest, logs and layers of DIR. The home folder, the names of user and
    host and apparent secrets of the environment are removed from every file.
    """
    from trtopt.cli.console import say, say_wrapped
    from trtopt.errors import UsageError
    from trtopt.report.doctor import doctor_lines
    from trtopt.workflows.doctor import examine, write_bundle

    if folder is not None and bundle is None:
        raise UsageError(f"{folder}: a folder is packed only with --bundle", "add --bundle FILE.zip")
    findings = examine()
    write_json(json, findings)
    if bundle is None and not takes_stdout(json):
        say_wrapped(*doctor_lines(findings))
    if bundle is not None:
        for name in write_bundle(bundle, findings, folder):
            say(f"trtopt: packed {name}", err=True)
