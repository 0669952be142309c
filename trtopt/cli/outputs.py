"""What commands write: files, JSON, the log; how they end; and the check before they begin."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

import click

from trtopt.cli.parameters import NewPath
from trtopt.version import __version__

if TYPE_CHECKING:
    from trtopt.files.outputs import Kind
    from trtopt.records import Record
    from trtopt.report.view import GateRow

Writes = Callable[[Path], "Mapping[Path, Kind]"]


class Output(NewPath):
    """What to write to; `writes` lists its files and their kinds. Folders are checked as they are made."""

    def __init__(self, writes: Callable[[Any], Mapping[Path, Kind]] = lambda path: {}) -> None:
        super().__init__(path_type=Path)
        self.writes = writes


def file_of(kind: str) -> Writes:
    """A file of the kind that MODULE.NAME of trtopt is, which is imported when it is to be written."""
    module, _, name = kind.rpartition(".")
    return lambda path: {path: getattr(import_module(f"trtopt.{module}"), name)}


model_file = file_of("onnxio.model_file.MODEL")
"""An ONNX file; its weights get a name that is free."""


def quantized_file(path: Path) -> Mapping[Path, Kind]:
    """An ONNX file with its calibration table."""
    from trtopt.precision.calibrate import TABLE, table_beside

    return {**model_file(path), table_beside(path): TABLE}


# ── the result as JSON ────────────────────────────────────────────────────────────────────────────────────

_JSON, _LOG_FILE = "json", "log_file"
OWN = (_JSON, _LOG_FILE)
"""Values that commands are not given: what is shown is written there."""


@dataclass(frozen=True)
class JsonOutput:
    """Where the JSON goes, without a file to standard output, and what it is; unindented it is one line."""

    file: Path | None
    schema: str
    indent: int | None = 2
    stdout: IO[str] | None = field(default=None, compare=False)

    @property
    def kind(self) -> Kind:
        """What may be written over."""
        from trtopt.files.outputs import json_kind

        return json_kind(self.schema)

    def write(self, text: bytes) -> None:
        """Write JSON that ends with a line's end."""
        from trtopt.files.outputs import write_output

        if self.file is None:
            click.echo(text, self.stdout, nl=False)
        else:
            write_output(self.file, text, self.kind)


def requested_json() -> JsonOutput | None:
    """Where the JSON of the command that runs goes, if it is requested."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.params.get(_JSON)


def takes_stdout() -> bool:
    """Whether the JSON is requested, and on standard output."""
    output = requested_json()
    return output is not None and output.file is None


def write_json(*records: Record) -> None:
    """Write the record, if JSON is requested; of several each into a line of its own."""
    from trtopt.records import to_json

    if (output := requested_json()) is not None:
        indent = output.indent if len(records) == 1 else None
        output.write(b"".join(to_json(record, indent=indent) for record in records))


def json_option(
    schema: str, what: str = "the report", *, indent: int | None = 2
) -> Callable[[Callable[..., Any]], Any]:
    """The option, which `write_json` reads. The JSON begins with this schema."""
    return click.option(
        "--json",
        _JSON,
        is_flag=False,
        flag_value="",  # without a value the message says what to write
        type=_JsonType(schema, indent),
        metavar="FILE|-",
        help=f"Write {what} as JSON to FILE, or to standard output.",
    )


class _JsonType(Output):
    def __init__(self, schema: str, indent: int | None) -> None:
        super().__init__(lambda one: {} if one.file is None else {one.file: one.kind})
        self._schema, self._indent = schema, indent

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value or value.endswith(".onnx"):  # the model, where the flag is given no file
            what = f"{value} is a model: name" if value else "needs"
            self.fail(f"{what} a file to write, or - for standard output: --json -", param, ctx)
        if value != "-":
            return JsonOutput(Path(value), self._schema, self._indent)
        output = JsonOutput(None, self._schema, self._indent, sys.stdout)
        if ctx is not None and sys.stdout is not None:
            ctx.with_resource(redirect_stdout(sys.stderr))  # what code of the user's prints is no JSON
        return output


# ── what a gate writes for a CI, and its exit code ────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Export:
    """A file to write for a CI, and what may be written over."""

    path: Path
    content_of: Callable[[Sequence[GateRow]], bytes]
    kind: Kind

    def write(self, rows: Sequence[GateRow]) -> None:
        """Write what the gate says."""
        from trtopt.files.outputs import write_output

        write_output(self.path, self.content_of(rows), self.kind)


class _ExportType(Output):
    def __init__(self) -> None:
        super().__init__(lambda one: {one.path: one.kind})

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from trtopt.files.outputs import kind_beginning
        from trtopt.report.ci import FORMATS

        name, _, path = value.partition("=")
        if name not in FORMATS or not path:
            self.fail(f"{value!r}: expected KIND=FILE, where KIND is one of {', '.join(FORMATS)}", param, ctx)
        content_of, begins = FORMATS[name]
        return Export(Path(path), content_of, kind_beginning("of this format", *begins))


export_option = click.option(
    "--export",
    type=_ExportType(),
    multiple=True,
    metavar="KIND=FILE",
    help="Write the verdicts for a CI: junit, badge (of shields.io), github-action-benchmark or bencher.",
)
"""The command gets `export`, every `Export` that is requested."""

markdown_option = click.option("--markdown", is_flag=True, help="Print Markdown tables, for a pull request.")


@contextmanager
def gate(command: str, exports: Sequence[Export]) -> Iterator[None]:
    """Export what ends the block in place of a verdict: no file that can be written is left to pass."""
    try:
        yield
    except click.exceptions.Exit:
        raise
    except BaseException as error:
        from trtopt.errors import TrtoptError
        from trtopt.report.view import GateRow

        row = GateRow(f"trtopt {command}", "failed", getattr(error, "problem", "it was stopped"))
        for one in exports:
            with suppress(TrtoptError):
                one.write([row])
        raise


def end_gate(exports: Sequence[Export], rows: Sequence[GateRow]) -> NoReturn:
    """Export what the gate says, and end with the exit code that says the same."""
    for one in exports:
        one.write(rows)
    outcomes = {row.outcome for row in rows}
    code = NOT_MET if outcomes & {"slower", "wrong"} else 0 if outcomes == {"ok"} else NOT_SHOWN
    raise click.exceptions.Exit(code)


# ── exit codes, besides those of errors, which are in `trtopt.errors` ─────────────────────────────────────

NOT_MET = 3
"""The work is done, but a bound is not met, B is slower than A, lint has findings to fail on, or there is an
accuracy alarm (`--strict`)."""
UNTRUSTWORTHY = 4
"""Figures are not trustworthy (`--strict`)."""
NOT_SHOWN = 5
"""B is not SLOWER than A, but not shown to be within the limit either; or no parser has imported a model."""

strict_option = click.option(
    "--strict",
    is_flag=True,
    help="Exit with 3 on an accuracy WARNING: low SQNR or cosine, NaN, infinity.",
)


def check_alarms(alarms: Sequence[str], *, strict: bool) -> None:
    """End with exit code 3 if there are alarms and they are to count."""
    if strict and alarms:
        raise click.exceptions.Exit(NOT_MET)


# ── the log, an option of every command ───────────────────────────────────────────────────────────────────

VERBOSITY = "trtopt.verbosity"
"""The key in a context's `meta`."""
QUIET = -1
_LOG_BEGINS = b'{"time":"'


