"""Commands from requests: the fields that `trtopt.options` declares become click's arguments and options."""

from __future__ import annotations

import difflib
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, get_origin

import click
from click.shell_completion import CompletionItem

from trtopt.builder_settings import SETTINGS
from trtopt.cli.outputs import Output as OutputPath, files, json_file, model_file, page_file, quantized_file
from trtopt.errors import UsageError
from trtopt.options import (
    Argument,
    Declared,
    Option,
    Output,
    choices_of,
    declared_in,
    field_of,
    parse_names,
)
from trtopt.requests.shared import parse_rules
from trtopt.targets import ONNXRUNTIME

_WRITES = {
    "model": model_file,
    "quantised model": quantized_file,
    "plan": json_file("trtopt.plan"),
    "page": page_file,
}


def command(
    request: type,
    *,
    has_sections: bool = False,
    optional: Sequence[str] = (),
    later: Mapping[str, object] | None = None,
) -> Callable[[Callable[..., None]], click.Command]:
    """A command whose function gets a request, made of the command line, then the values of its own options.

    Fields in `optional` may be missing from the command line: the request is then None. Those in `later` have
    these values until the function sets them.
    """
    later = later or {}
    declared = [
        one
        for one in declared_in(request)
        if one.name not in later and (one.flag or isinstance(one.declaration, Argument))
    ]

    def decorate(function: Callable[..., None]) -> click.Command:
        @functools.wraps(function)
        def run(**values: Any) -> None:
            given = {one.name: values.pop(one.name) for one in declared}
            is_whole = all(given[one] is not None for one in optional)
            function(request=request(**given, **later) if is_whole else None, **values)

        made = click.command(cls=SectionedCommand if has_sections else click.Command)(run)
        params = [_parameter(one, optional) for one in declared]
        made.params = sorted([*params, *made.params], key=_rank)
        return made

    return decorate


def _parameter(one: Declared, optional: Sequence[str]) -> click.Parameter:
    declaration, is_required = one.declaration, one.is_required and one.name not in optional
    if isinstance(declaration, Argument):
        return _argument(one, declaration, is_required=is_required)
    if isinstance(declaration, Output):
        writes = _WRITES.get(declaration.holds)
        return click.Option(
            ["-o", "--output", one.name],
            type=OutputPath(writes) if writes else OutputPath(),
            required=is_required,
            metavar="FILE" if writes else "FOLDER",
            help=declaration.help,
        )
    return _option(one, declaration)


def _rank(param: click.Parameter) -> int:
    """Arguments first, then the output; the rest in its own order."""
    return 0 if isinstance(param, click.Argument) else 1 if "-o" in param.opts else 2


def _argument(one: Declared, declaration: Argument, *, is_required: bool) -> click.Argument:
    kinds = {"path": click.Path(exists=True, path_type=Path), "onnx": OnnxFile(), "name": click.STRING}
    return click.Argument(
        [one.name],
        type=kinds[declaration.kind],
        nargs=-1 if get_origin(one.members[0]) is Sequence else 1,
        required=is_required,
        metavar=declaration.metavar,
        shell_complete=offer(declaration.names, files=True) if declaration.names else None,
    )


def _option(one: Declared, option: Option) -> click.Option:
    kinds, choices = {get_origin(kind) or kind for kind in one.members}, list(choices_of(one))
    attributes: dict[str, Any] = {"help": option.help, "required": one.is_required, "metavar": option.metavar}
    if kinds == {bool} and option.parse is None:
        return click.Option([str(one.flag), one.name], **attributes, **_switch(one))
    if choices:
        attributes["type"] = click.Choice(choices)
    elif option.must_exist:
        attributes["type"] = click.Path(exists=True, path_type=Path)
    elif option.parse is None and str not in kinds and (number := kinds & {int, float}):
        attributes["type"] = number.pop()
        attributes["metavar"] = option.metavar or "N"
    if isinstance(one.default, str | int | float) and option.parse is None:
        attributes |= {"default": one.default, "show_default": "[default" not in option.help}
    if option.bare is not None:
        attributes |= {"is_flag": False, "flag_value": option.bare}
    is_repeated = option.is_repeated
    if is_repeated is None:
        is_repeated = Mapping in kinds or (Sequence in kinds and option.parse is None)
    return click.Option(
        [str(one.flag), one.name],
        multiple=is_repeated,
        shell_complete=_completion(option),
        callback=lambda context, parameter, given: _value(one, option, given, kinds),
        **attributes,
    )


