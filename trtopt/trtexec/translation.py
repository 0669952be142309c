"""A command line of trtexec as command lines of trtopt."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from trtopt.errors import UsageError
from trtopt.trtexec.options import (
    BY_NAME,
    CALIBRATION_DATA,
    GRAPHS_BY_DEFAULT,
    INPUT_DATA,
    LIBRARIES_BY_DEFAULT,
    VERSIONS,
    TrtexecOption,
)

Shapes = dict[str, tuple[int, ...]]
_PRECISIONS = ("best", "int4", "fp8", "int8", "bf16", "fp16")
"""Of several given, the first of these is built."""
_SOURCES = ("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")
"""The tactic sources that TensorRT 10 and 11 use by default."""
_TILING = ("none", "fast", "moderate", "full")
"""The levels, in the order of their numbers."""
_MIB = {"": 1, "B": 2**-20, "K": 2**-10, "M": 1, "G": 2**10}


@dataclass(frozen=True)
class Given:
    """An option of the command line, and its value."""

    option: TrtexecOption
    value: str

    @property
    def text(self) -> str:
        """As typed."""
        return f"{self.option.name}={self.value}" if self.value else self.option.name


@dataclass(frozen=True)
class Translation:
    """Command lines of trtopt, without `trtopt` itself, in their order; `build` and `bench` may be empty."""

    build: tuple[str, ...]
    bench: tuple[str, ...]
    environment: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        """Those to run."""
        return tuple(command for command in (self.build, self.bench) if command)

    @property
    def lines(self) -> tuple[str, ...]:
        """To be pasted into a shell."""
        setting = "".join(f"{name}={shlex.quote(value)} " for name, value in self.environment.items())
        return tuple(f"{setting}{shlex.join(('trtopt', *command))}" for command in self.commands)


def translate(
    arguments: Sequence[str], *, written_for: str | None = None, data: str | None = None
) -> Translation:
    """The command lines of trtopt that do what trtexec does with these arguments.

    Args:
        arguments: what follows `trtexec`.
        written_for: the trtexec that they were written for, one of `VERSIONS` [default: inferred].
        data: samples, for calibration and as inputs.
    """
    given = parse(arguments)
    notes: list[str] = []
    trtexec = written_for or _version_of(given, notes)
    _refuse(given)
    values = {one.option.name: one.value for one in given}
    if ("--onnx" in values) == ("--loadEngine" in values):
        raise UsageError("give either --onnx=FILE or --loadEngine=FILE", "add it, or omit the other")
    if "--loadEngine" in values and _only_builds(values):
        raise UsageError("--loadEngine and --skipInference leave nothing to do", "omit --skipInference")
    notes += _notes(given, trtexec)
    profiles = _profiles(given)
    builds = "--onnx" in values
    build = _build_words(given, values, profiles, trtexec, data, notes) if builds else []
    target = _folder(values) if builds else values["--loadEngine"]
    bench = [] if _only_builds(values) else ["bench", target, *_bench_words(given, values, profiles, trtexec)]
    if bench and data is not None:
        bench += [INPUT_DATA, data]
    device = values.get("--device", "0")
    return Translation(
        build=tuple(build),
        bench=tuple(bench),
        environment={"CUDA_VISIBLE_DEVICES": device} if device != "0" else {},
        notes=tuple(dict.fromkeys(notes)),
    )


def parse(arguments: Sequence[str]) -> list[Given]:
    """The options of a command line, as `--option=value` or `--option value`."""
    waiting = list(arguments)
    found: list[Given] = []
    while waiting:
        name, equals, value = waiting.pop(0).partition("=")
        option = BY_NAME.get(name)
        if option is None:
            near = difflib.get_close_matches(name, BY_NAME, n=1)
            hint = (
                f"did you mean {near[0]}?"
                if near
                else "trtopt build --help and bench --help list trtopt's own"
            )
            raise UsageError(f"{name}: no option of trtexec {', '.join(VERSIONS)}", hint)
        if option.value and not equals:
            if not waiting or waiting[0].startswith("--"):
                raise UsageError(f"{name}: the value is missing", f"write {name}={option.value}")
            value = waiting.pop(0)
        elif equals and not option.value:
            raise UsageError(f"{name}={value}: {name} takes no value", f"write {name}")
        found.append(Given(option, value))
    return found


def _version_of(given: Sequence[Given], notes: list[str]) -> str:
    """The trtexec whose options these are: of several the latest that measures without a graph by default."""
    possible = [name for name in VERSIONS if all(name in one.option.versions for one in given)]
    if not possible:
        listed = ", ".join(f"{one.option.name} ({', '.join(one.option.versions)})" for one in given)
        raise UsageError(
            f"no version of trtexec has all of these options: {listed}",
            f"add --from {' or '.join(VERSIONS[1:])}",
        )
    before = [name for name in possible if name not in GRAPHS_BY_DEFAULT]
    if not before:
        return possible[-1]
    if len(before) < len(possible) and not _only_builds({one.option.name: "" for one in given}):
        notes.append(
            f"read as trtexec {before[-1]}, which by default copies inputs and outputs, launches without a "
            f"CUDA graph and sleeps while it waits; trtexec {possible[-1]} does none of these: "
            f"--from {possible[-1]}"
        )
    return before[-1]


def _refuse(given: Sequence[Given]) -> None:
    """Stop at options that trtopt cannot translate, all of them at once."""
    refused = [one for one in given if one.option.kind == "refused" and one.value not in one.option.harmless]
    if not refused:
        return
    reasons: dict[str, list[str]] = {}
    for one in refused:
        reasons.setdefault(one.option.note, []).append(one.text)
    if len(reasons) == 1:
        ((remedy, texts),) = reasons.items()
        raise UsageError(f"{', '.join(texts)}: cannot be translated", remedy)
    raise UsageError(
        f"{', '.join(one.text for one in refused)}: cannot be translated",
        "; ".join(f"{', '.join(texts)}: {remedy}" for remedy, texts in reasons.items()),
    )


def _notes(given: Sequence[Given], trtexec: str) -> list[str]:
    notes = [
        f"{one.text}: no effect here: {one.option.note}" for one in given if one.option.kind == "no effect"
    ]
    strange = [one.option.name for one in given if trtexec not in one.option.versions]
    if strange:
        notes.append(f"trtexec {trtexec} has no {', '.join(strange)}: read as the other versions have it")
    return notes


def _build_words(
    given: Sequence[Given],
    values: Mapping[str, str],
    profiles: Sequence[_Profile],
    trtexec: str,
    data: str | None,
    notes: list[str],
) -> list[str]:
    words = ["build", values["--onnx"]]
    if "--saveEngine" in values:
        words += ["-o", (folder := _folder(values))]
        notes.append(f"the engine is in the build folder {folder}, with its logs and manifest")
    words += _shape_words(profiles, values)
    words += _precision_words(values, data, notes)
    if "--memPoolSize" in values:
        words += ["--workspace", _workspace(values["--memPoolSize"])]
    if "--tacticSources" in values:
        words += ["--tactic-sources", _tactic_sources(values["--tacticSources"], trtexec)]
    words += _tiling_words(values)
    for one in given:
        words += _filled(one.option.build, one.value)
    return words


def _bench_words(
    given: Sequence[Given], values: Mapping[str, str], profiles: Sequence[_Profile], trtexec: str
) -> list[str]:
    words = ["--trust", values["--loadEngine"]] if "--loadEngine" in values else []
    words += _measured_words(profiles, values)
    words += _contract_words(trtexec, values)
    if "--warmUp" in values:
        words += ["--warmup", f"{_number('--warmUp', values['--warmUp']) / 1000:g}"]
    if "--duration" in values and (seconds := _number("--duration", values["--duration"])):
        words += ["--duration", f"{seconds:g}"]
    for one in given:
        words += _filled(one.option.bench, one.value)
    return words


def _filled(words: Sequence[str], value: str) -> list[str]:
    return [word.replace("{}", value) for word in words]


def _only_builds(values: Mapping[str, str]) -> bool:
    return not values.keys().isdisjoint({"--skipInference", "--buildOnly"})


def _folder(values: Mapping[str, str]) -> str:
    """The build folder: named after the engine file, or after the model in the current folder."""
    if "--saveEngine" in values:
        return str(PurePath(values["--saveEngine"]).with_suffix(".trtopt"))
    return f"{PurePath(values['--onnx']).stem}.trtopt"


def _contract_words(trtexec: str, values: Mapping[str, str]) -> list[str]:
    """The terms of the measurement: those of the version, with what the options change."""
    if trtexec in GRAPHS_BY_DEFAULT:
        base, changes = (
            "trtexec-11",
            {
                "--noCudaGraph": ("--no-graph",),
                "--includeDataTransfers": ("--transfers",),
                "--noSpinWait": ("--sync", "blocking"),
            },
        )
    else:
        base, changes = (
            "trtexec-10",
            {
                "--useCudaGraph": ("--graph",),
                "--noDataTransfers": ("--no-transfers",),
                "--useSpinWait": ("--sync", "spin"),
            },
        )
    given = [words for name, words in changes.items() if name in values]
    if len(given) == len(changes):
        return ["--contract", "trtexec-10" if base == "trtexec-11" else "trtexec-11"]
    return ["--contract", base, *(word for words in given for word in words)]


def _precision_words(values: Mapping[str, str], data: str | None, notes: list[str]) -> list[str]:
    """The narrowest type that is allowed, with samples to calibrate on."""
    precision = next((name for name in _PRECISIONS if f"--{name}" in values), None)
    if precision is None:
        return []
    calibrated = precision in ("best", "int8", "fp8")
    if precision == "best" and data is None:
        raise UsageError(
            "--best: precisions are chosen by speed and accuracy, which takes samples",
            "add --data DATA (an .npz, a folder of them or module:function), or give --fp16 instead",
        )
    if data is None or not calibrated:
        notes.append(f"--{precision}: {BY_NAME[f'--{precision}'].note}")
    return ["--precision", precision, *([CALIBRATION_DATA, data] if calibrated and data is not None else [])]


def _workspace(spec: str) -> str:
    """The workspace in MiB, of `workspace:1024` or `workspace:1G`."""
    match = re.fullmatch(r"workspace:(\d+(?:\.\d+)?)([BKMG]?)(?:iB)?", spec)
    if match is None:
        raise UsageError(
            f"--memPoolSize={spec}: cannot be translated", "give one pool, --memPoolSize=workspace:MIB"
        )
    return str(max(1, round(float(match[1]) * _MIB[match[2]])))


def _tactic_sources(spec: str, trtexec: str) -> str:
    """The sources to use, of `+NAME,-NAME`."""
    if trtexec in LIBRARIES_BY_DEFAULT:
        raise UsageError(
            f"--tacticSources={spec}: relative to the default of TensorRT {trtexec}, which varies",
            "omit it, and name all sources: trtopt build MODEL --tactic-sources CUBLAS_LT,JIT_CONVOLUTIONS",
        )
    chosen = dict.fromkeys(_SOURCES)
    for part in spec.split(","):
        sign, name = part[:1], part[1:]
        if sign not in ("+", "-"):
            raise UsageError(f"--tacticSources={spec}: {part} has no sign", f"write +{part} or -{part}")
        if sign == "+":
            chosen[name] = None
        else:
            chosen.pop(name, None)
    if not chosen:
        raise UsageError(f"--tacticSources={spec}: leaves no source", f"keep one of {', '.join(_SOURCES)}")
    return ",".join(chosen)


def _tiling_words(values: Mapping[str, str]) -> list[str]:
    """The level by its name, and the limit in MiB; below 0 it is TensorRT's own."""
    words = []
    if (level := values.get("--tilingOptimizationLevel")) is not None:
        if level not in map(str, range(len(_TILING))):
            raise UsageError(
                f"--tilingOptimizationLevel={level}: no such level", f"give 0 to {len(_TILING) - 1}"
            )
        words += ["--tiling", _TILING[int(level)]]
    limit = _number("--l2LimitForTiling", values.get("--l2LimitForTiling", "-1"))
    if limit >= 0:
        if round(limit / 2**20) < 1:
            raise UsageError(f"--l2LimitForTiling={limit:g}: less than 1 MiB", "give bytes, 1048576 or more")
        words += ["--l2-limit", str(round(limit / 2**20))]
    return words


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{name}={text}: not a number", f"write, say, {name}=200") from None


