"""A command line of trtexec 8.6, 10 or 11 as command lines of trtopt.

Every option is a row of trtexec.txt beside this file; so is the table in docs/coming-from/trtexec.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

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
from trtopt.targets import TENSORRT, targets_where

VERSIONS = targets_where(lambda row: row.backend == TENSORRT)
"""Of trtexec: it comes with TensorRT."""
GRAPHS_BY_DEFAULT = VERSIONS[2:]
"""Those that by default measure with a CUDA graph, without copies and with a spinning host."""
_TO_GRAPHS = ("--useCudaGraph", "--noDataTransfers", "--useSpinWait")
"""What makes trtexec 10 measure as trtexec 11 does by default."""
_FROM_GRAPHS = ("--noCudaGraph", "--includeDataTransfers", "--noSpinWait")


def translate(
    arguments: Sequence[str],
    *,
    written_for: str | None = None,
    data: str | None = None,
    visible: str | None = None,
) -> Translation:
    """The command lines of trtopt that do what trtexec does with these arguments.

    Args:
        arguments: what follows `trtexec`.
        written_for: the trtexec that they were written for, one of `VERSIONS` [default: inferred].
        data: samples, for calibration and as inputs.
        visible: CUDA_VISIBLE_DEVICES, if it is set.
    """
    line = read_line(_NAME, OPTIONS, arguments, _REPEATED, abbreviated=False)
    if line.words:
        raise UsageError(f"{line.words[0]}: no option of {_NAME}", "write --onnx=FILE or --loadEngine=FILE")
    if "--noBuilderCache" in line and (cache := line.by_name.get("--timingCacheFile")):
        line = replace(line, given=[one for one in line.given if one is not cache])
        line.notes.append(f"{cache.text}: no effect beside --noBuilderCache")
    trtexec = written_for or _version_of(line)
    line.notes.extend(_version_notes(line.given, trtexec))
    model, engine = line.value("--onnx"), line.value("--loadEngine")
    if (model is None) == (engine is None):
        raise UsageError("give either --onnx=FILE or --loadEngine=FILE", "add it, or omit the other")
    if engine is not None and _only_builds(line):
        raise UsageError("--loadEngine and --skipInference leave nothing to do", "omit --skipInference")
    profiles = _profiles(line.given)
    commands, saved = [], line.value("--saveEngine")
    if model is not None:
        commands.append(build_words(line, model, saved, profiles, data))
    if not _only_builds(line):
        what = [build_folder(saved, str(model))] if engine is None else _engine_words(engine)
        shapes = _shapes("--shapes", line.value("--shapes") or "") if "--shapes" in line else None
        words = measured_words(profiles, shapes, is_tuned=engine is None)
        samples = [] if data is None else ["--data", data]
        commands.append(["bench", *what, *words, *_contract_words(trtexec, line), *samples])
    if data is not None and not any("--data" in words for words in commands):
        line.notes.append(f"--data {data}: no effect here: nothing is calibrated or measured")
    device = line.value("--device")
    environment = {} if device is None else _environment(device, visible)
    return replace(translation_of(commands, line), environment=environment)


def _engine_words(engine: str) -> Sequence[str]:
    """The engine, or a build folder: also the one that `--saveEngine` of this name has made."""
    folder = engine if Path(engine).exists() else build_folder(engine, "")
    return [folder] if Path(folder).is_dir() else [engine, "--trust", engine]


def _environment(device: str, visible: str | None) -> Mapping[str, str]:
    """What makes a device, counted among the visible ones, the first of them."""
    if device == "0":
        return {}
    if visible is None:
        return {"CUDA_VISIBLE_DEVICES": device}
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if not device.isdecimal() or int(device) >= len(names):
        raise UsageError(
            f"--device={device}: CUDA_VISIBLE_DEVICES={visible} has no such GPU",
            f"give a number below {len(names)}" if names else "set CUDA_VISIBLE_DEVICES to the GPUs to use",
        )
    return {"CUDA_VISIBLE_DEVICES": names[int(device)]}


def _version_of(line: Line) -> str:
    """The trtexec whose options these are: of several the latest that measures without a graph by default."""
    possible = [name for name in VERSIONS if all(name in one.option.found_in for one in line.given)]
    if not possible:
        listed = ", ".join(f"{one.name} ({', '.join(one.option.found_in)})" for one in line.given)
        raise UsageError(
            f"no version of trtexec has all of these options: {listed}",
            f"add --from {' or '.join(VERSIONS[1:])}",
        )
    before = [name for name in possible if name not in GRAPHS_BY_DEFAULT]
    if not before:
        return possible[-1]
    if len(before) < len(possible) and not _only_builds(line):
        line.notes.append(
            f"read as trtexec {before[-1]}, which by default copies inputs and outputs, launches without a "
            f"CUDA graph and sleeps while it waits; trtexec {possible[-1]} does none of these: "
            f"--from {possible[-1]}"
        )
    return before[-1]


def _version_notes(given: Sequence[Given], trtexec: str) -> list[str]:
    """What the version lacks, or does by default."""
    own = set(_TO_GRAPHS if trtexec in GRAPHS_BY_DEFAULT else _FROM_GRAPHS)
    strange = [one.name for one in given if trtexec not in one.option.found_in]
    notes = [f"{one.name}: no effect here: trtexec {trtexec} does so" for one in given if one.name in own]
    if strange:
        notes.append(f"trtexec {trtexec} has no {', '.join(strange)}: read as the other versions have it")
    return notes


def _only_builds(line: Line) -> bool:
    return "--skipInference" in line or "--buildOnly" in line


def _contract_words(trtexec: str, line: Line) -> list[str]:
    """The terms of the measurement: those of the version, with what the options change."""
    own, other, changes = "trtexec-10", "trtexec-11", _TO_GRAPHS
    if trtexec in GRAPHS_BY_DEFAULT:
        own, other, changes = other, own, _FROM_GRAPHS
    given = [name for name in changes if name in line]
    if len(given) == len(changes):  # by then it is the other contract
        return ["--contract", other]
    return ["--contract", own, *(word for name in given for word in BY_NAME[name].form.split()[1:])]


# ── shapes ──────────────────────────────────────────────────────────────────────────────────────────────


_BOUNDS = ("--minShapes", "--optShapes", "--maxShapes")


def _profiles(given: Sequence[Given]) -> list[Profile]:
    """The optimisation profiles; the shapes of `--shapes` are one where no other is given, as in trtexec."""
    found: list[dict[str, dict[str, Shape]]] = []
    inference: dict[str, Shape] = {}
    for one in given:
        if one.name == "--profile" or (one.name in _BOUNDS and not found):
            found.append({})
        if one.name in _BOUNDS:
            found[-1][one.name] = _shapes(one.name, one.value)
        elif one.name == "--shapes":
            inference = _shapes(one.name, one.value)
    bounds = [[profile.get(name, {}) for name in _BOUNDS] for profile in found]
    bounds = [[low, best, high] if low or high else [best] * 3 for low, best, high in bounds]
    remedy = "give all three for the same inputs, or --optShapes alone"
    return profiles_of(bounds, inference, ", ".join(_BOUNDS), remedy)


def _shapes(option: str, spec: str) -> dict[str, Shape]:
    """`ids:1x128,mask:1x128` by input."""
    return shapes_in(option, spec.split(",") if spec else (), "x", "INPUT:1x3x224x224")


# ── values ──────────────────────────────────────────────────────────────────────────────────────────────

_TILING = ("none", "fast", "moderate", "full")
"""The levels, in the order of their numbers."""


def _tiling(level: str) -> str:
    if level not in map(str, range(len(_TILING))):
        raise UsageError(f"--tilingOptimizationLevel={level}: no such level", f"give 0 to {len(_TILING) - 1}")
    return _TILING[int(level)]


def _l2_limit(text: str) -> str | None:
    """The limit in MiB; below 0 it is TensorRT's own."""
    limit = _number("--l2LimitForTiling", text)
    if limit >= 0 and round(limit / 2**20) < 1:
        raise UsageError(f"--l2LimitForTiling={limit:g}: less than 1 MiB", "give bytes, 1048576 or more")
    return str(round(limit / 2**20)) if limit >= 0 else None


