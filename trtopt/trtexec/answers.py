"""What is said to an option of trtexec that another command does not have: the same in trtopt."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click

from trtopt.errors import UsageError
from trtopt.printable import visible
from trtopt.trtexec.options import BY_NAME
from trtopt.trtexec.translation import translate

_TRANSLATED = ("build", "bench", "profile")
"""Commands whose other arguments are kept in the translated lines."""


def answer(option: str, arguments: Sequence[str], context: click.Context | None) -> str | None:
    """A message with lines to paste, or None if `option` is not trtexec's.

    `arguments` is the command line after `trtopt`; the context is that of the command that refused `option`.
    """
    if option not in BY_NAME or context is None:
        return None
    entry = BY_NAME[option]
    if context.parent is None:
        lines = _lines(list(arguments), [], None, context)
    elif context.info_name in _TRANSLATED:
        own = list(arguments)[list(arguments).index(str(context.info_name)) + 1 :]
        lines = _split(own, context)
    else:
        lines = [f"{option}: {entry.form}{f' ({entry.note})' if entry.note else ''}"]
    return "\n".join(
        [f"{option} is an option of trtexec. In trtopt:", "", *(f"  {visible(one)}" for one in lines)]
    )


def _split(own: list[str], context: click.Context) -> list[str]:
    """The lines for a command whose arguments mix its own with those of trtexec."""
    known = {name: one for one in context.command.params for name in (*one.opts, *one.secondary_opts)}
    foreign: list[str] = []
    kept: list[str] = []
    target: str | None = None
    while own:
        word = own.pop(0)
        name, equals, _ = word.partition("=")
        if name in known:
            own_option = known[name]
            takes_value = isinstance(own_option, click.Option) and not (
                own_option.is_flag or own_option.count
            )
            kept += [word, own.pop(0)] if takes_value and not equals and own else [word]
        elif name in BY_NAME:
            needs_value = BY_NAME[name].value and not equals and own
            foreign += [word, own.pop(0)] if needs_value else [word]
        elif target is None and not word.startswith("-"):
            target = word
        else:
            kept.append(word)
    return _lines(foreign, kept, target, context)


def _lines(foreign: list[str], kept: list[str], target: str | None, context: click.Context) -> list[str]:
    """trtopt's command lines; where they cannot be made, why."""
    has_model = any(word.startswith(("--onnx", "--loadEngine")) for word in foreign)
    is_model = target is not None and target.endswith(".onnx")
    if not has_model:
        foreign = [
            *foreign,
            f"--onnx={target or 'MODEL.onnx'}" if is_model or not target else f"--loadEngine={target}",
        ]
    try:
        found = translate(foreign)
    except UsageError as error:
        return [error.problem, f"→ {error.remedy}"]
    build, bench = list(found.build), list(found.bench)
    if target is not None and not is_model and not has_model:
        bench = [*bench[:2], *bench[4:]]  # a build folder, or an engine in one: no need to trust it
    if context.parent is not None:
        build, bench = _for_command(str(context.info_name), build, bench, kept)
    lines = [shlex.join(("trtopt", *command)) for command in (build, bench) if command]
    return [*(f"# {note}" for note in found.notes), *lines]


def _for_command(
    name: str, build: list[str], bench: list[str], kept: list[str]
) -> tuple[list[str], list[str]]:
    """The lines up to the command that was typed, with the options that it was given."""
    if name == "build" or not bench:
        return [*build, *kept], []
    if name == "profile":
        bench = ["profile", *bench[1:4]] if bench[2:3] == ["--trust"] else ["profile", bench[1]]
    if len(build) == 2:  # an ONNX file that needs no options is built by the measurement itself
        return [], [bench[0], build[1], *bench[2:], *kept]
    return build, [*bench, *kept]