# ── shapes ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class _Profile:
    """The shapes of one optimisation profile, by `--minShapes`, `--optShapes` and `--maxShapes`."""

    low: Shapes = field(default_factory=dict)
    best: Shapes = field(default_factory=dict)
    high: Shapes = field(default_factory=dict)


def _profiles(given: Sequence[Given]) -> list[_Profile]:
    """The optimisation profiles; the shapes of `--shapes` are one where no other is given, as in trtexec."""
    profiles: list[_Profile] = []
    inference: Shapes = {}
    names = {"--minShapes": "low", "--optShapes": "best", "--maxShapes": "high"}
    for one in given:
        if one.option.name == "--profile" or (one.option.name in names and not profiles):
            profiles.append(_Profile())
        if one.option.name in names:
            setattr(profiles[-1], names[one.option.name], parse_shapes(one.option.name, one.value))
        elif one.option.name == "--shapes":
            inference = parse_shapes("--shapes", one.value)
    for profile in profiles:
        if profile.best and not profile.low and not profile.high:
            profile.low = profile.high = profile.best
        if not profile.low.keys() == profile.best.keys() == profile.high.keys() or not profile.best:
            raise UsageError(
                "--minShapes, --optShapes and --maxShapes do not name the same inputs",
                "give all three for the same inputs, or --optShapes alone",
            )
    return profiles or ([_Profile(inference, inference, inference)] if inference else [])