def _duration(text: str) -> str | None:
    seconds = _number("--duration", text)
    return f"{seconds:g}" if seconds else None


def _number(name: str, text: str) -> float:
    with suppress(ValueError):
        if abs(number := float(text)) < 1e18:
            return number
    raise UsageError(f"{name}={text}: not a number", f"write, say, {name}=200")


_READ: Mapping[str, Read] = {
    "--memPoolSize": partial(workspace, "--memPoolSize=workspace:MIB", unit="M"),
    "--tilingOptimizationLevel": _tiling,
    "--l2LimitForTiling": _l2_limit,
    "--warmUp": lambda milliseconds: f"{_number('--warmUp', milliseconds) / 1000:g}",
    "--duration": _duration,
}


# ── the table ───────────────────────────────────────────────────────────────────────────────────────────


def _versions(text: str) -> tuple[str, ...]:
    """`all`, `10`, `to 10` or `from 10`."""
    *bound, name = text.split()
    if name == "all":
        return VERSIONS
    place = VERSIONS.index(name)
    return VERSIONS[place if bound != ["to"] else 0 : place + 1 if bound != ["from"] else None]


OPTIONS = read_table(Path(__file__).with_name("trtexec.txt"), _versions, _READ)
BY_NAME = {option.name: option for option in OPTIONS}
_REPEATED = frozenset({"--profile", *_BOUNDS, "--plugins", "--staticPlugins", "--dynamicPlugins"})
_NAME = f"trtexec {', '.join(VERSIONS)}"
