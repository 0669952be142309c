"""From batch sizes and `--shape` flags to the range of shapes that each input of an engine gets.

The batch axis is axis 0 of every input on which the model leaves axis 0 open. Every other open axis must be
given by `--shape NAME:MIN,OPT,MAX` (or one shape for a fixed size), each shape written like `Nx3x224x224`
with `N` where the batch goes.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from itertools import pairwise

from trtopt.errors import FixedBatchError, UsageError
from trtopt.recipe import BATCH, ShapeFlag
from trtopt.records import MAX_PROFILES, BuildPlan, OnnxArtifact, Profile, Shape, ShapeRange, TensorSpec


def batch_axes(model: OnnxArtifact) -> dict[str, int | str]:
    """Axis 0 of each input that has one: a number where the model fixes it, else its name."""
    return {spec.name: spec.shape[0] for spec in model.inputs if spec.shape}


def fixed_batch(model: OnnxArtifact) -> int | None:
    """The batch size that the model fixes, or None where some input leaves axis 0 open."""
    axes = batch_axes(model)
    if not axes or any(isinstance(axis, str) for axis in axes.values()):
        return None
    first = next(iter(axes.values()))
    assert isinstance(first, int)
    return first


def shape_ranges(model: OnnxArtifact, batch: ShapeRange, flags: Sequence[ShapeFlag]) -> dict[str, ShapeRange]:
    """The range of every input for one engine.

    Raises:
        FixedBatchError: the model fixes another batch.
        UsageError: a flag names no input, has the wrong rank, contradicts a fixed axis, has min > max, or an
            open axis is given by no flag.
    """
    given = _by_input(model, flags)
    fixed = fixed_batch(model)
    if fixed is not None and (batch.min[0] != fixed or batch.max[0] != fixed):
        raise FixedBatchError(
            f"{model.path}: the batch axis is fixed at {fixed}; requested {_span(batch)}",
            f"export it with a dynamic batch axis, or build with --batch {fixed}",
        )
    return {spec.name: _range_of(spec, batch, given.get(spec.name)) for spec in model.inputs}


def _span(batch: ShapeRange) -> str:
    low, high = batch.min[0], batch.max[0]
    return f"{low}" if low == high else f"{low} to {high}"


def _by_input(
    model: OnnxArtifact, flags: Sequence[ShapeFlag]
) -> dict[str, tuple[tuple[int | str, ...], ...]]:
    names = [spec.name for spec in model.inputs]
    given: dict[str, tuple[tuple[int | str, ...], ...]] = {}
    for name, shapes in flags:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UsageError(
                f"--shape {name}: the model has no such input",
                f"{hint}its inputs are {', '.join(map(repr, names))}",
            )
        if name in given:
            raise UsageError(f"--shape {name}: given twice", "give each input one --shape")
        given[name] = shapes
    return given


def _range_of(
    spec: TensorSpec, batch: ShapeRange, given: tuple[tuple[int | str, ...], ...] | None
) -> ShapeRange:
    shapes = given or (tuple(_default_axes(spec)),)
    low, best, high = shapes if len(shapes) == 3 else (shapes[0],) * 3
    built = ShapeRange(
        min=_fill(spec, low, batch.min[0]),
        opt=_fill(spec, best, batch.opt[0]),
        max=_fill(spec, high, batch.max[0]),
    )
    for axis, (a, b, c) in enumerate(zip(built.min, built.opt, built.max, strict=True)):
        if not a <= b <= c:
            raise UsageError(
                f"--shape {spec.name}: axis {axis} has min {a}, opt {b}, max {c}",
                "give min ≤ opt ≤ max on every axis",
            )
    return built


def _default_axes(spec: TensorSpec) -> list[int | str]:
    axes: list[int | str] = []
    for index, axis in enumerate(spec.shape):
        if isinstance(axis, int):
            axes.append(axis)
        elif index == 0:
            axes.append(BATCH)
        else:
            written = "x".join(
                BATCH if place == 0 and isinstance(length, str) else str(length)
                for place, length in enumerate(spec.shape)
            )
            raise UsageError(
                f"input {spec.name!r}: axis {index} ({axis!r}) is dynamic and no --shape gives its size",
                f"add --shape {spec.name}:MIN,OPT,MAX, each of the form {written} with numbers for the names",
            )
    return axes


def _fill(spec: TensorSpec, axes: tuple[int | str, ...], batch: int) -> Shape:
    """Put the batch in and hold the shape against the model's own."""
    if len(axes) != len(spec.shape):
        raise UsageError(
            f"--shape {spec.name}: {len(axes)} axes given, the model's input has {len(spec.shape)}",
            f"its shape is {'x'.join(map(str, spec.shape))}",
        )
    filled: list[int] = []
    for index, (axis, own) in enumerate(zip(axes, spec.shape, strict=True)):
        length = batch if isinstance(axis, str) else axis
        if isinstance(own, int) and own != length:
            raise UsageError(
                f"--shape {spec.name}: axis {index} is {length}, the model fixes it at {own}",
                f"its shape is {'x'.join(map(str, spec.shape))}",
            )
        if index == 0 and isinstance(own, str) and axis != BATCH and axis != batch:
            raise UsageError(
                f"--shape {spec.name}: axis 0 is the batch axis and is set by --batch",
                f"write {BATCH} for it",
            )
        filled.append(length)
    return tuple(filled)


