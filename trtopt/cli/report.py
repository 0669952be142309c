"""`trtopt report`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="The HTML file to write."
)
def report(folder: Path, output: Path) -> None:
    """Write all that DIR holds as one HTML page that needs no network.

    DIR holds what `trtopt build -o DIR`, `trtopt bench --json DIR/result.json` and `trtopt profile -o DIR`
    leave, all of it or some. What is missing is said on the page, with the command that makes it.
    """
    from trtopt.pipeline.build import now
    from trtopt.pipeline.collect import collect
    from trtopt.report.html.library import plotting_library
    from trtopt.report.html.page import page
    from trtopt.version import __version__
    from trtopt.workspace import check_writable, write_atomically

    check_writable(output)
    found = collect(folder)
    library = plotting_library()
    write_atomically(output, page(found, library, f"trtopt {__version__}, {now()}").encode())
    click.echo(f"trtopt: {output}", err=True)
