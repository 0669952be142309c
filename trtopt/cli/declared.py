"""Commands from requests: the fields that `trtopt.options` declares become click's arguments and options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_origin

import click

from trtopt.builder_settings import SETTINGS
from trtopt.cli.outputs import Output as OutputPath, file_of, model_file, quantized_file
from trtopt.cli.parameters import NewPath, OnnxFile, offer
from trtopt.errors import UsageError
from trtopt.options import (
    Argument,
    Declared,
    Option,
    Output,
    choices_of,
    declared_in,
    parse_names,
)
from trtopt.requests.shared import parse_rules
from trtopt.targets import ONNXRUNTIME

_WRITES = {
    "model": model_file,
    "quantised model": quantized_file,
    "plan": file_of("workflows.plan.plan.PLAN"),
    "page": file_of("workflows.report.PAGE"),
}


def fields_of(request: type) -> list[Declared]:
    """The fields that a command line gives."""
    return [one for one in declared_in(request) if one.flag or isinstance(one.declaration, Argument)]


def parameters_of(request: type, optional: Sequence[str]) -> list[click.Parameter]:
    """Click's arguments and options of them."""
    return [_parameter(one, optional) for one in fields_of(request)]


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


def _argument(one: Declared, declaration: Argument, *, is_required: bool) -> click.Argument:
    kinds = {
        "path": click.Path(exists=True, path_type=Path),
        "onnx": OnnxFile(),
        "folder": NewPath(file_okay=False, path_type=Path),
        "name": click.STRING,
    }
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
        attributes["type"] = click.Choice(choices, case_sensitive=False)
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


def _switch(one: Declared) -> dict[str, Any]:
    if str(one.flag).startswith("--no-"):  # flag_value=False is the default too with click 8.3.0 and 8.3.1
        return {"is_flag": True, "callback": lambda context, parameter, is_off: not is_off}
    return {"is_flag": True, "default": one.default}


def _value(one: Declared, option: Option, given: Any, kinds: set[Any]) -> Any:
    """What is typed as the field has it; its default where nothing is."""
    parse = option.parse or (lambda text: text)

    def read(text: str) -> Any:
        if option.names is not None and not option.is_path:  # names of a table, in any case
            known = {name.lower(): name for name in option.names()}
            text = ",".join(known.get(name.strip().lower(), name) for name in text.split(","))
        return parse(text)

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
    if option.names is None and not option.is_path:
        return None
    return offer(
        option.names or tuple, files=option.is_path, in_list=option.parse in (parse_names, parse_rules)
    )


# ── headings in the help of commands with many options ────────────────────────────────────────────────────

FIRST = "Options"
SECTIONS: dict[str, tuple[str, ...]] = {
    FIRST: (),
    "Candidates": ("--include KIND", "--exclude KIND"),
    "Precision": (
        *("--precision", "--target", "--method", "--table", "--exclude", "--include", "--forms"),
        *("--selection-budget", "--fused-plugins", "--store-weights", "--random-data", "--verdict"),
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
    "For other tools": (
        *("--nvtx", "--cuda-profiler", "--trace", "--export", "--export-times", "--export-profile"),
    ),
    "Output": ("--json", "--markdown", "--strict", "--verbose", "--quiet", "--log-file", "--help"),
}
"""In the order of the help; an option that is listed nowhere stands under the first. A flag that means
something else in another command is listed with its metavar."""

_EXCEPTIONS = {
    *("--lock", "--locked", "--trust", "--shape INPUT:MIN,OPT,MAX", "--across-contracts"),
    *("--min-cosine", "--precision", "--target", "--include PATTERN", "--store-weights", "--random-data"),
    *("--recipe", "--contract", "--duration", "--layers", "--kernels", "--load", "--trace"),
    *("--json", "--markdown", "--help"),
    *("profile --memory", "compare --force", "explain --duration", "tune --duration", "tune --threshold"),
    *("quantize --exclude", "bisect --exclude", "reduce --timeout"),
}
"""What stands under the first heading and is advanced (the first line), and under others and is not; then
the exceptions of single commands."""


def is_advanced(option: click.Option, command: str) -> bool:
    """Whether the help of a long command leaves an option to --help-all."""
    is_own = any(f"{command} {flag}" in _EXCEPTIONS for flag in option.opts)
    return (section_of(option) != FIRST) != (bool(names_of(option) & _EXCEPTIONS) != is_own)


def sections_of(options: Iterable[click.Option]) -> dict[str, list[click.Option]]:
    """The options by heading, in the order of the help."""
    options = list(options)
    sizes = Counter(map(section_of, options))
    found: dict[str, list[click.Option]] = {title: [] for title in SECTIONS}
    for option in options:
        title = section_of(option)
        found[title if sizes[title] > 1 else FIRST].append(option)  # one option needs no heading
    return {title: listed for title, listed in found.items() if listed}


def section_of(option: click.Parameter) -> str:
    """The heading of an option."""
    names = names_of(option)
    return next((title for title, flags in SECTIONS.items() if names & set(flags)), FIRST)


def names_of(option: click.Parameter) -> set[str]:
    """How the table may name an option: by its flags, or these with its metavar."""
    return {*option.opts, *(f"{flag} {option.metavar}" for flag in option.opts)}