def batch_range(batches: Sequence[int]) -> ShapeRange:
    """The range of an optimisation profile: one value, MIN,MAX (tuned for MAX) or MIN,OPT,MAX, in any order.

    Raises:
        UsageError: more than three values, or none.
    """
    if not 1 <= len(batches) <= 3:
        raise UsageError(
            f"--dynamic takes at most three batch sizes (min, opt, max); {len(batches)} were given",
            "write, say, --dynamic --batch 1,8,32, or several --batch for several optimisation profiles",
        )
    batches = sorted(batches)
    low, high = batches[0], batches[-1]
    best = batches[1] if len(batches) == 3 else high
    return ShapeRange(min=(low,), opt=(best,), max=(high,))


def profiles_for(
    model: OnnxArtifact, ranges: Sequence[Sequence[int]], flags: Sequence[ShapeFlag]
) -> tuple[Profile, ...]:
    """The optimisation profiles of one dynamic engine, by the smallest batch and then the largest; the other
    axes are the same in all.

    Raises:
        UsageError, FixedBatchError: see `batch_range` and `shape_ranges`; too many profiles, or two alike.
    """
    if len(ranges) > MAX_PROFILES:
        raise UsageError(
            f"{len(ranges)} optimisation profiles in one engine: at most {MAX_PROFILES} are built",
            "give fewer --batch, or build several engines",
        )
    batches = sorted(map(batch_range, ranges), key=lambda one: (one.min, one.max, one.opt))
    for one, other in pairwise(batches):
        if (one.min, one.max) == (other.min, other.max):
            raise UsageError(
                f"two optimisation profiles for batches {_span(one)}: only one of them would ever run",
                "give each --batch another range",
            )
    return tuple(Profile(batch=batch, shapes=shape_ranges(model, batch, flags)) for batch in batches)


def over_all(profiles: Sequence[Profile]) -> Profile:
    """What reaches over all profiles, tuned for what the one with the largest batch is."""
    largest = max(profiles, key=lambda profile: (profile.batch.max, profile.batch.min))
    return Profile(
        batch=_over([profile.batch for profile in profiles], largest.batch),
        shapes={
            name: _over([profile.shapes[name] for profile in profiles], shapes)
            for name, shapes in largest.shapes.items()
        },
    )


def _over(ranges: Sequence[ShapeRange], tuned: ShapeRange) -> ShapeRange:
    return ShapeRange(
        min=tuple(map(min, zip(*(one.min for one in ranges), strict=True))),
        opt=tuned.opt,
        max=tuple(map(max, zip(*(one.max for one in ranges), strict=True))),
    )


def shapes_at(inputs: Sequence[TensorSpec], plan: BuildPlan, size: int) -> dict[str, Shape]:
    """Shapes of a model's inputs: what the engine is tuned for, with the batch size in its place."""
    shapes = {}
    for spec in inputs:
        best = plan.shapes[spec.name].opt
        is_batched = bool(spec.shape) and isinstance(spec.shape[0], str)
        shapes[spec.name] = (size, *best[1:]) if is_batched else best
    return shapes
