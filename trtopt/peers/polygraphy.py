"""A command line of Polygraphy 0.49 to 0.53 as command lines of trtopt.

Every tool and option is a row of polygraphy.txt beside this file; so is the table in
docs/coming-from/polygraphy.md.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path, PurePath

from trtopt.errors import UsageError
from trtopt.peers.options import (
    Given,
    Line,
    Read,
    Translation,
    build_folder,
    build_words,
    read_line,
    read_table,
    translation_of,
    workspace,
)
from trtopt.peers.shapes import Profile, Shape, measured_words, profiles_of, shapes_in
from trtopt.targets import DEFAULT

_BOUNDS = ("--trt-min-shapes", "--trt-opt-shapes", "--trt-max-shapes")
_DATA = ("--load-inputs", "--data-loader-script")
_REPEATED = frozenset({*_BOUNDS, "-v"})
_TYPES = {".onnx": "onnx", ".engine": "engine", ".plan": "engine"}


def translate(arguments: Sequence[str]) -> Translation:
    """The command lines of trtopt that do what Polygraphy does with these arguments: a tool, then options."""
    tool, rest = _tool_in(arguments)
    options = [one for one in OPTIONS if {tool, "all"} & {*one.found_in}]
    name = f"polygraphy {tool}"
    is_abbreviated = not tool.startswith("debug")  # as Polygraphy has it
    line = read_line(name, options, rest, _REPEATED, abbreviated=is_abbreviated)
    if len(line.words) != 1:
        problem = f"too many arguments: {' '.join(line.words[1:])}" if line.words else "no model"
        raise UsageError(f"{name}: {problem}", f"write trtopt {name} MODEL, then its options")
    commands = _TRANSLATORS[tool](line)
    if not any("--data" in made for made in commands):
        idle = [one.text for one in line.given if one.name in _DATA]
        line.notes.extend(f"{text}: no effect here: nothing is calibrated or run" for text in idle)
    return translation_of(commands, line)


def _tool_in(arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The tool that the line begins with, and what follows."""
    for count in (1, 2):
        tool = " ".join(arguments[:count])
        if tool in TOOLS:
            if TOOLS[tool].kind == "refused":
                raise UsageError(f"polygraphy {tool}: cannot be translated", TOOLS[tool].note)
            return tool, arguments[count:]
    known = [one for one in TOOLS if one.startswith(f"{arguments[0]} ")] or [*TOOLS]
    typed = (" ".join(arguments[:2]), arguments[0])
    near = [one for text in typed for one in difflib.get_close_matches(text, known, n=1, cutoff=0.8)]
    hint = f"did you mean {near[0]}?" if near else f"tools: {', '.join(known)}"
    raise UsageError(f"polygraphy {typed[0]}: no tool of Polygraphy", hint)


# ── tools ───────────────────────────────────────────────────────────────────────────────────────────────


def _run(line: Line) -> list[list[str]]:
    kind = _type_of(line, "--model-type", line.model)
    on_engine, on_reference = "--trt" in line, "--onnxrt" in line
    if not on_engine and not on_reference:
        raise UsageError("polygraphy run: nothing to run with", "add --trt, --onnxrt or both")
    if kind == "engine":
        if on_reference:
            raise UsageError(
                f"--onnxrt: cannot run {line.model}, an engine",
                f"trtopt check {line.model} --against MODEL.onnx --trust {line.model}",
            )
        return [["bench", line.model, "--trust", line.model, *_inputs(line, is_tuned=False)]]
    if not on_engine:
        for option in ("--validate", "--plugins"):
            if option in line:
                raise UsageError(f"{option}: is of the engine alone", "add --trt, or omit it")
        return [["bench", line.model, "--backend", "onnxruntime", *_inputs(line, is_tuned=False)]]
    build = _build(line, line.value("--save-engine"))
    folder = build_folder(line.value("--save-engine"), line.model)
    if on_reference or "--validate" in line:
        bounds = _bounds(line) if on_reference else ["--min-cosine", "-1"]
        if on_reference and "--validate" in line:
            line.notes.append(f"--validate: {line.by_name['--validate'].option.note}")
        return [build, ["check", folder, "--against", line.model, *_inputs(line), *bounds]]
    return [build, ["bench", folder, *_inputs(line)]]


