"""The `trtopt` command: imports subcommands on demand, so that `--help` and completion are quick."""

from __future__ import annotations

import codecs
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
from trtopt.printable import spelled_out, visible_lines
from trtopt.version import __version__

COMMANDS = {
    "models": "List the model collection, or show the details of one model.",
    "export": "Export a PyTorch model to ONNX and compare the file with PyTorch.",
    "rewrite": "Rewrite an ONNX file so that TensorRT fuses it better, and verify the result.",
    "lint": "Show what slows a model down on TensorRT, and what to do about it.",
    "cast": "Write FP16 or BF16 into an ONNX file where that is safe, and show what stays FP32.",
    "quantize": "Quantise an ONNX file to INT8, FP8 or INT4: place Q/DQ by rule, calibrate on data.",
    "check": "Compare a model or its engines with a reference model: cosine, SQNR, top-1, task.",
    "bisect": "Find the fewest nodes to keep in higher precision to meet an accuracy bound.",
    "build": "Build one serialized engine per batch size from an ONNX file.",
    "bench": "Measure latency and throughput of engines or of an ONNX file.",
    "profile": "Profile engines: where the time goes, in which types, what fused and what did not.",
    "compare": "Compare results, engines, recipes or contracts: faster, slower, same.",
    "sweep": "Build and measure a model at many batch sizes and precisions; find the best.",
    "plan": "Choose engines, workers and delay for a latency under a load, by simulation.",
    "deploy": "Write a plan as a model for a server: Triton.",
    "report": "Write builds, measurements and profiles of a folder as one HTML page.",
    "verify": "Check a build folder's hashes and signature; rebuild damaged engines.",
    "sign": "Sign a build folder with an Ed25519 key, so that others can check its origin.",
    "cache": "Manage the timing caches that builds share.",
    "doctor": "Show what is installed and which commands work here.",
}


class LateGroup(click.Group):
    """A group that imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the usual order of work."""
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
        refused = UsageError(  # libraries, records and worker processes accept only text
            f"{error.object!r}: has a name that is not UTF-8", "rename the file or folder"
        )
        _fail(_described(refused))
        status = refused.exit_code
    except BrokenPipeError:  # the reader of the output has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    return status if isinstance(status, int) else 0


def _described(error: TrtoptError) -> str:
    """The error's message; quoted text cannot forge a line."""
    remedy = f"\n  → {visible_lines(error.remedy)}" if error.remedy else ""
    return visible_lines(error.problem) + remedy


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
    raise SystemExit(BY_SIGNAL + number)
