"""`trtopt report`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtopt.cli.options.outputs import output_option

if TYPE_CHECKING:
    from trtopt.files.outputs import Kind
    from trtopt.report.html.page import Page


def page_file(path: Path) -> Mapping[Path, Kind]:
    """A page."""
    from trtopt.workflows.report import PAGE

    return {path: PAGE}


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, path_type=Path))
@click.argument("other", metavar="[DIR_B]", required=False, type=click.Path(exists=True, path_type=Path))
@output_option(
    "FILE", "HTML file to write [default: DIR.html next to DIR; of two, A-and-B.html next to A].", page_file
)
def report(folder: Path, other: Path | None, output: Path | None) -> None:
    """Write the contents of DIR as one HTML page that needs no network.

    DIR holds what `trtopt build -o DIR`, `trtopt bench --json DIR/result.json` and `trtopt profile -o DIR`
    write, all of it or some; or it is a sweep's folder. With a second folder the page shows both side by
    side, DIR_B against the baseline DIR.
    """
    from trtopt.errors import UsageError
    from trtopt.report.html.folder import report_page
    from trtopt.report.html.pair import pair_page
    from trtopt.report.html.sweep import sweep_page
    from trtopt.workflows.provenance import command_line
    from trtopt.workflows.report import collect, default_output, differences_of
    from trtopt.workflows.sweep.folder import is_sweep, read_sweep

    def page() -> Page:
        argv = command_line()
        if other is None:
            return (
                sweep_page(read_sweep(folder), argv)
                if is_sweep(folder)
                else report_page(collect(folder), argv)
            )
        if is_sweep(folder) or is_sweep(other):
            raise UsageError(
                "a sweep's folder cannot be shown side by side with another",
                "give two build folders, or one of the sweep's folders builds/…",
            )
        a, b = collect(folder), collect(other)
        return pair_page(a, b, differences_of(a, b), argv)

    write_page(page, output or default_output(folder, other))


def write_build_page(folder: Path, file: Path) -> None:
    """The page of a build just made: what an earlier build left in the folder is not shown."""
    from trtopt.report.html.folder import report_page
    from trtopt.workflows.provenance import command_line
    from trtopt.workflows.report import collect

    write_page(lambda: report_page(collect(folder, leave_out_others=True), command_line()), file)


def write_page(page: Callable[[], Page], file: Path) -> None:
    """Make a page and write it to a file, whose name is shown."""
    from trtopt.cli.console import say
    from trtopt.cli.progress import phases
    from trtopt.files.outputs import check_output, write_output
    from trtopt.report.html.page import page_of, plotting_library
    from trtopt.version import __version__
    from trtopt.workflows.provenance import now
    from trtopt.workflows.report import PAGE

    check_output(file, PAGE)
    with phases(f"writing {file.name}"):
        text = page_of(page(), plotting_library(), f"trtopt {__version__}, {now()}")
        write_output(file, text.encode(), PAGE)
    say(f"trtopt: written: {file}", err=True)
