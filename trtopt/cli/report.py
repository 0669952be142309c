"""`trtopt report`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="HTML file to write [default: DIR.html]."
)
def report(folder: Path, output: Path | None) -> None:
    """Write the contents of DIR as one HTML page that needs no network.

    DIR holds what `trtopt build -o DIR`, `trtopt bench --json DIR/result.json` and `trtopt profile -o DIR`
    write, all of it or some; or it is a sweep's folder. The page lists missing parts with the commands that
    create them.
    """
    from trtopt.cli.console import say
    from trtopt.files.atomic import write_atomically
    from trtopt.files.writable import check_writable
    from trtopt.report.html.library import plotting_library
    from trtopt.report.html.page import page, page_of
    from trtopt.report.html.provenance import typed
    from trtopt.report.html.sweep import sweep_sections, sweep_title
    from trtopt.version import __version__
    from trtopt.workflows.invocation import command_line, now
    from trtopt.workflows.report import collect
    from trtopt.workflows.sweep.folder import is_sweep, read_sweep

    output = output or Path(f"{folder.resolve().name}.html")
    check_writable(output)
    made = f"trtopt {__version__}, {now()}: {typed(command_line())}"
    if is_sweep(folder):
        swept = read_sweep(folder)
        text = page_of(sweep_title(swept), sweep_sections(swept), plotting_library(), made)
    else:
        collected = collect(folder)
        text = page(collected, plotting_library(), made)
    write_atomically(output, text.encode())
    say(f"trtopt: {output}", err=True)