def parse_shapes(name: str, spec: str) -> Shapes:
    """`ids:1x128,mask:1x128` by input; scalars are left out."""
    shapes: Shapes = {}
    for part in spec.split(",") if spec else ():
        key, colon, axes = part.strip().rpartition(":")
        lengths = [] if axes in ("", "scalar") else axes.split("x")
        if not colon or "*" in key or not all(length.isascii() and length.isdecimal() for length in lengths):
            raise UsageError(
                f"{name}={part}: expected INPUT:1x3x224x224",
                "give each input by its whole name, with all axes",
            )
        if lengths:
            shapes[key.strip("'")] = tuple(map(int, lengths))
    return shapes


def _shape_words(profiles: Sequence[_Profile], values: Mapping[str, str]) -> list[str]:
    """`--batch` and `--shape`: axis 0 is the batch."""
    if not profiles:
        return []
    batches = [_batches(profile) for profile in profiles]
    shapes = [
        [_shape_word(name, profile, batch) for name in profile.best if len(profile.best[name]) > 1]
        for profile, batch in zip(profiles, batches, strict=True)
    ]
    if any(one != shapes[0] for one in shapes):
        raise UsageError(
            "optimisation profiles that differ in other axes than the batch cannot be translated",
            "build one engine per profile: one trtopt trtexec for each, with its own --saveEngine",
        )
    is_dynamic = len(batches) > 1 or len(set(batches[0])) > 1
    words = ["--dynamic"] if is_dynamic else []
    for batch in batches:
        words += ["--batch", ",".join(map(str, batch if is_dynamic else batch[:1]))]
    for shape in shapes[0]:
        words += ["--shape", shape]
    return words


