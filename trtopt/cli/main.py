"""The `trtopt` command: finds its subcommands late, so that `--help` and completion stay quick."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from io import TextIOWrapper
from types import FrameType

import click

from trtopt.cli.exit_codes import BY_SIGNAL, INTERRUPTED
from trtopt.cli.options.logging import with_log_options
from trtopt.errors import TrtoptError, UsageError
from trtopt.printable import visible_lines
from trtopt.version import __version__

COMMANDS = {
    "models": "List the model collection, or tell all about one of it.",
    "export": "Export a PyTorch model to ONNX and compare the file with PyTorch.",
    "rewrite": "Rewrite an ONNX file so that TensorRT fuses it better, and prove it equal.",
    "lint": "Advise what in a model costs speed on TensorRT, and what to do about it.",
    "cast": "Write FP16 or BF16 into an ONNX file where that is safe, and tell what stays FP32.",
    "quantize": "Quantise an ONNX file to INT8, FP8 or INT4: place Q/DQ by rule, calibrate on data.",
    "check": "Compare a model or its engines with the model that is right: cosine, SQNR, top-1, task.",
    "bisect": "Find the fewest nodes to keep in higher precision for an accuracy bound to be met.",
    "build": "Build one serialized engine per batch size from an ONNX file.",
    "bench": "Measure latency and throughput of engines or of an ONNX file.",
    "profile": "Look inside engines: where the time goes, in which types, what fused and what did not.",
    "compare": "Judge results, engines, recipes or contracts against each other: faster, slower, same.",
    "sweep": "Build and measure a model at many batch sizes and precisions; find what is best.",
    "plan": "Choose engines, workers and delay for a latency under a load, by simulation.",
    "deploy": "Write a plan as a model of a server's: Triton.",
    "report": "Write builds, measurements and profiles of a folder as one HTML page.",
    "verify": "Hash a build folder's files again, check its signature, repair what can be built again.",
    "sign": "Sign a build folder with an Ed25519 key, so that others can check where it is from.",
    "cache": "Look after the timing caches that builds share.",
    "doctor": "Tell what this machine has and which commands work here.",
}


class LateGroup(click.Group):
    """A group whose commands are imported when one is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the order of a working day."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import `trtopt.cli.NAME` and take its NAME."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"trtopt.cli.{cmd_name}"), cmd_name)
        return with_log_options(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LateGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="trtopt")
def cli() -> None:
    """From a trained model to the fastest TensorRT engine its owner can trust."""


def main() -> None:
    """Run the command line; a user's mistake gives a message and an exit code, never a traceback."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as on standard error: Latin-1 has no arrows
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # nohup ignores it
        signal.signal(signal.SIGHUP, _terminate)
    try:
        status = _status()
    except SystemExit as ended:  # `_terminate`, or code of the user's, which may say why
        _log("info", ended.code if isinstance(ended.code, str) else f"ended with exit code {ended.code or 0}")
        raise
    except Exception:
        _log("error", traceback.format_exc())
        raise
    _log("info", f"ended with exit code {status}")
    sys.exit(status)


def _status() -> int:
    """Run the command; its exit code."""
    try:
        status = cli.main(prog_name="trtopt", standalone_mode=False)
    except click.exceptions.Exit as error:
        status = error.exit_code
    except click.ClickException as error:
        error.show()
        _log("error", error.format_message())
        status = error.exit_code
    except TrtoptError as error:
        _fail(_described(error))
        status = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted; nothing unfinished is left behind")
        status = INTERRUPTED
    except UnicodeEncodeError as error:
        if error.reason != "surrogates not allowed":
            raise
        refused = UsageError(  # libraries, records and worker processes take text only
            f"{error.object!r}: has a name that is not UTF-8", "rename the file or folder"
        )
        _fail(_described(refused))
        status = refused.exit_code
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    return status if isinstance(status, int) else 0


def _described(error: TrtoptError) -> str:
    """The error's message, in which nothing that it quotes forges a line."""
    remedy = f"\n  → {visible_lines(error.remedy)}" if error.remedy else ""
    return visible_lines(error.problem) + remedy


def _fail(text: str) -> None:
    click.echo(f"trtopt: {text}", err=True)
    _log("error", text)


def _log(severity: str, text: str) -> None:
    """Log what has been said; there is no log before the options of a command have been read."""
    logs = sys.modules.get("trtopt.logs")
    if logs is not None:
        logs.LOG.log(logs.SEVERITIES[severity], "%s", text)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Leave through every `finally`, as Ctrl-C does."""
    raise SystemExit(BY_SIGNAL + number)
