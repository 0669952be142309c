"""Whether a batch axis that was made dynamic works: two inputs at once give what each gives alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trtopt.errors import FixedBatchError
from trtopt.onnxmodel import feeds
from trtopt.onnxmodel.model_file import ModelFile
from trtopt.rewrite import equivalence
from trtopt.rewrite.batch import declare_outputs
from trtopt.rewrite.equivalence import Array

_REMEDY = "export the model with a dynamic batch axis; its batch is baked in where it cannot be patched"


def prove(fixed: ModelFile, dynamic: ModelFile, batch: int) -> str:
    """Run the fixed model on two inputs and the dynamic one on both at once; what was found, in words.

    The dynamic model's outputs are declared as they were seen to grow, in place.

    Raises:
        FixedBatchError: the dynamic model cannot run at twice the batch, or its outputs differ.
    """
    alone = [feeds.seeded(fixed.proto, seed)[0] for seed in (0, 1)]
    first, second = equivalence.run(fixed, alone)
    joined = {name: np.concatenate([feed.values[name] for feed in alone]) for name in alone[0].values}
    try:
        got = equivalence.run(dynamic, [feeds.Feed("both", joined)])[0]
    except equivalence.Unrunnable as error:
        raise FixedBatchError(f"twice the batch does not run: {error.problem}", _REMEDY) from None
    grown = {name: _axis_of(name, (first, second), value) for name, value in got.items()}
    declare_outputs(dynamic.proto, batch, grown)
    elsewhere = [f"{name!r} along axis {axis}" for name, axis in grown.items() if axis]
    told = f"; outputs whose batch is not their first axis: {', '.join(elsewhere)}" if elsewhere else ""
    return f"checked at the old batch and at twice that{told}"


def _axis_of(name: str, alone: tuple[Mapping[str, Array], Mapping[str, Array]], both: Array) -> int | None:
    """Along which axis the output for both inputs joins those for each.

    Raises:
        FixedBatchError: along none.
    """
    first, second = (outputs[name] for outputs in alone)
    if both.shape == first.shape:
        axis, reference = None, first
        if not np.array_equal(first, second, equal_nan=first.dtype.kind == "f"):
            raise FixedBatchError(
                f"output {name!r} has shape {_shown(both)} at twice the batch too, and depends on the input",
                _REMEDY,
            )
    else:
        axis = _doubled(first, both)
        if axis is None:
            raise FixedBatchError(
                f"output {name!r} of shape {_shown(first)} has {_shown(both)} at twice the batch: no axis of "
                "it grows with the batch alone",
                _REMEDY,
            )
        reference = np.concatenate([first, second], axis)
    if equivalence.error_between(reference, both) > equivalence.bound("N", reference.dtype):
        if reference.dtype.kind not in "fiub":
            raise FixedBatchError(f"at twice the batch, output {name!r} differs", _REMEDY)
        wanted, found = reference.astype(np.float64), both.astype(np.float64)
        with np.errstate(invalid="ignore"):  # ∞ - ∞
            gap = np.abs(wanted - found).max()
        raise FixedBatchError(
            f"at twice the batch, output {name!r} differs by up to {gap:.3g}, where its values reach "
            f"{np.abs(wanted).max():.3g}",
            _REMEDY,
        )
    return axis


def _doubled(first: Array, both: Array) -> int | None:
    """The one axis that is twice as long."""
    if first.ndim != both.ndim:
        return None
    grown = [axis for axis in range(first.ndim) if both.shape[axis] != first.shape[axis]]
    return grown[0] if len(grown) == 1 and both.shape[grown[0]] == 2 * first.shape[grown[0]] else None


def _shown(array: Array) -> str:
    return "×".join(map(str, array.shape)) or "()"