def option(name: str, hint: Any, default: Any = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """An option of a command's own that requests have too: `hint` is an annotation as theirs are."""
    one = field_of(name, hint, default)

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        click.decorators._param_memo(function, _option(one, one.declaration))
        return function

    return decorate


def name_required_options(command: click.Command) -> None:
    """In its usage line: a usage error prints the line, and thereby all that is missing at once."""
    context = click.Context(command)
    needed = [
        f"{option.opts[0]} {option.make_metavar(context).strip('[]')}"
        for option in command.params
        if isinstance(option, click.Option) and option.required
    ]
    command.options_metavar = " ".join([*needed, "[OPTIONS]"])


def _switch(one: Declared) -> dict[str, Any]:
    if str(one.flag).startswith("--no-"):  # flag_value=False is the default too with click 8.3.0 and 8.3.1
        return {"is_flag": True, "callback": lambda context, parameter, is_off: not is_off}
    return {"is_flag": True, "default": one.default}


def _value(one: Declared, option: Option, given: Any, kinds: set[Any]) -> Any:
    """What is typed as the field has it; its default where nothing is."""
    read = option.parse or (lambda text: text)
    if not isinstance(given, tuple):
        return read(given) if isinstance(given, str) else one.default if given is None else given
    if not given:
        return one.default
    if Mapping not in kinds:
        return tuple(map(read, given))
    pairs: dict[str, Any] = {}
    for key, value in map(read, given):
        if key in pairs:
            raise UsageError(f"{one.flag} {key}: given twice", f"give each one {one.flag}")
        pairs[key] = value
    return pairs


def _completion(option: Option) -> Any:
    if option.names is None:
        return files if option.is_path else None
    return offer(option.names, files=option.is_path, in_list=option.parse in (parse_names, parse_rules))


# ── kinds of options and arguments ──────────────────────────────────────────────────────────────────────


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


# ── headings in the help of commands with many options ────────────────────────────────────────────────────

FIRST = "Options"
SECTIONS: dict[str, tuple[str, ...]] = {
    FIRST: (),
    "Candidates": ("--include KIND", "--exclude KIND"),
    "Precision": (
        *("--precision", "--target", "--method", "--table", "--exclude", "--include"),
        *("--forms", "--selection-budget", "--store-weights", "--random-data", "--verdict"),
        "--allow-fallback",
    ),
    "Accuracy bounds": ("--min-cosine", "--min-sqnr", "--max-error", "--min-top1"),
    "Graph": ("--rewrite", "--add-rule", "--io", "--normalize", "--preprocess"),
    "Measurement": (
        *("--contract", "--duration", "--stop-early", "--warmup", "--timeout"),
        "--lock-clocks",
    ),
    "Terms of the measurement [default: the contract's]": (
        *("--graph", "--transfers", "--pinned", "--queue", "--sync", "--streams"),
    ),
    "Further measurements, each in a pass of its own": (
        *("--layers", "--kernels", "--memory", "--load", "--max-latency", "--cold-start"),
        "--probe-peaks",
    ),
    "Builder settings [default: the backend's]": (
        "--recipe",
        *(str(one.flag) for one in SETTINGS if one.backends != (ONNXRUNTIME,)),
        *("--timing-cache", "--cache-dir", "--build-timeout"),
    ),
    "Settings of ONNX Runtime [default: its own]": (
        *(str(one.flag) for one in SETTINGS if one.backends == (ONNXRUNTIME,)),
    ),
    "Where jobs run": ("--jobs", "--executor", "--gpu-model", "--retries"),
    "For other tools": ("--nvtx", "--cuda-profiler", "--trace", "--export-times", "--export-profile"),
    "Output": ("--json", "--markdown", "--strict", "--verbose", "--quiet", "--log-file", "--help"),
}
"""In the order of the help, options too; one that is listed nowhere stands under the first. A flag that means
something else in another command is listed with its metavar."""


class SectionedCommand(click.Command):
    """A command whose help lists its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Command.format_options`."""
        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        sizes = Counter(map(section_of, options))
        rows: dict[str, list[tuple[int, tuple[str, str]]]] = {title: [] for title in SECTIONS}
        for option in options:
            row, title = option.get_help_record(ctx), section_of(option)
            if row is not None and sizes[title] > 1:
                rows[title].append((_place(option, title), row))
            elif row is not None:  # one option needs no heading
                rows[FIRST].append((0, row))
        for title, listed in rows.items():
            if listed:
                with formatter.section(title):
                    formatter.write_dl([row for _, row in sorted(listed, key=itemgetter(0))])


def _place(option: click.Parameter, title: str) -> int:
    """Where an option stands under its heading; under the first they keep the command's own order."""
    names = names_of(option)
    return next((place for place, flag in enumerate(SECTIONS[title]) if flag in names), 0)


def section_of(option: click.Parameter) -> str:
    """The heading of an option."""
    names = names_of(option)
    return next((title for title, flags in SECTIONS.items() if names & set(flags)), FIRST)


def names_of(option: click.Parameter) -> set[str]:
    """How the table may name an option: by its flags, or these with its metavar."""
    return {*option.opts, *(f"{flag} {option.metavar}" for flag in option.opts)}


# ── what a shell offers; a table is read when the shell asks ──────────────────────────────────────────────

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
Names = Callable[[], Iterable[str]]


def offer(table: Names, *, files: bool = False, in_list: bool = False) -> Completer:
    """Offer the names of a table, `files` too; `in_list` as the next entry of a list with commas."""

    def offered(_context: click.Context, _option: click.Parameter, begun: str) -> list[CompletionItem]:
        done, comma, last = begun.rpartition(",") if in_list else ("", "", begun)
        found = [CompletionItem(f"{done}{comma}{name}") for name in table() if name.startswith(last)]
        return [*found, CompletionItem(begun, type="file")] if files else found

    return offered


def node_names(context: click.Context, _option: click.Parameter, begun: str) -> list[CompletionItem]:
    """Offer the nodes of MODEL, where it has been typed and can be read."""
    from trtopt.errors import TrtoptError
    from trtopt.onnxio import model_file
    from trtopt.onnxio.graph_walk import graphs_of

    try:
        graph = model_file.load(Path(context.params["model"])).proto.graph
    except (KeyError, TypeError, OSError, TrtoptError):
        return []
    found = (node.name for part in graphs_of(graph) for node in part.node)
    return [CompletionItem(name) for name in found if name and name.startswith(begun)]


def lint_check_names() -> Iterable[str]:
    """The checks of `trtopt lint`."""
    from trtopt.rewrite.lint import CHECKS

    return ("any", *(check.name for check in CHECKS))
