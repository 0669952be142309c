"""`trtopt verify`."""

from __future__ import annotations

from pathlib import Path

import click

from trtopt.cli.options.completion import files
from trtopt.cli.options.outputs import JsonOutput, json_option, takes_stdout, write_json


@click.command()
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--trust",
    "trusted",
    multiple=True,
    metavar="ENGINE",
    shell_complete=files,
    help="Trust an engine that has changed: native code.",
)
@json_option("trtopt.verify", "the findings")
def verify(
    folder: Path,
    trusted: tuple[str, ...],
    json: JsonOutput | None,
) -> None:
    """Hash every file of the build FOLDER again.

    Exits with 1 if something is missing or has changed.
    """
    from trtopt.cli.console import say
    from trtopt.report.build import check_lines
    from trtopt.workflows.build.folder import check_folder, trust

    check = trust(folder, trusted) if trusted else check_folder(folder)
    write_json(json, check)
    if not takes_stdout(json):
        say(*check_lines(str(folder), check))
    if not check.is_whole:
        click.get_current_context().exit(1)
