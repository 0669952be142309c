"""What a command writes: files and folders, and the result as JSON, `--json FILE|-`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from trtopt.cli.options.completion import files

if TYPE_CHECKING:
    from trtopt.files.outputs import Kind
    from trtopt.records import Record

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
    required: bool = False,
) -> Callable[[Callable[..., Any]], Any]:
    """The option `-o`, whose path the command gets as `output`."""
    kind = Output(writes)
    return click.option("-o", "--output", type=kind, metavar=metavar, required=required, help=text)


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


# ── the result as JSON ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class JsonOutput:
    """Where the JSON goes, without a file to standard output, and what it is."""

    file: Path | None
    schema: str

    def write(self, text: bytes) -> None:
        """Write JSON that ends with a line's end."""
        from trtopt.files.outputs import json_kind, write_output

        if self.file is None:
            click.echo(text, nl=False)
        else:
            write_output(self.file, text, json_kind(self.schema))


def takes_stdout(output: JsonOutput | None) -> bool:
    """Whether the JSON is requested, and on standard output."""
    return output is not None and output.file is None


def write_json(output: JsonOutput | None, *records: Record, indent: int | None = 2) -> None:
    """Write the record, if JSON is requested; of several each into a line of its own."""
    from trtopt.records import to_json

    if output is not None:
        own = indent if len(records) == 1 else None
        output.write(b"".join(to_json(record, indent=own) for record in records))


def json_option(schema: str, what: str = "the report") -> Callable[[Callable[..., Any]], Any]:
    """The option; the command gets `json`, a `JsonOutput` or None. The JSON begins with this schema."""
    return click.option(
        "--json",
        is_flag=False,
        flag_value="",  # without a value the message says what to write
        callback=functools.partial(_output, schema),
        metavar="FILE|-",
        shell_complete=files,
        help=f"Write {what} as JSON to FILE, or to standard output.",
    )


def _output(
    schema: str, context: click.Context, option: click.Parameter, value: str | None
) -> JsonOutput | None:
    if value is None:
        return None
    if not value:
        raise click.BadParameter("needs a file, or - for standard output: --json -", context, option)
    if value == "-":
        return JsonOutput(None, schema)
    file = Path(value)
    if file.suffix == ".onnx":  # as it follows the flag in command lines of earlier versions
        raise click.BadParameter(
            f"{value} is a model: give a file to write, or - for standard output", context, option
        )
    return JsonOutput(file, schema)
