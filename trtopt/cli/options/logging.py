"""Logging options, which every command has."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtopt.cli.options.outputs import Output
from trtopt.version import __version__

if TYPE_CHECKING:
    from trtopt.files.outputs import Kind

VERBOSITY = "trtopt.verbosity"
"""The key in a context's `meta`."""
QUIET = -1
LOG_FILE = "trtopt.log_file"
"""The key in a context's `meta`."""
_LOG_BEGINS = b'{"time":"'


def _verbose(context: click.Context, option: click.Parameter, verbosity: int) -> None:
    if verbosity or VERBOSITY not in context.meta:
        _show(context, verbosity)


def _quiet(context: click.Context, option: click.Parameter, quiet: bool) -> None:
    if quiet:
        _show(context, QUIET)


def _show(context: click.Context, verbosity: int) -> None:
    from trtopt.logs import show

    if verbosity * context.meta.get(VERBOSITY, 0) < 0:
        raise click.UsageError("--quiet and --verbose contradict each other: omit one of them")
    context.meta[VERBOSITY] = verbosity
    show(verbosity)


def _log_file(context: click.Context, option: click.Parameter, path: Path | None) -> None:
    context.meta[LOG_FILE] = path


def open_log(context: click.Context) -> None:
    """Begin the log, if one is requested."""
    if (path := context.meta.get(LOG_FILE)) is not None:
        from trtopt.logs import LOG, write_to

        write_to(path)
        LOG.info("trtopt %s: %s", __version__, shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]))


def _logs(path: Path) -> Mapping[Path, Kind]:
    """A log; what is no file, as a pipe, only passes it on."""
    from trtopt.files.outputs import kind_beginning

    is_one = path.is_file() or not path.exists()
    return {path: kind_beginning("a log of trtopt", _LOG_BEGINS)} if is_one else {}


_OPTIONS = (
    click.Option(
        ["--verbose", "-v"],
        count=True,
        expose_value=False,
        callback=_verbose,
        help="Print all details, and log to standard error with TensorRT's messages; -vv: verbose ones too.",
    ),
    click.Option(
        ["--quiet", "-q"],
        is_flag=True,
        expose_value=False,
        callback=_quiet,
        help="Print only the result: no notes and no progress.",
    ),
    click.Option(
        ["--log-file"],
        type=Output(_logs),
        metavar="FILE",
        expose_value=False,
        callback=_log_file,
        help="Append the log to FILE, as JSON lines.",
    ),
)


def with_log_options(command: click.Command) -> click.Command:
    """The command, or every command of the group, with these options."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            with_log_options(inner)
    elif _OPTIONS[0] not in command.params:
        command.params += _OPTIONS
    return command
