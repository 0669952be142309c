"""From batch sizes, `--shape` and `--axis` to the range of shapes that each input of an engine gets.

The batch axis is axis 0 of every input on which the model leaves axis 0 open, and later axes of its name,
such as that of a recurrent layer's state. Every other open axis must be given: for all inputs by
`--axis NAME=MIN,OPT,MAX`, or for one by `--shape INPUT:MIN,OPT,MAX` (or one shape for a fixed size), each
shape written like `Nx3x224x224` with `N` where the batch goes.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from trtopt.errors import FixedBatchError, UsageError
from trtopt.onnxio.graph_walk import names_length
from trtopt.recipe import ANY_SIZES, BATCH, Recipe, parse_shape_flag
from trtopt.records import MAX_PROFILES, BuildPlan, OnnxArtifact, Profile, Shape, ShapeRange, TensorSpec

_ANONYMOUS = "?"
Place = tuple[str, int]
"""An input and the index of an axis."""
Lengths = tuple[int, int, int]
"""The smallest, the tuned and the largest length of an axis."""


def axis_lengths(inputs: Sequence[TensorSpec], axes: Mapping[str, Sequence[int]]) -> dict[Place, Lengths]:
    """The lengths that `axes` gives to each axis it names.

    An axis is named as in the model, and is then the same in every input; or as INPUT.INDEX. The batch axis
    is not among them.
    """
    places = _places(inputs)
    lengths: dict[Place, Lengths] = {}
    for name, sizes in axes.items():
        for place in _placed(inputs, name, places):
            if place in lengths:
                raise UsageError(
                    f"--axis {name}: axis {place[1]} of {place[0]!r} is given under two names",
                    "give it under one",
                )
            lengths[place] = (sizes[0], sizes[len(sizes) // 2], sizes[-1])
    return lengths


def axis_name(spec: TensorSpec, index: int) -> str:
    """The name to give after `--axis`: the model's own, or INPUT.INDEX where it has none."""
    own = spec.shape[index]
    return f"{spec.name}.{index}" if own == _ANONYMOUS else str(own)


def by_own_names(inputs: Sequence[TensorSpec], axes: Mapping[str, Sequence[int]]) -> dict[str, Sequence[int]]:
    """The lengths of axes under the model's names, where INPUT.INDEX means no more and no less.

    Unchanged where that would make one of two: `axis_lengths` refuses them.
    """
    places = _places(inputs)
    specs = {spec.name: spec for spec in inputs}
    named: dict[str, Sequence[int]] = {}
    for name, sizes in axes.items():
        found = places.get(name, [])
        own = axis_name(specs[found[0][0]], found[0][1]) if found else name
        named[own if places.get(own) == found else name] = sizes
    return named if len(named) == len(axes) else dict(axes)


def check_shared_axes(inputs: Sequence[TensorSpec], shapes: Mapping[str, ShapeRange]) -> None:
    """Inputs that share an axis must have the same lengths along it."""
    first: dict[str, tuple[str, Lengths]] = {}
    for spec in inputs:
        built = shapes[spec.name]
        for index, axis in enumerate(spec.shape):
            if not index or not isinstance(axis, str) or axis == _ANONYMOUS:
                continue
            lengths = (built.min[index], built.opt[index], built.max[index])
            other, theirs = first.setdefault(axis, (spec.name, lengths))
            if lengths != theirs:
                raise UsageError(
                    f"inputs {other!r} and {spec.name!r} share the axis {axis!r}, and their ranges "
                    f"contradict each other: {_written(theirs)} and {_written(lengths)}",
                    f"give it once for all inputs: --axis {axis}={_written(theirs)}",
                )


def _written(lengths: Lengths) -> str:
    return ",".join(map(str, lengths if len(set(lengths)) > 1 else lengths[:1]))


def batch_name(inputs: Sequence[TensorSpec]) -> str | None:
    """What the model calls the batch axis, where all inputs with an open axis 0 call it alike."""
    names = {spec.shape[0] for spec in inputs if spec.shape and isinstance(spec.shape[0], str)}
    name = next(iter(names)) if len(names) == 1 else None
    return name if isinstance(name, str) and names_length(name) else None


def _places(inputs: Sequence[TensorSpec]) -> dict[str, list[Place]]:
    places: dict[str, list[Place]] = {}
    for spec in inputs:
        for index, axis in enumerate(spec.shape):
            if index and isinstance(axis, str):
                places.setdefault(f"{spec.name}.{index}", []).append((spec.name, index))
                if axis != _ANONYMOUS:
                    places.setdefault(axis, []).append((spec.name, index))
    return places