def _convert(line: Line) -> list[list[str]]:
    output = _output(line)
    target = _type_of(line, "--convert-to", output)
    if _type_of(line, "--model-type", line.model) == "engine":
        raise UsageError(f"{line.model}: an engine cannot be converted", "give the ONNX file")
    if target != "onnx":
        return [_build(line, output)]
    if "--fp-to-fp16" not in line:
        raise UsageError(f"{line.model}: is ONNX already", "copy it, or add --fp-to-fp16")
    return [["cast", line.model, "-o", output, *_data(line)]]


def _sanitize(line: Line) -> list[list[str]]:
    rules = ["drop-dead"]
    if "--no-fold-shapes" in line and "--fold-constants" not in line:
        line.notes.append("--no-fold-shapes: no effect here without --fold-constants")
    if "--fold-constants" in line:
        rules = [*([] if "--no-fold-shapes" in line else ["fold-shapes"]), "fold-constants", *rules]
    words = ["rewrite", line.model, "-o", _output(line), "--rules", ",".join(rules), *_data(line)]
    for name, shape in _shapes(line.by_name.get("--override-input-shapes")).items():
        words += ["--shape", f"{name}:{'x'.join(map(str, shape))}"]
    return [words]


def _inspect(line: Line) -> list[list[str]]:
    is_engine = _type_of(line, "--model-type", line.model) == "engine"
    return [["inspect", line.model, *(["--trust", line.model] if is_engine else [])]]


def _capability(line: Line) -> list[list[str]]:
    line.notes.append(f"as of TensorRT {DEFAULT}: --capability names another one")
    return [["inspect", line.model, "--capability", DEFAULT]]


def _extract(line: Line) -> list[list[str]]:
    words = ["extract", line.model, "-o", _output(line)]
    for option, own, fields in (("--inputs", "--from", 2), ("--outputs", "--to", 1)):
        for text in line.by_name[option].values if option in line else ():
            name, *rest = text.rsplit(":", fields)
            if len(rest) < fields:
                raise UsageError(f"{option} {text}: incomplete", f"write {option} {name}{':auto' * fields}")
            words += [own, name]
            if {*rest} != {"auto"}:
                line.notes.append(f"{option} {text}: shape and type are the model's own")
    return [words]


def _reduce(line: Line) -> list[list[str]]:
    made = str(PurePath(line.value("--iter-artifact") or "polygraphy_debug.onnx"))
    check = line.by_name["--check"].values if "--check" in line else ()
    if not any(made in word for word in check):
        raise UsageError(
            f"debug reduce: no --check COMMAND that reads {made}",
            f"trtopt reduce {line.model} -o PART.onnx --while wrong keeps what differs from ONNX Runtime",
        )
    command = re.sub(rf"(\./)*{re.escape(made)}", "{model}", shlex.join(check))
    return [["reduce", line.model, "-o", _output(line), "--while", command, *_data(line)]]


_TRANSLATORS: Mapping[str, Callable[[Line], list[list[str]]]] = {
    "run": _run,
    "convert": _convert,
    "surgeon sanitize": _sanitize,
    "surgeon extract": _extract,
    "debug reduce": _reduce,
    "inspect model": _inspect,
    "inspect capability": _capability,
    "check lint": lambda line: [["lint", line.model]],
}


# ── what several have ───────────────────────────────────────────────────────────────────────────────────


def _output(line: Line) -> str:
    """The file to write, which has to be given."""
    if "-o" not in line:
        raise UsageError("-o: is missing", "add -o FILE")
    return line.by_name["-o"].value


def _type_of(line: Line, option: str, file: str) -> str:
    """`onnx` or `engine`: as the option says, else by the file's name."""
    kind = line.value(option) or _TYPES.get(PurePath(file).suffix, "")
    kind, other = "engine" if kind == "trt" else kind, "trt" if option == "--convert-to" else "engine"
    if kind not in _TYPES.values():
        raise UsageError(
            f"{option} {kind}: is not translated" if kind else f"{file}: neither .onnx nor .engine nor .plan",
            f"convert the model to ONNX; {option} onnx or {option} {other} says what a file is",
        )
    return kind