def _batches(profile: _Profile) -> tuple[int, int, int]:
    """MIN, OPT and MAX of axis 0: those of the inputs where it varies.

    Where none does, the one that most inputs have as their first or second length: a recurrent state has the
    batch second, behind its layers.
    """
    found = [(profile.low[name][0], profile.best[name][0], profile.high[name][0]) for name in profile.best]
    varying = {batch for batch in found if len(set(batch)) > 1}
    if len(varying) > 1:
        raise UsageError(
            f"the first axes of the inputs vary differently: {sorted(varying)}",
            "trtopt takes axis 0 as the batch of all inputs: give them the same range",
        )
    if varying:
        return next(iter(varying))
    return max(found, key=lambda batch: sum(batch[1] in shape[:2] for shape in profile.best.values()))


def _shape_word(name: str, profile: _Profile, batch: tuple[int, int, int]) -> str:
    shapes = (profile.low[name], profile.best[name], profile.high[name])
    own = tuple(shape[0] for shape in shapes)
    written = ["x".join(["N" if own == batch else str(shape[0]), *map(str, shape[1:])]) for shape in shapes]
    return f"{name}:{written[0] if len(set(written)) == 1 else ','.join(written)}"


def _measured_words(profiles: Sequence[_Profile], values: Mapping[str, str]) -> list[str]:
    """`--batch`, and `--shape` where the engine is tuned for other lengths, or where that is unknown."""
    words = [] if (size := _measured_batch(profiles, values)) is None else ["--batch", str(size)]
    for name, shape in parse_shapes("--shapes", values.get("--shapes", "")).items():
        batch = _batch_axis(name, profiles)
        tuned = [one.best.get(name, shape) for one in profiles]
        is_tuned = "--loadEngine" not in values and all(
            _without(batch, one) == _without(batch, shape) for one in tuned
        )
        if len(shape) > 1 and not is_tuned:
            lengths = ["N" if axis == batch else str(length) for axis, length in enumerate(shape)]
            words += ["--shape", f"{name}:{'x'.join(lengths)}"]
    return words


def _batch_axis(name: str, profiles: Sequence[_Profile]) -> int | None:
    """The axis of an input that is as long as the batch, a later one in a recurrent state; None if none is.

    Axis 0 for an input that no profile names.
    """
    profile = next((one for one in profiles if name in one.best), None)
    if profile is None:
        return 0
    ranges = zip(profile.low[name], profile.best[name], profile.high[name], strict=False)  # as given
    return next((axis for axis, lengths in enumerate(ranges) if lengths == _batches(profile)), None)


def _without(batch: int | None, shape: Sequence[int]) -> list[int]:
    """The lengths of the other axes."""
    return [length for axis, length in enumerate(shape) if axis != batch]


def _measured_batch(profiles: Sequence[_Profile], values: Mapping[str, str]) -> int | None:
    """The batch size to measure at: of `--shapes`, else the one that the first profile is tuned for."""
    if "--shapes" in values:
        shapes = parse_shapes("--shapes", values["--shapes"])
        axes = {name: _batch_axis(name, profiles) for name in shapes}
        sizes = [size for name, shape in shapes.items() for at, size in enumerate(shape) if at == axes[name]]
        return sizes[0] if sizes else None
    return _batches(profiles[0])[1] if profiles else None
