"""Options that name what a command writes: what is there, and what the command reads, is checked first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from trtopt.files.outputs import Kind

Writes = Callable[[Path], "Mapping[Path, Kind]"]


class Output(click.Path):
    """A path to write to; `writes` lists its files and their kinds. Folders are checked as they are made."""

    def __init__(self, writes: Writes = lambda path: {}) -> None:
        super().__init__(path_type=Path)
        self.writes = writes


def output_option(
    metavar: Literal["FILE", "FOLDER"],
    text: str,
    writes: Writes = lambda path: {},
    *,
    name: str = "output",
    required: bool = False,
) -> Callable[[Callable[..., Any]], Any]:
    """The option `-o`, whose path the command gets as `name`."""
    kind = Output(writes)
    return click.option("-o", "--output", name, type=kind, metavar=metavar, required=required, help=text)


def model_file(path: Path) -> Mapping[Path, Kind]:
    """An ONNX file; its weights get a name that is free."""
    from trtopt.onnxio.model_file import MODEL

    return {path: MODEL}


def json_file(schema: str) -> Writes:
    """A file of JSON that begins with this schema."""

    def writes(path: Path) -> Mapping[Path, Kind]:
        from trtopt.files.outputs import json_kind

        return {path: json_kind(schema)}

    return writes


def quantised_file(path: Path) -> Mapping[Path, Kind]:
    """An ONNX file with its calibration table."""
    from trtopt.precision.calibrate import TABLE, table_beside

    return {**model_file(path), table_beside(path): TABLE}
