"""A command line of trtexec as command lines of trtopt."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from trtopt.errors import UsageError
from trtopt.trtexec.options import (
    BY_NAME,
    GRAPHS_BY_DEFAULT,
    READ,
    VERSIONS,
    TrtexecOption,
)

_PRECISIONS = ("best", "int4", "fp8", "int8", "bf16", "fp16")
"""Of several given, the first of these is built."""
_TO_GRAPHS = ("--useCudaGraph", "--noDataTransfers", "--useSpinWait")
"""What makes trtexec 10 measure as trtexec 11 does by default."""
_FROM_GRAPHS = ("--noCudaGraph", "--includeDataTransfers", "--noSpinWait")


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
    build = _build_words(given, values, profiles, data, notes) if builds else []
    target = _folder(values) if builds else values["--loadEngine"]
    bench = [] if _only_builds(values) else ["bench", target, *_bench_words(given, values, profiles, trtexec)]
    if bench and data is not None:
        bench += ["--data", data]
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
    remedies = [f"{', '.join(texts)}: {remedy}" for remedy, texts in reasons.items()]
    raise UsageError(
        f"{', '.join(one.text for one in refused)}: cannot be translated",
        "; ".join(remedies) if len(reasons) > 1 else refused[0].option.note,
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
    profiles: Sequence[Profile],
    data: str | None,
    notes: list[str],
) -> list[str]:
    words = ["build", values["--onnx"]]
    if "--saveEngine" in values:
        words += ["-o", (folder := _folder(values))]
        notes.append(f"the engine is in the build folder {folder}, with its logs and manifest")
    words += _shape_words(profiles)
    words += _precision_words(values, data, notes)
    return words + _own_words("build", given, values)


def _bench_words(
    given: Sequence[Given], values: Mapping[str, str], profiles: Sequence[Profile], trtexec: str
) -> list[str]:
    words = ["--trust", values["--loadEngine"]] if "--loadEngine" in values else []
    words += _measured_words(profiles, values)
    words += _contract_words(trtexec, values)
    return words + _own_words("bench", given, values)


def _own_words(command: str, given: Sequence[Given], values: Mapping[str, str]) -> list[str]:
    """What options become by themselves; of values that are read the last counts."""
    lasting = [one for one in given if one.option.name not in READ or one.value == values[one.option.name]]
    return [word for one in lasting for word in one.option.words_for(command, one.value)]


def _only_builds(values: Mapping[str, str]) -> bool:
    return not values.keys().isdisjoint({"--skipInference", "--buildOnly"})


def _folder(values: Mapping[str, str]) -> str:
    """The build folder: named after the engine file, or after the model in the current folder."""
    if "--saveEngine" in values:
        return str(PurePath(values["--saveEngine"]).with_suffix(".trtopt"))
    return f"{PurePath(values['--onnx']).stem}.trtopt"


def _contract_words(trtexec: str, values: Mapping[str, str]) -> list[str]:
    """The terms of the measurement: those of the version, with what the options change."""
    own, other, changes = "trtexec-10", "trtexec-11", _TO_GRAPHS
    if trtexec in GRAPHS_BY_DEFAULT:
        own, other, changes = other, own, _FROM_GRAPHS
    given = [name for name in changes if name in values]
    if len(given) == len(changes):  # by then it is the other contract
        return ["--contract", other]
    return ["--contract", own, *(word for name in given for word in BY_NAME[name].form.split()[1:])]


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
    return ["--precision", precision, *(["--data", data] if calibrated and data is not None else [])]


# ── shapes ──────────────────────────────────────────────────────────────────────────────────────────────


Shape = tuple[int, ...]
Profile = Mapping[str, tuple[Shape, Shape, Shape]]
"""By input: its smallest, tuned and largest shape in an optimisation profile."""
_BOUNDS = ("--minShapes", "--optShapes", "--maxShapes")


def _profiles(given: Sequence[Given]) -> list[Profile]:
    """The optimisation profiles; the shapes of `--shapes` are one where no other is given, as in trtexec."""
    bounds: list[dict[str, dict[str, Shape]]] = []
    inference: dict[str, Shape] = {}
    for one in given:
        name = one.option.name
        if name == "--profile" or (name in _BOUNDS and not bounds):
            bounds.append({})
        if name in _BOUNDS:
            bounds[-1][name] = parse_shapes(name, one.value)
        elif name == "--shapes":
            inference = parse_shapes(name, one.value)
    profiles = list(map(_profile, bounds))
    return profiles or ([{name: (shape,) * 3 for name, shape in inference.items()}] if inference else [])


def _profile(bounds: Mapping[str, Mapping[str, Shape]]) -> Profile:
    low, best, high = (bounds.get(name, {}) for name in _BOUNDS)
    if not low and not high:
        low = high = best
    if not low.keys() == best.keys() == high.keys() or not best:
        raise UsageError(
            "--minShapes, --optShapes and --maxShapes do not name the same inputs",
            "give all three for the same inputs, or --optShapes alone",
        )
    return {name: (low[name], best[name], high[name]) for name in best}


def parse_shapes(name: str, spec: str) -> dict[str, Shape]:
    """`ids:1x128,mask:1x128` by input; scalars are left out."""
    shapes: dict[str, Shape] = {}
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


def _shape_words(profiles: Sequence[Profile]) -> list[str]:
    """`--batch` and `--shape`: axis 0 is the batch."""
    if not profiles:
        return []
    batches = [_batches(profile) for profile in profiles]
    shapes = [
        [_shape_word(name, shapes, batch) for name, shapes in profile.items() if len(shapes[1]) > 1]
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
    return words + [word for shape in shapes[0] for word in ("--shape", shape)]


def _batches(profile: Profile) -> Shape:
    """MIN, OPT and MAX of axis 0: those of the inputs where it varies.

    Where none does, the one that most inputs have as their first or second length: a recurrent state has the
    batch second, behind its layers.
    """
    found = [tuple(shape[0] for shape in shapes) for shapes in profile.values()]
    varying = {batch for batch in found if len(set(batch)) > 1}
    if len(varying) > 1:
        raise UsageError(
            f"the first axes of the inputs vary differently: {sorted(varying)}",
            "trtopt takes axis 0 as the batch of all inputs: give them the same range",
        )
    if varying:
        return next(iter(varying))
    return max(found, key=lambda batch: sum(batch[1] in best[:2] for _, best, _ in profile.values()))


def _shape_word(name: str, shapes: Sequence[Shape], batch: Shape) -> str:
    first = "N" if tuple(shape[0] for shape in shapes) == batch else ""
    written = ["x".join([first or str(shape[0]), *map(str, shape[1:])]) for shape in shapes]
    return f"{name}:{written[0] if len(set(written)) == 1 else ','.join(written)}"


def _measured_words(profiles: Sequence[Profile], values: Mapping[str, str]) -> list[str]:
    """The batch size: of `--shapes`, else the one that the first profile is tuned for.

    And shapes, where the engine is tuned for other lengths, or where that is unknown.
    """
    shapes = parse_shapes("--shapes", values.get("--shapes", ""))
    axes = {name: _batch_axis(name, profiles) for name in shapes}
    sizes = [size for name, shape in shapes.items() for at, size in enumerate(shape) if at == axes[name]]
    if "--shapes" not in values and profiles:
        sizes = [_batches(profiles[0])[1]]
    words = ["--batch", str(sizes[0])] if sizes else []
    for name, shape in shapes.items():
        lengths = ["N" if axis == axes[name] else str(length) for axis, length in enumerate(shape)]
        tuned = [one[name][1] for one in profiles if name in one]
        is_tuned = "--loadEngine" not in values and all(
            _without(axes[name], one) == _without(axes[name], shape) for one in tuned
        )
        if len(shape) > 1 and not is_tuned:
            words += ["--shape", f"{name}:{'x'.join(lengths)}"]
    return words


def _batch_axis(name: str, profiles: Sequence[Profile]) -> int | None:
    """The axis of an input that is as long as the batch, a later one in a recurrent state; None if none is.

    Axis 0 for an input that no profile names.
    """
    profile = next((one for one in profiles if name in one), None)
    if profile is None:
        return 0
    ranges = zip(*profile[name], strict=False)  # as given
    return next((axis for axis, lengths in enumerate(ranges) if lengths == _batches(profile)), None)


def _without(batch: int | None, shape: Shape) -> list[int]:
    """The lengths of the other axes."""
    return [length for axis, length in enumerate(shape) if axis != batch]
