"""The `trtopt` command: its sections, and how it ends."""

from __future__ import annotations

import codecs
import errno
import os
import signal
import sys
import traceback
from io import TextIOWrapper
from types import FrameType, ModuleType

import click

from trtopt.cli import engines, manage, models, serve
from trtopt.cli.command import WORDS
from trtopt.errors import OutputError, TrtoptError, UsageError
from trtopt.printable import spelled_out, visible_lines
from trtopt.version import __version__

SECTIONS = {"Optimise": engines, "Inspect and edit models": models, "Serve": serve, "Manage": manage}
"""The sections of the help; each command of a module stands in its section, in the module's order."""
INTERRUPTED = 130
BY_SIGNAL = 128
"""Exit codes; the signal's number is added to this one."""


def commands_in(module: ModuleType) -> dict[str, click.Command]:
    """The commands of a module; those of a group belong to the group."""
    found = [one for one in vars(module).values() if isinstance(one, click.Command)]
    inner = [own for one in found if isinstance(one, click.Group) for own in one.commands.values()]
    return {str(one.name): one for one in found if one not in inner}


COMMANDS = {name: one for module in SECTIONS.values() for name, one in commands_in(module).items()}


class Commands(click.Group):
    """All commands, by section; `help COMMAND` is `COMMAND --help`, `version` is `--version`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Command.parse_args`."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        if args[:1] == ["version"]:
            args = ["--version"]
        ctx.meta[WORDS] = [*args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the help."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that `args` begin with; a mistyped one is an error with the nearest."""
        if args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            from trtopt.cli.corrections import unknown_command

            raise unknown_command(ctx, self.commands)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """By section, each with the first sentence of its own help."""
        for title, module in SECTIONS.items():
            with formatter.section(title):
                rows = [
                    (name, one.get_short_help_str(limit=200)) for name, one in commands_in(module).items()
                ]
                formatter.write_dl([(name, f"{text.removesuffix('.')}.") for name, text in rows])


@click.group(
    cls=Commands,
    commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="First steps: trtopt demo needs no GPU; trtopt doctor shows what to install; trtopt COMMAND -h "
    "lists a command's options.",
)
@click.version_option(__version__, "-V", "--version", prog_name="trtopt")
def cli() -> None:
    """From a trained model to the fastest trustworthy TensorRT engine."""


def main() -> None:
    """Run the command line; a user's mistake gives a message and an exit code, never a traceback."""
    codecs.register_error("spelled-out", spelled_out)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="spelled-out")  # Latin-1 has no arrows
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # nohup ignores it
        signal.signal(signal.SIGHUP, _terminate)
    try:
        status = _status()
    except SystemExit as ended:  # raised by `_terminate` or by the user's code, perhaps with a reason
        _log("info", ended.code if isinstance(ended.code, str) else f"ended with exit code {ended.code or 0}")
        raise
    except Exception:
        _log("error", traceback.format_exc())
        raise
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if callable(signal.getsignal(number)):  # another one would be a traceback while Python ends
                signal.signal(number, signal.SIG_DFL)
    _log("info", f"ended with exit code {status}")
    sys.exit(status)


def _status() -> int:
    """Run the command; its exit code."""
    try:
        status = cli.main(prog_name="trtopt", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()  # what cannot be written is reported here, not when Python ends
        return status if isinstance(status, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        if isinstance(error, click.UsageError):
            from trtopt.cli.corrections import corrected

            error = corrected(error)
        error.show()
        _log("error", error.format_message())
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted; nothing unfinished is left behind")
        return INTERRUPTED
    except (TrtoptError, MemoryError, UnicodeEncodeError, OSError, RuntimeError) as error:
        if isinstance(error, BrokenPipeError):  # the reader of the output has closed it, as `head` does
            _drop_output()
            return _code_of_signal(error) or 1
        problem = _problem(error)
        remedy = f"\n  → {visible_lines(problem.remedy)}" if problem.remedy else ""
        _fail(visible_lines(problem.problem) + remedy)  # quoted text cannot forge a line
        return _code_of_signal(error) or problem.exit_code


class _Terminated(SystemExit):
    """A signal ended the command; unlike the `SystemExit` of a user's own code."""

    def __init__(self, number: int) -> None:
        super().__init__(BY_SIGNAL + number)
        self.number = number


def _code_of_signal(error: BaseException | None) -> int | None:
    """The exit code for the signal that `error` came after, while everything was being closed."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return INTERRUPTED
        if isinstance(error, _Terminated):
            return BY_SIGNAL + error.number
        error = error.__context__
    return None


def _drop_output() -> None:
    """Let what is still to be printed go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_WRONG_PATH = {
    errno.EACCES: "check the permissions of the file and of the folders above it",
    errno.EPERM: "check the permissions of the file and of the folders above it",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.ELOOP: "name the file itself: the links lead in a circle",
    errno.ENOTDIR: "check the path: one of its folders is a file",
    errno.ENOENT: "check the path",
}
"""What to do about a path that the operating system refuses, wherever a command comes upon it."""


def _problem(error: Exception) -> TrtoptError:
    """What a command ended with, as a user's mistake or as a failure."""
    if isinstance(error, TrtoptError):
        return error
    if isinstance(error, MemoryError):
        return TrtoptError(
            f"out of memory: {error}", "choose a smaller --batch or --shape, or a host with more memory"
        )
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        return UsageError(  # libraries, records and worker processes accept only text
            f"{error.object!r}: has a name that is not UTF-8", "rename the file or folder"
        )
    circle = error.__context__ if isinstance(error, RuntimeError) else None
    if isinstance(circle, OSError) and circle.errno == errno.ELOOP:  # as `Path.resolve` has it before 3.13
        error = circle
    if not isinstance(error, OSError):
        raise error
    _log("verbose", traceback.format_exc())
    reason = error.strerror or str(error)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return TrtoptError(reason, "raise the limit: ulimit -n 4096")
    if error.filename is None and error.errno == errno.ENOENT:
        return UsageError("the current folder was removed or replaced", 'enter it again: cd "$PWD"')
    if error.filename is None:
        _drop_output()
        return OutputError(f"standard output or a pipe: {reason}", "free some space, or send it elsewhere")
    if error.errno in _WRONG_PATH:
        return UsageError(f"{error.filename}: {reason}", _WRONG_PATH[error.errno])
    return OutputError(f"{error.filename}: {reason}", "check the disk and the path, or choose another place")


def _fail(text: str) -> None:
    print(f"trtopt: {text}", file=sys.stderr)
    _log("error", text)


def _log(severity: str, text: str) -> None:
    """Log a message; there is no log before a command's options are parsed."""
    logs = sys.modules.get("trtopt.logs")
    if logs is not None:
        logs.LOG.log(logs.SEVERITIES[severity], "%s", text)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Exit through every `finally`, as Ctrl-C does."""
    raise _Terminated(number)