def _placed(inputs: Sequence[TensorSpec], name: str, places: Mapping[str, list[Place]]) -> list[Place]:
    if name in places and name != batch_name(inputs):
        return places[name]
    if any(spec.shape and spec.shape[0] == name for spec in inputs):
        raise UsageError(f"--axis {name}: is the batch axis", "give its sizes with --batch")
    near = difflib.get_close_matches(name, places, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    there = f"open axes: {', '.join(places)}" if places else "every axis but the batch is fixed in this model"
    raise UsageError(f"--axis {name}: the model has no such open axis", f"{hint}{there}")


def shape_ranges(model: OnnxArtifact, batch: ShapeRange, sizes: Recipe) -> dict[str, ShapeRange]:
    """The range of every input for one engine, by the shapes and axes of `sizes`."""
    given, lengths = _given_shapes(model.inputs, sizes), axis_lengths(model.inputs, sizes.axes)
    fixed = model.fixed_batch
    if fixed is not None and (batch.min[0] != fixed or batch.max[0] != fixed):
        raise FixedBatchError(
            f"{model.path}: the batch axis is fixed at {fixed}; requested {_span(batch)}",
            f"make it dynamic: trtopt rewrite {shlex.quote(model.path)} --dynamic-batch -o "
            f"{shlex.quote(f'{Path(model.path).stem}-dynamic.onnx')}; or take --batch {fixed}",
        )
    name = batch_name(model.inputs)
    shapes = {spec.name: _range_of(spec, batch, given.get(spec.name), lengths, name) for spec in model.inputs}
    check_shared_axes(model.inputs, shapes)
    return shapes


def _span(batch: ShapeRange) -> str:
    low, high = batch.min[0], batch.max[0]
    return f"{low}" if low == high else f"{low} to {high}"


def _given_shapes(
    inputs: Sequence[TensorSpec], sizes: Recipe
) -> dict[str, tuple[tuple[int | str, ...], ...]]:
    """One shape or three by the name of an input."""
    names = [spec.name for spec in inputs]
    for name in sizes.shapes:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UsageError(
                f"--shape {name}: the model has no such input",
                f"{hint}its inputs are {', '.join(map(repr, names))}",
            )
    return dict(parse_shape_flag(f"{name}:{shapes}") for name, shapes in sizes.shapes.items())


def _range_of(
    spec: TensorSpec,
    batch: ShapeRange,
    given: tuple[tuple[int | str, ...], ...] | None,
    lengths: Mapping[Place, Lengths],
    batch_name: str | None,
) -> ShapeRange:
    shapes = given or tuple(tuple(_default_axes(spec, lengths, which, batch_name)) for which in range(3))
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
        if lengths.get((spec.name, axis), (a, b, c)) != (a, b, c):
            raise UsageError(
                f"--shape {spec.name} and --axis {axis_name(spec, axis)} contradict each other",
                "omit one of them",
            )
    return built


def _default_axes(
    spec: TensorSpec, lengths: Mapping[Place, Lengths], which: int, batch_name: str | None
) -> list[int | str]:
    """The input's own axes, with the smallest, the tuned or the largest length (`which`) of open ones."""
    missing = [
        index
        for index, axis in enumerate(spec.shape)
        if index and isinstance(axis, str) and axis != batch_name and (spec.name, index) not in lengths
    ]
    if missing:
        place, first = missing[0], spec.shape[0]
        axis = str(spec.shape[place])
        hint = f"; --batch gives that of axis 0 ({first!r})" if "batch" in axis.lower() else ""
        names = [shlex.quote(axis_name(spec, index)) for index in missing]
        raise UsageError(
            f"input {spec.name!r}: axis {place} ({axis!r}) is dynamic, and its length is not given{hint}",
            f"add {' '.join(f'--axis {name}=MIN,OPT,MAX' for name in names)}, "
            f"or one length, as --axis {names[0]}=128",
        )
    given = {index: lengths[name, index][which] for name, index in lengths if name == spec.name}
    return [
        axis if isinstance(axis, int) else given.get(index, BATCH) for index, axis in enumerate(spec.shape)
    ]


def _fill(spec: TensorSpec, axes: tuple[int | str, ...], batch: int) -> Shape:
    """Put the batch in and hold the shape against the model's own."""
    filled = tuple(batch if isinstance(axis, str) else axis for axis in axes)
    _check_fits(spec, filled)
    if isinstance(next(iter(spec.shape), 0), str) and axes[0] not in (BATCH, batch):
        raise UsageError(
            f"--shape {spec.name}: axis 0 is the batch axis and is set by --batch",
            f"write {BATCH} for it, and give --batch {axes[0]}",
        )
    return filled


def _check_fits(spec: TensorSpec, axes: Sequence[int | str]) -> None:
    """Hold a shape against the model's own: as many axes, and the lengths that the model fixes."""
    own = f"its shape is {'x'.join(map(str, spec.shape))}"
    if len(axes) != len(spec.shape):
        raise UsageError(
            f"--shape {spec.name}: {len(axes)} axes given, the model's input has {len(spec.shape)}", own
        )
    for index, (length, fixed) in enumerate(zip(axes, spec.shape, strict=True)):
        if isinstance(fixed, int) and isinstance(length, int) and fixed != length:
            raise UsageError(
                f"--shape {spec.name}: axis {index} is {length}, the model fixes it at {fixed}", own
            )


def fixed_lengths(
    inputs: Sequence[TensorSpec], batch: int | None, sizes: Recipe
) -> dict[str, tuple[int | None, ...]]:
    """The lengths of a model's axes where each gets one at most, None for those that stay open.

    A length that is given to an axis of a name is that of all axes of the name. Of `sizes` shapes and axes
    count.
    """
    given, by_axis = _given_shapes(inputs, sizes), axis_lengths(inputs, sizes.axes)
    batch_axis = batch_name(inputs)
    for option in [
        *(f"--shape {name}" for name, shapes in given.items() if len(shapes) > 1),
        *(f"--axis {name}" for name, lengths in sizes.axes.items() if len(lengths) > 1),
    ]:
        raise UsageError(f"{option}: several lengths, where one is to be fixed", "give one")
    firsts = [spec.shape[0] for spec in inputs if spec.shape]
    if batch is not None and not any(isinstance(first, str) or first == batch for first in firsts):
        raise FixedBatchError(
            f"--batch {batch}: no input has an open batch axis", "omit it; --dynamic-batch opens a fixed one"
        )
    known: dict[str, int] = {}
    for spec in inputs:
        shape = given.get(spec.name, (("",) * len(spec.shape),))[0]
        _check_fits(spec, shape)
        for index, (axis, own) in enumerate(zip(shape, spec.shape, strict=True)):
            is_batch = axis == BATCH or index == 0 or own == batch_axis
            lengths = (axis, by_axis.get((spec.name, index), (None,) * 2)[1], batch if is_batch else None)
            for length in lengths if isinstance(own, str) else ():
                if isinstance(length, int) and known.setdefault(axis_name(spec, index), length) != length:
                    raise UsageError(
                        f"axis {axis_name(spec, index)!r} is given the lengths "
                        f"{known[axis_name(spec, index)]} and {length}",
                        "give it one: axes of a name are equally long in all inputs",
                    )
    return {
        spec.name: tuple(
            own if isinstance(own, int) else known.get(axis_name(spec, index))
            for index, own in enumerate(spec.shape)
        )
        for spec in inputs
    }


def batch_range(batches: Sequence[int]) -> ShapeRange:
    """The range of a profile: one value, MIN,MAX (tuned for MAX) or MIN,OPT,MAX, in any order.

    All sizes from MIN to MAX are MIN,MAX.
    """
    batches = sorted(batches)
    if len(batches) > 3 and batches == list(range(batches[0], batches[-1] + 1)):
        batches = [batches[0], batches[-1]]
    if not 1 <= len(batches) <= 3:
        raise UsageError(
            f"--dynamic takes at most three batch sizes (min, opt, max); {len(batches)} were given",
            "write, say, --dynamic --batch 1,8,32, or several --batch for several optimisation profiles",
        )
    low, high = batches[0], batches[-1]
    best = batches[1] if len(batches) == 3 else high
    return ShapeRange(min=(low,), opt=(best,), max=(high,))


def profiles_for(
    model: OnnxArtifact, ranges: Sequence[Sequence[int]], sizes: Recipe = ANY_SIZES
) -> tuple[Profile, ...]:
    """The optimisation profiles of one dynamic engine, by the smallest batch and then the largest; the other
    axes are the same in all, by the shapes and axes of `sizes`.
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
    return tuple(Profile(batch=batch, shapes=shape_ranges(model, batch, sizes)) for batch in batches)


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


def shapes_at(
    inputs: Sequence[TensorSpec], plan: BuildPlan, size: int, sizes: Recipe = ANY_SIZES
) -> dict[str, Shape]:
    """Shapes of a model's inputs to run an engine with, with the batch size in its place.

    Other axes have the length that the engine is tuned for, or the one that the shapes and axes of `sizes`
    give; of a smallest, a tuned and a largest one the tuned.
    """
    given, lengths = _given_shapes(inputs, sizes), axis_lengths(inputs, sizes.axes)
    name = batch_name(inputs)
    shapes = {}
    for spec in inputs:
        admitted = plan.shapes[spec.name]
        best = [
            lengths[spec.name, index][1]
            if (spec.name, index) in lengths
            else size
            if spec.shape[index : index + 1] == (name,)  # a manifest may have been edited
            else length
            for index, length in enumerate(admitted.opt)
        ]
        if spec.name in given:
            best = list(_fill(spec, given[spec.name][len(given[spec.name]) // 2], size))
        if spec.shape and isinstance(spec.shape[0], str):
            best[0] = size
        if sizes.shapes or sizes.axes:
            _check_admitted(spec, admitted, best)
        shapes[spec.name] = tuple(best)
    return shapes


def _check_admitted(spec: TensorSpec, admitted: ShapeRange, shape: Sequence[int]) -> None:
    for index, (low, length, high) in enumerate(zip(admitted.min, shape, admitted.max, strict=True)):
        if index and not low <= length <= high:
            span = f"{low}" if low == high else f"{low} to {high}"
            raise UsageError(
                f"input {spec.name!r}: axis {index} is {length}, and the engine admits {span}",
                f"give one of those with --axis {shlex.quote(axis_name(spec, index))}=N, or build another "
                "engine with trtopt build",
            )
