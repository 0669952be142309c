"""`trtopt trtexec`: a command line of trtexec, translated and run."""

from __future__ import annotations

import os
import re

import click

from trtopt.cli.nested import run_command
from trtopt.cli.trtexec_options import VERSIONS
from trtopt.errors import TrtoptError


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="ARGS…")
@click.option("--print", "only_print", is_flag=True, help="Print trtopt's command lines and exit.")
@click.option(
    "--from",
    "written_for",
    type=click.Choice(VERSIONS),
    help="The version of trtexec that ARGS were written for [default: inferred from them].",
)
@click.option("--data", metavar="DATA", help="Samples: to calibrate on, and as inputs.")
@click.pass_context
def trtexec(
    context: click.Context,
    arguments: tuple[str, ...],
    only_print: bool,
    written_for: str | None,
    data: str | None,
) -> None:
    """Translate ARGS, a command line of trtexec 8.6, 10 or 11, and run what it means in trtopt.

    `trtopt trtexec --onnx=model.onnx --fp16 --saveEngine=model.engine` builds and measures. Options that have
    no effect here are listed; those that cannot be translated are refused, with what to do instead.
    """
    from trtopt.cli.console import say
    from trtopt.cli.trtexec_translation import translate

    found = translate(arguments, written_for=written_for, data=data)
    for note in found.notes:
        say(f"trtopt: {note}", err=True)
    if only_print:
        say(*found.lines)
        return
    os.environ.update(found.environment)
    for command, line in zip(found.commands, found.lines, strict=True):
        say(f"trtopt: {line}", err=True)
        try:
            run_command(context, command)
        except TrtoptError as error:
            if re.search(r"(?<!\S)-{1,2}[a-z]", error.remedy):
                error.remedy += "; options of trtopt go to the command above, not to `trtopt trtexec`"
            raise
