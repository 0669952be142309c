"""The line that was meant by one that names a command, an option or an argument as other tools do."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import cast

import click

from trtopt.cli.command import WORDS
from trtopt.errors import TrtoptError
from trtopt.peers import polygraphy, trtexec
from trtopt.peers.options import Given, PeerOption, own_words

_MODELS = "engine input load-engine model model-path onnx onnx-path"
_REFERENCES = "baseline golden ref reference"
_OPTIONS = {
    **dict.fromkeys(("a", "folder", "model", "path", "sources"), _MODELS),
    **dict.fromkeys(("b", "other"), f"against {_REFERENCES}"),
    "--against": _REFERENCES,
    "--axis": "dims dynamic-axes",
    "--batch": "b batch-size batch-sizes batches bs",
    "--budget": "limit time time-limit",
    "--clean": "simplify",
    "--contract": "preset",
    "--data": "calib calib-data calibration calibration-data dataset inputs load-inputs samples",
    "--duration": "seconds time",
    "--dynamic": "dynamic-batch dynamic-shapes",
    "--graph": "cuda-graph cuda-graphs use-cuda-graph",
    "--jobs": "parallel workers",
    "--json": "export-json json-output output-json save-json",
    "--layers": "dump-profile per-layer",
    "--load": "qps rate request-rate",
    "--markdown": "export-markdown md",
    "--max-error": "abs-tol atol tol tolerance",
    "--max-latency": "max-p99 slo",
    "--min-cosine": "accuracy cosine min-accuracy",
    "--output": "html out output-dir output-file output-path save save-engine",
    "--precision": "dtype quant quantize-mode to type",
    "--queue": "queue-depth",
    "--rate": "load qps request-rate",
    "--recipe": "config profile",
    "--rewrite": "rules",
    "--shape": "input-shape input-shapes shapes",
    "--skip": "skip-fusion-patterns skip-rules",
    "--slo": "latency max-latency target-latency",
    "--streams": "concurrency inf-streams",
    "--timing-cache": "timing-cache-file timing-cache-path",
    "--warmup": "warm-up warmup-time",
}
"""What they call an argument or an option, with or without hyphens, in any case."""
_LETTERS = {"-n": "--iterations"}
"""What a letter stands for in other programs."""
_NEEDED = {"--slo": "p99=10ms", "--while": "wrong", "plan -o": "plan.json", "triton -o": "models"}
"""What to begin with where an option is required, of any command or of one."""
_FEW = 6
"""Commands at most that are named as those with an option."""
_ALIKE = 0.8
"""So similar is a mistyped option to the one that a line may have in its place."""


@dataclass(frozen=True)
class _Meaning:
    """The words in place of an option; `read` makes them of its value where they are not followed by it."""

    words: Sequence[str] = ()
    read: Callable[[str], Sequence[str]] | None = None


def corrected(error: click.UsageError) -> click.UsageError:
    """The error, with the lines to paste if it is known what was meant, or with the reason why not."""
    context = error.ctx
    words: list[str] = [] if context is None else context.meta.get(WORDS, [])
    if context is None or not words:
        return error
    is_of_a_value = (
        isinstance(error, click.BadParameter)
        and not isinstance(error, click.MissingParameter)
        and (error.param is None or error.param.nargs > 0)  # of several files one may be a batch size
    )
    name = error.option_name if isinstance(error, click.NoSuchOption) else ""
    peers = _peers_with(name)
    if "trtexec" in peers and context.parent is None and all(word.startswith("-") for word in words):
        lines = [["trtexec", *words]]
    else:
        lines = [] if is_of_a_value else _meant(context, words)
        lines = lines or _with_other_precision(context, words)
    reason = None
    for program, option in peers.items():
        if not lines or option.kind == "no effect":
            answer = option.answer.replace("* ", "every command has ")
            reason = (
                f"{_LETTERS.get(name, name)} is an option of {program}. In trtopt: {answer}.\n"
                f"A whole command line of {program}: trtopt {program} ARGS…"
            )
            break
    if not lines and reason is None and (others := _others_with(context, name)):
        reason = f"{name} is an option of trtopt {', '.join(others)}."
    if not lines and reason is None:
        return error
    problem = error.message if name else error.format_message()
    return click.UsageError("\n".join(filter(None, (problem, reason, *map(_write, lines)))), context)


def unknown_command(context: click.Context, commands: Mapping[str, click.Command]) -> click.UsageError:
    """The error of a name that is no command, with the line that was meant."""
    name, *rest = context.meta[WORDS]
    meant = [key for key, one in commands.items() if name.lower() in getattr(one, "synonyms", ())]
    if name.endswith(".onnx"):
        meant, rest = [*commands][:2], [name, *rest]  # those that users reach for first
    meant = meant or difflib.get_close_matches(name.lower(), commands, n=1)
    for one in meant:
        for line in _as_command(context, one, rest):
            return click.UsageError(
                f"No such command {name!r}. Did you mean {one!r}?\n{_write(line)}", context
            )
    if name in {tool.split()[0] for tool in polygraphy.TOOLS}:
        problem = f"No such command {name!r}, which is one of Polygraphy."
        return click.UsageError(f"{problem}\n{_write(['polygraphy', name, *rest])}", context)
    hint = f" Did you mean {meant[0]!r}?" if meant else ""
    return click.UsageError(f"No such command {name!r}.{hint}", context)


def _as_command(root: click.Context, name: str, words: Sequence[str]) -> list[list[str]]:
    """The lines of `words` after a command."""
    own = cast("click.Group", root.command).commands[name]
    return _meant(click.Context(own, parent=root, info_name=name), [name, *words], is_guess=True)


def _peers_with(name: str) -> dict[str, PeerOption]:
    """The programs that have an option, with what it is in trtopt; first where it is something."""
    found = {
        program: option
        for program, peer in {"trtexec": trtexec, "polygraphy": polygraphy}.items()
        for option in peer.OPTIONS
        if _LETTERS.get(name, name) in option.names
    }
    return dict(sorted(found.items(), key=lambda item: item[1].kind != "translated"))


def _others_with(context: click.Context, name: str) -> list[str]:
    """The commands that have an option, where these are few enough to choose from."""
    commands = cast("click.Group", context.find_root().command).commands
    found = [key for key, command in commands.items() for one in command.params if name in one.opts]
    return found if len(found) <= _FEW else []


def _write(line: Sequence[str]) -> str:
    return f"Write: {shlex.join(('trtopt', *line))}"


def _meant(context: click.Context, words: Sequence[str], *, is_guess: bool = False) -> list[list[str]]:
    """The lines with a meaning for every guess in `words`; none if one has none."""
    command, root, depth = context.command, context.find_root(), len(context.command_path.split()) - 1
    rest = [*words[depth:]]
    if isinstance(command, click.Group):
        return _meant_in(context, command, words[:depth], rest)
    for _ in range(len(words) + 1):  # each turn finds the meaning of one guess
        try:
            options, extra, _order = command.make_parser(context).parse_args([*rest])
        except click.NoSuchOption as unknown:
            meaning = _meaning(command, unknown.option_name)
            if meaning is None:
                return []
            try:
                rest = _replaced(rest, unknown.option_name, meaning)
            except (ValueError, TrtoptError):  # an option of a letter amid others; a value that is none
                return []
            continue
        except click.UsageError:  # an option that lacks its value
            return []
        if "--batch" in rest:  # sizes are no more files of an argument that takes several
            several = (found for found in options.values() if isinstance(found, tuple))
            extra += [one for found in several for one in found if one.isdecimal()]
        if not extra:
            break
        extra.sort(key=lambda one: not one.isdecimal())  # batch sizes can be told from files
        is_placed = _place(rest, extra[0], command, options)
        if command.name == "bench" and not is_placed:
            first = [*rest]
            for word in extra:
                first.pop(_last(first, word))
            return [line for b in extra for line in _as_command(root, "compare", [*first, b])]
        if not is_placed:
            return []
    else:
        return []
    for one in command.params:
        if one.required and isinstance(one, click.Argument) and not _is_given(options.get(str(one.name))):
            return []
        if one.required and isinstance(one, click.Option) and one.name not in options:
            value = _first_value(command, one, options)
            if not value:
                return []
            rest += [one.opts[0], value]
    line = [*words[:depth], *rest]
    return [line] if is_guess or line != [*words] else []


def _meant_in(
    context: click.Context, group: click.Group, before: Sequence[str], rest: list[str]
) -> list[list[str]]:
    """The same of a line that names no command of a group: it stands behind options, or there is only one."""
    place = next((place for place, word in enumerate(rest) if word in group.commands), 0)
    if place and context is context.find_root():
        return _as_command(context, rest[place], [*rest[place + 1 :], *rest[:place]])
    (name, own), *others = group.commands.items()
    if others or not rest or rest[0].endswith(".onnx"):  # which command is not known, or has no engine
        return []
    rest = rest[1:] if difflib.get_close_matches(rest[0], [name]) else rest
    return _meant(click.Context(own, parent=context, info_name=name), [*before, name, *rest], is_guess=True)


def _is_given(value: object) -> bool:
    return isinstance(value, str | tuple | list) and bool(value)


def _first_value(command: click.Command, option: click.Option, options: Mapping[str, object]) -> str:
    """What to begin with for a required option; empty if that is not known."""
    if isinstance(option.type, click.Choice):
        return str(option.type.choices[0])
    flag, model = option.opts[0], options.get("model")
    file = f"{PurePath(model).stem}-{command.name}.onnx" if flag == "-o" and isinstance(model, str) else ""
    return _NEEDED.get(f"{command.name} {flag}", _NEEDED.get(flag, file))


def _with_other_precision(context: click.Context, words: Sequence[str]) -> list[list[str]]:
    """The line of the command that writes the precision in `words`, where this one does not."""
    root, own = context.find_root(), context.command
    more = getattr(own, "more_precisions", None)
    if more is None:
        return []
    asked = {(word.partition("=")[2] or word).lstrip("-").lower() for word in words}
    others = _precisions(cast("click.Group", root.command).commands[more]) - _precisions(own)
    return _as_command(root, more, words[1:]) if asked & others else []


def _precisions(command: click.Command) -> set[str]:
    types = (one.type for one in command.params if one.name == "precision")
    return {str(choice) for one in types if isinstance(one, click.Choice) for choice in one.choices}


def _key(name: str) -> str:
    """`--batchSize`, `--batch_size` and `--batch-size` are one name."""
    return re.sub("[-_]", "", name).lower()


def _meaning(command: click.Command, name: str) -> _Meaning | None:
    peers = _peers_with(name)
    is_refused = any(option.kind == "refused" for option in peers.values())
    # what a program refuses is no other option that is spelled alike
    fold = (lambda text: text.lstrip("-")) if is_refused else _key
    key = fold(name)
    for option in peers.values():  # before an own name: units may differ
        if {str(command.name), "*"} & option.words.keys():
            words = partial(_own_words, str(command.name), option)
            return _Meaning(read=words) if option.value else _Meaning(words(""))
    for one in sorted(command.params, key=lambda one: isinstance(one, click.Argument)):  # -b is no B
        names = [name for flag in one.opts for name in _OPTIONS.get(flag, "").split()]
        if key in map(fold, (str(one.name), *one.opts, *names)):
            if one.opts[0] in ("--slo", "--max-latency"):
                return _Meaning(read=partial(_as_goal, one.opts[0]))
            return _Meaning(one.opts[:1] if isinstance(one, click.Option) else [])
    chosen = [
        [one.opts[0], str(choice)]
        for one in command.params
        if isinstance(one.type, click.Choice)
        for choice in one.type.choices
        if key == fold(str(choice))
    ]
    if len(chosen) == 1:
        return _Meaning(chosen[0])
    for option in peers.values():
        form = option.form.split()
        if option.kind == "no effect":
            return _Meaning(read=(lambda value: []) if option.value else None)
        if form[:1] == [command.name] and not re.search("[A-Z…]", option.form):
            return _Meaning(form[1:])
    if peers:
        return None
    flags = [flag for one in command.params for flag in (*one.opts, *one.secondary_opts)]
    near = difflib.get_close_matches(name, flags, n=1, cutoff=_ALIKE)
    if not near and any(flag.startswith(f"{name}-") for flag in flags):
        return _Meaning(read=partial(_as_switch, flags, name))
    return _Meaning(near) if near else None


def _as_switch(flags: Sequence[str], name: str, value: str) -> list[str]:
    """`--for triton` is `--for-triton`; a ValueError says that there is no such switch."""
    return [flags[flags.index(f"{name}-{value}")]]


def _as_goal(flag: str, limit: str) -> list[str]:
    return [flag, limit if "=" in limit else f"p99={limit}"]


def _own_words(command: str, option: PeerOption, value: str) -> list[str]:
    return own_words(command, [Given(option, (value,) if value else ())])


def _replaced(words: Sequence[str], name: str, meaning: _Meaning) -> list[str]:
    """The words with a meaning in place of an option, as `NAME VALUE` or `NAME=VALUE`."""
    place = [word.partition("=")[0] for word in words].index(name)
    before, (_, equals, value), after = words[:place], words[place].partition("="), words[place + 1 :]
    if meaning.read is None:
        return [*before, *meaning.words, *([value] if equals else []), *after]
    if not equals and after:
        value, *after = after
    return [*before, *meaning.read(value), *after]


def _last(words: Sequence[str], word: str) -> int:
    return len(words) - 1 - words[::-1].index(word)


def _place(words: list[str], extra: str, command: click.Command, options: Mapping[str, object]) -> bool:
    """Write an argument too many as the value of the option that it must be of; whether there is one."""
    is_model = extra.endswith(".onnx")
    free = {
        one.opts[0]
        for one in command.params
        if one.name not in options and not (is_model and one.metavar == "FOLDER")
    }
    place = _last(words, extra)
    if extra.isdecimal() and "--batch" in words[:place]:  # --batch 1 8 32
        words.pop(place)
        words[words.index("--batch") + 1] += f",{extra}"
        return True
    is_data = extra.endswith(".npz") and "--data" in free
    meant = "--data" if is_data else next((one for one in ("--against", "-o") if one in free), None)
    if meant is not None:
        words.insert(place, meant)
    return meant is not None
