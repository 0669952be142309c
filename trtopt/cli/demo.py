"""`trtopt demo`."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import click

from trtopt.cli.nested import run_command
from trtopt.cli.options.outputs import output_option

_NAME = "trtopt-demo"
_SHORT = ("--duration", "0.5")


@click.command()
@output_option(
    "FOLDER", f"Folder to create [default: {_NAME} in the current folder, or {_NAME}-2 and so on]."
)
@click.pass_context
def demo(context: click.Context, output: Path | None) -> None:
    """Build engines of a small trained model that ships with trtopt, measure them and write a report.

    Uses what is installed: TensorRT or TensorRT-RTX to build, a GPU or ONNX Runtime to measure.
    """
    from trtopt.cli.console import say
    from trtopt.cli.optimize import write_report
    from trtopt.errors import OutputError
    from trtopt.files.toml import shipped_folder

    folder = output if output is not None else _free_folder(Path(_NAME))
    if folder.exists():
        raise OutputError(f"{folder}: exists", "name a new folder with --output")
    model = shipped_folder("models") / "digits" / "digits.onnx"
    samples = model.with_name("heldout.npz")
    _build(context, [str(model), "-o", str(folder), "--batch", "1,8,32"])
    result = ["--json", str(folder / "result.json")]
    run_command(
        context, ["bench", str(folder), "--backend", "auto", *_SHORT, "--input", str(samples), *result]
    )
    write_report(folder)
    say(f"trtopt: the engines are in {folder}; next: trtopt optimize MODEL.onnx", err=True)


def _build(context: click.Context, arguments: list[str]) -> None:
    """Build with TensorRT, or for ONNX Runtime where no TensorRT is installed."""
    from trtopt.cli.console import say
    from trtopt.errors import BackendMissingError

    try:
        run_command(context, ["build", *arguments])
    except BackendMissingError as error:
        say(f"trtopt: {error.problem}: the demo runs on ONNX Runtime instead", err=True)
        run_command(context, ["build", *arguments, "--backend", "onnxruntime"])


def _free_folder(first: Path) -> Path:
    """The first of `trtopt-demo`, `trtopt-demo-2` and so on that does not exist."""
    names = (first if number == 1 else first.with_name(f"{first.name}-{number}") for number in count(1))
    return next(name for name in names if not name.exists())
