"""What a command reads and writes, by the declarations of its parameters, and the check before it begins.

A parameter of the type `Output`, and `--json`, names what is written. Whatever else on the command line names
a file or a folder is read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtopt.cli.options.logging import LOG_FILE, open_log
from trtopt.cli.options.outputs import JsonOutput, Output

if TYPE_CHECKING:
    from trtopt.files.outputs import Kind

_LONGEST = 4096
_MARK = "is_guarded"


def with_guard(command: click.Command) -> click.Command:
    """The command, or every command of the group, with its outputs checked before it begins."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            with_guard(inner)
    elif command.callback is not None and not hasattr(command.callback, _MARK):
        command.callback = _guarded(command.callback)
        setattr(command.callback, _MARK, True)
    return command


def _guarded(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command, begun only if nothing that it writes is what it reads, another's, or not trtopt's."""

    @functools.wraps(command)
    def checked(*arguments: Any, **options: Any) -> Any:
        from trtopt.errors import OutputError, UsageError
        from trtopt.files.outputs import check_output, reading

        context = click.get_current_context()
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
            open_log(context)
            return command(*arguments, **options)

    return checked


def _outputs(context: click.Context) -> Iterator[tuple[str, Path, Kind]]:
    """The option, the file and its kind."""
    from trtopt.files.outputs import json_kind

    for parameter in context.command.params:
        is_log = not parameter.expose_value
        value = context.meta.get(LOG_FILE) if is_log else context.params.get(parameter.name or "")
        if isinstance(value, JsonOutput) and value.file is not None:
            yield parameter.opts[0], value.file, json_kind(value.schema)
        elif isinstance(parameter.type, Output) and value is not None:
            for path, kind in parameter.type.writes(value).items():
                yield parameter.opts[0], path, kind


def _files_read(context: click.Context) -> Iterator[Path]:
    """The files that the command reads, models' weights and the parts of builds among them."""
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if not isinstance(parameter.type, Output):
            for text in _texts(value):
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
