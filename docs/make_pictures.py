"""Make the terminal pictures of the pages: python docs/make_pictures.py

Each picture is what the commands print now, in colour, as an SVG that rich draws.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
DIGITS = "models/digits/digits.onnx"
DATA = "models/digits/heldout.npz"
COLUMNS = 100

PICTURES = {
    "bench.svg": (
        f"trtopt build {DIGITS} -o engines --batch 1,8,32",
        f"trtopt bench engines --data {DATA} --json bench.json",
    ),
    "check.svg": (
        f"trtopt cast {DIGITS} -o half.onnx --precision fp16 --data {DATA}",
        f"trtopt check half.onnx --against {DIGITS} --data {DATA} --min-top1 0.99",
    ),
}
"""The pictures and the commands that they show, run in one folder."""


def printed(command: str, folder: Path) -> str:
    """What a command prints on a terminal in colour, without its progress.

    Raises:
        CalledProcessError: the command failed.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    on_terminal = {"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "TERM": "xterm-256color", "PATH": path}
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=os.environ | on_terminal,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # the progress display
        check=True,
    )
    return done.stdout


def draw(commands: tuple[str, ...], folder: Path) -> str:
    """The commands and their output as an SVG."""
    console = Console(
        record=True, width=COLUMNS, file=StringIO(), force_terminal=True, color_system="truecolor"
    )
    for command in commands:
        console.print(Text(f"$ {command}", style="bold"))
        console.print(Text.from_ansi(printed(command, folder)), highlight=False)
    return console.export_svg(title="trtopt", unique_id="terminal")


def main() -> None:
    """Draw all pictures into docs/images."""
    IMAGES.mkdir(exist_ok=True)
    for name, commands in PICTURES.items():
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "models").symlink_to(ROOT / "models")
            os.environ["TRTOPT_CACHE_DIR"] = str(Path(folder) / "cache")
            (IMAGES / name).write_text(draw(commands, Path(folder)), "utf-8")


if __name__ == "__main__":
    main()
