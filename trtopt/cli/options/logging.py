"""Logging options, which every command has."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from trtopt.version import __version__

VERBOSITY = "trtopt.verbosity"
"""The key in a context's `meta`."""
QUIET = -1


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
    if path is not None:
        from trtopt.logs import LOG, write_to

        write_to(path)
        LOG.info("trtopt %s: %s", __version__, shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]))


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
        type=click.Path(path_type=Path),
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
    else:
        command.params += [option for option in _OPTIONS if option not in command.params]
    return command
