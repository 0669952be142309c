"""Shapes of a peer's command line as options of trtopt: optimisation profiles, and what is measured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from trtopt.errors import UsageError

Shape = tuple[int, ...]
Profile = Mapping[str, tuple[Shape, Shape, Shape]]
"""By input: its smallest, tuned and largest shape in an optimisation profile."""


def shapes_in(option: str, parts: Iterable[str], separator: str, example: str) -> dict[str, Shape]:
    """By input, from texts as the `example`, with or without brackets; scalars are left out."""
    shapes: dict[str, Shape] = {}
    for part in parts:
        name, colon, axes = part.strip().rpartition(":")
        lengths = axes.strip("[], ")
        numbers = [] if lengths in ("", "scalar") else [one.strip() for one in lengths.split(separator)]
        if not colon or "*" in name or not all(re.fullmatch(r"[0-9]{1,18}", one) for one in numbers):
            raise UsageError(
                f"{option} {part}: expected {example}",
                "give each input by its whole name, with all axes as numbers",
            )
        if numbers:
            shapes[name.strip("'")] = tuple(map(int, numbers))
    return shapes


def profiles_of(
    bounds: Sequence[Sequence[Mapping[str, Shape]]], fixed: Mapping[str, Shape], options: str, remedy: str
) -> list[Profile]:
    """Of smallest, tuned and largest shapes; without any, the `fixed` ones are a profile."""
    for low, best, high in bounds:
        if not low.keys() == best.keys() == high.keys() or not best:
            raise UsageError(f"{options} do not name the same inputs", remedy)
    profiles: list[Profile]
    profiles = [{name: (low[name], best[name], high[name]) for name in best} for low, best, high in bounds]
    return profiles or ([{name: (shape,) * 3 for name, shape in fixed.items()}] if fixed else [])


def profile_words(profiles: Sequence[Profile]) -> list[str]:
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
            "build one engine for each profile, with a command line of its own",
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


def measured_words(
    profiles: Sequence[Profile], shapes: Mapping[str, Shape] | None, *, is_tuned: bool
) -> list[str]:
    """The batch size: of `shapes`, else the one that the first profile is tuned for.

    And shapes, where the engine is tuned for other lengths, or where that is unknown.
    """
    axes = {name: _batch_axis(name, profiles) for name in shapes or ()}
    given = (shapes or {}).items()
    sizes = [size for name, shape in given for at, size in enumerate(shape) if at == axes[name]]
    if shapes is None and profiles:
        sizes = [_batches(profiles[0])[1]]
    words = ["--batch", str(sizes[0])] if sizes else []
    for name, shape in given:
        lengths = ["N" if axis == axes[name] else str(length) for axis, length in enumerate(shape)]
        tuned = [one[name][1] for one in profiles if name in one]
        is_known = is_tuned and all(_without(axes[name], one) == _without(axes[name], shape) for one in tuned)
        if len(shape) > 1 and not is_known:
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