def _show(context: click.Context, verbosity: int) -> None:
    from trtopt.logs import show

    if not verbosity and VERBOSITY in context.meta:
        return
    if verbosity * context.meta.get(VERBOSITY, 0) < 0:
        raise click.UsageError("--quiet and --verbose contradict each other: omit one of them")
    context.meta[VERBOSITY] = verbosity
    show(verbosity)


def _logs(path: Path) -> Mapping[Path, Kind]:
    """A log; what is no file, as a pipe, only passes it on."""
    from trtopt.files.outputs import kind_beginning

    is_one = path.is_file() or not path.exists()
    return {path: kind_beginning("a log of trtopt", _LOG_BEGINS)} if is_one else {}


LOG_OPTIONS = (
    click.Option(
        ["--verbose", "-v"],
        count=True,
        expose_value=False,
        callback=lambda context, _, count: _show(context, count),
        help="Print all details, and log to standard error with TensorRT's messages; -vv: verbose ones too.",
    ),
    click.Option(
        ["--quiet", "-q"],
        is_flag=True,
        expose_value=False,
        callback=lambda context, _, is_quiet: _show(context, QUIET * is_quiet),
        help="Print only the result: no notes and no progress.",
    ),
    click.Option(
        ["--log-file", _LOG_FILE],
        type=Output(_logs),
        metavar="FILE",
        help="Append the log to FILE, as JSON lines.",
    ),
)


# ── the check of what is written, by what the parameters declare ──────────────────────────────────────────

_LONGEST = 4096


@contextmanager
def checked_outputs(context: click.Context) -> Iterator[None]:
    """Run a command only if nothing that it writes is what it reads, another's, or not trtopt's."""
    from trtopt.errors import OutputError, UsageError
    from trtopt.files.outputs import check_output, reading

    with reading(lambda: _files_read(context)):
        seen: set[Path] = set()
        for option, path, kind in _outputs(context):
            try:
                if path.resolve() in seen:
                    raise UsageError(f"{path}: is named twice to be written", "name another file")
                seen.add(path.resolve())
                check_output(path, kind)
            except (UsageError, OutputError) as error:
                raise type(error)(f"{option} {error.problem}", error.remedy) from None
        if (log := context.params[_LOG_FILE]) is not None:
            from trtopt.logs import LOG, write_to

            write_to(log)
            LOG.info("trtopt %s: %s", __version__, shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]))
        yield


def _outputs(context: click.Context) -> Iterator[tuple[str, Path, Kind]]:
    """The option, the file and its kind."""
    for parameter in context.command.params:
        if isinstance(parameter.type, Output):
            value = context.params[parameter.name or ""]
            for one in filter(None, value if isinstance(value, tuple) else (value,)):
                for path, kind in parameter.type.writes(one).items():
                    yield parameter.opts[0], path, kind


def _files_read(context: click.Context) -> Iterator[Path]:
    """The files that the command reads, models' weights and the parts of builds among them."""
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if not isinstance(parameter.type, Output) and parameter.type is not click.UNPROCESSED:
            for text in _texts(value):  # unprocessed words are those of another command, which is checked
                for name in {text, text.rpartition(":")[0] or text}:  # FILE.py:function is read too
                    with suppress(OSError, ValueError):
                        yield from _files_at(Path(name), is_option=isinstance(parameter, click.Option))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str | Path):
        if 0 < len(str(value)) < _LONGEST:
            yield str(value)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _texts(item)


def _files_at(path: Path, *, is_option: bool) -> Iterator[Path]:
    """What is read where a path is given: a folder that an option names is one of samples, or of a result."""
    from trtopt.files.manifests import is_build_folder, own_files
    from trtopt.onnxio.external_data import weights_of

    if path.is_file():
        yield path
        yield from weights_of(path)
    elif path.is_dir() and is_option:
        yield from path.iterdir()
    folder = path if path.is_dir() else path.parent
    if is_build_folder(folder) and (path.is_dir() or path.name in own_files(folder)):
        yield from (folder / name for name in own_files(folder))
