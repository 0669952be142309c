"""MODEL, an ONNX file, for every command that reads one."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import click


class OnnxFile(click.Path):
    """An existing file; the error of another path names the ONNX file that may have been meant."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.Path.convert`."""
        path = Path(value)
        if path.is_dir():
            inside = sorted(file.name for file in path.glob("*.onnx"))
            such = f", such as {path / inside[0]}" if inside else ""
            self.fail(f"{path} is a folder: give an ONNX file{such}.", param, ctx)
        if not path.exists():
            known = {file.stem: file for file in path.parent.glob("*.onnx")}
            near = difflib.get_close_matches(path.stem, known, n=1)  # the suffix alone makes no likeness
            meant = f" Did you mean {known[near[0]]}?" if near else ""
            self.fail(f"File {str(path)!r} does not exist.{meant}", param, ctx)
        return super().convert(value, param, ctx)