def _build(line: Line, engine: str | None) -> list[str]:
    data = next(iter(_data(line)[1:]), None)
    words = build_words(line, line.model, engine, _profiles(line), data)
    if "--tf32" not in line:
        line.notes.append("Polygraphy turns TF32 off without --tf32; trtopt leaves it as TensorRT has it: on")
    caches = {value for name in ("--load-timing-cache", "--save-timing-cache") if (value := line.value(name))}
    if len(caches) > 1:
        raise UsageError(
            "--load-timing-cache and --save-timing-cache: trtopt reads and extends one file",
            "copy the first to the second, and give the second to both",
        )
    if caches and "--save-timing-cache" not in line:
        line.notes.append(f"{line.by_name['--load-timing-cache'].text}: new timings are added to the file")
    return [*words, *(("--timing-cache", *caches) if caches else ())]


def _inputs(line: Line, *, is_tuned: bool = True) -> list[str]:
    """Shapes and samples to run with."""
    shapes = _shapes(line.by_name.get("--input-shapes")) or None
    return [*measured_words(_profiles(line), shapes, is_tuned=is_tuned), *_data(line)]


def _data(line: Line) -> list[str]:
    if "--data-loader-func-name" in line and "--data-loader-script" not in line:
        line.notes.append("--data-loader-func-name: no effect here without --data-loader-script")
    if "--load-inputs" in line:
        files = line.by_name["--load-inputs"]
        if len(files.values) > 1:
            raise UsageError(f"{files.text}: several files", "give one file, or a folder of .npz files")
        return ["--data", files.value]
    script, _, function = (line.value("--data-loader-script") or "").partition(":")
    if not script:
        return []
    function = function or line.value("--data-loader-func-name") or "load_data"
    return ["--data", f"{script}:{function}"]


_COMPARED = {
    "simple": ("--max-error", "--atol", "1e-05"),
    "cosine_similarity": ("--min-cosine", "--cosine-similarity-threshold", "0.997"),
    "snr": ("--min-sqnr", "--snr-threshold", "20"),
}
"""By what is compared: the bound, Polygraphy's option for its value, and its default."""


def _bounds(line: Line) -> list[str]:
    names = (line.value("--compare") or "simple").split()
    words = []
    for name in dict.fromkeys(names):
        if name not in _COMPARED:
            raise UsageError(
                f"--compare {name}: is not translated", f"give {', '.join(_COMPARED)}, or several"
            )
        bound, option, default = _COMPARED[name]
        value = line.value(option) or default
        try:
            float(value)
        except ValueError:
            raise UsageError(f"{option} {value}: not one number", f"{bound} holds for every output") from None
        words += [bound, value]
    unused = [option for name, (_, option, _) in _COMPARED.items() if name not in names and option in line]
    line.notes.extend(f"{option}: no effect here: it is not what --compare names" for option in unused)
    return words


# ── shapes ──────────────────────────────────────────────────────────────────────────────────────────────


def _profiles(line: Line) -> list[Profile]:
    """The optimisation profiles; a shape that one does not give is that of `--input-shapes`."""
    default = _shapes(line.by_name.get("--input-shapes"))
    given = [[_shapes(one) for one in line.given if one.name == name] for name in _BOUNDS]
    bounds = [[{**default, **shapes} for shapes in each] for each in zip_longest(*given, fillvalue={})]
    remedy = "give all three for the same inputs, or --input-shapes for those that do not vary"
    return profiles_of(bounds, default, ", ".join(_BOUNDS), remedy)


def _shapes(given: Given | None) -> dict[str, Shape]:
    """`ids:[1,128] mask:[1,128]` by input."""
    return {} if given is None else shapes_in(given.name, given.values, ",", "INPUT:[1,3,224,224]")


# ── values ──────────────────────────────────────────────────────────────────────────────────────────────


def _sources(names: str) -> str:
    if not names:
        raise UsageError("--tactic-sources: none is left", "name one, as --tactic-sources JIT_CONVOLUTIONS")
    return names.upper().replace(" ", ",")


_READ: Mapping[str, Read] = {
    "--pool-limit": partial(workspace, "--pool-limit workspace:SIZE", unit="B"),
    "--tactic-sources": _sources,
    "--tiling-optimization-level": str.lower,
    "--compute-capabilities": lambda names: names.replace(" ", ","),
}


# ── the table ───────────────────────────────────────────────────────────────────────────────────────────

_ROWS = read_table(Path(__file__).with_name("polygraphy.txt"), lambda cell: tuple(cell.split(", ")), _READ)
TOOLS = {tool: row for row in _ROWS if not row.name for tool in row.found_in}
OPTIONS = tuple(row for row in _ROWS if row.name)
