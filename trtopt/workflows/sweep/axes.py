"""Axes that a sweep gives lengths to: which axes a name means, and the shapes that come of it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from trtopt.errors import UsageError
from trtopt.recipe import BATCH
from trtopt.records import OnnxArtifact, TensorSpec

_ANONYMOUS = "?"
Places = dict[str, list[tuple[str, int]]]
"""Inputs and indices of axes by the axis' name."""


def shapes_with(onnx: OnnxArtifact, axes: Mapping[str, int], fixed: Mapping[str, str]) -> dict[str, str]:
    """Shapes of inputs as a recipe has them, with these lengths of axes; `fixed` are shapes of other inputs.

    An axis is named as in the model, and is then the same in every input; or as INPUT.INDEX.

    Raises:
        UsageError: no such axis, the batch axis, an axis or input given twice, or one that nothing gives.
    """
    places = _places(onnx)
    lengths: dict[tuple[str, int], int] = {}
    for name, length in axes.items():
        for place in _placed(onnx, name, places):
            if place in lengths:
                raise UsageError(
                    f"--shapes {name}: axis {place[1]} of {place[0]!r} is given under two names",
                    "give it under one",
                )
            lengths[place] = length
    swept = {name for name, _ in lengths}
    for name in sorted(swept & fixed.keys()):
        raise UsageError(
            f"--shape {name}: --shapes sweeps an axis of this input", "omit the --shape of this input"
        )
    return dict(fixed) | {
        spec.name: _shape(spec, lengths, sorted(places)) for spec in onnx.inputs if spec.name in swept
    }


def _places(onnx: OnnxArtifact) -> Places:
    places: Places = {}
    for spec in onnx.inputs:
        for index, axis in enumerate(spec.shape):
            if index and isinstance(axis, str):
                places.setdefault(f"{spec.name}.{index}", []).append((spec.name, index))
                if axis != _ANONYMOUS:
                    places.setdefault(axis, []).append((spec.name, index))
    return places


def _placed(onnx: OnnxArtifact, name: str, places: Places) -> list[tuple[str, int]]:
    if name in places:
        return places[name]
    if any(spec.shape and spec.shape[0] == name for spec in onnx.inputs):
        raise UsageError(f"--shapes {name}: that is the batch axis", "sweep it with --batch")
    near = difflib.get_close_matches(name, places, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    there = f"open axes: {', '.join(places)}" if places else "every axis but the batch is fixed in this model"
    raise UsageError(f"--shapes {name}: the model has no such open axis", f"{hint}{there}")


def _shape(spec: TensorSpec, lengths: Mapping[tuple[str, int], int], names: Sequence[str]) -> str:
    axes: list[str] = []
    for index, axis in enumerate(spec.shape):
        if isinstance(axis, int):
            axes.append(str(axis))
        elif index == 0:
            axes.append(BATCH)
        elif (spec.name, index) in lengths:
            axes.append(str(lengths[spec.name, index]))
        else:
            raise UsageError(
                f"input {spec.name!r}: axis {index} ({axis!r}) is open, and --shapes gives its others only",
                f"give every open axis a length; open axes: {', '.join(names)}",
            )
    return "x".join(axes)
