"""`--axis NAME=MIN,OPT,MAX`: which open axes of the inputs a name means, and the lengths given to them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from trtopt.errors import UsageError
from trtopt.onnxio.graph_walk import names_length
from trtopt.records import ShapeRange, TensorSpec

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
