"""How far rounding alone moves a model's outputs, and what of a newer engine's results it does not explain.

Rounding is measured as Monte Carlo arithmetic does it (Parker, 1997): the model runs again with inputs and
weights moved by a few units in the last place of its narrowest type. What cancels, overflows or is
quantised reacts to that as it does to the other order of sums and the other fusions of a newer engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.data.readers import Arrays
from trtopt.onnxio.element_types import gaps
from trtopt.onnxio.half_emulation import widened
from trtopt.onnxio.model_file import ModelFile, array_of
from trtopt.onnxio.shape_inference import FLOAT, LOW, types_of
from trtopt.onnxio.weights import FLOATS_AND_DOUBLE, constant_of_parts, runs_of_rows
from trtopt.precision.compare import Deviation, is_label, open_model
from trtopt.precision.running import passing
from trtopt.records.precision import OutputChange

Array = NDArray[Any]
_RUNS = 3
_UNITS = 4.0
"""By so many units in the last place inputs and weights are moved at most."""
_FACTOR = 4.0
"""So many times what was seen to move is still rounding: another order of sums moves results further."""
_FEW = 8
"""A deviation that is known of this many values may be twice as large, of fewer more: Student's t."""
_UNIT = {FLOAT: 2.0**-21, int(LOW["fp16"]): 2.0**-11, int(LOW["bf16"]): 2.0**-8}
"""Unit roundoffs; FP32's is 2^-24, and its sums of hundreds of terms, in another order, lose three bits."""
_TF32 = 2.0**-11
"""What FP32 products on a GPU, and what quantisation sees of sums, is no better than."""
_TINY = float(np.finfo(np.float32).smallest_normal)
"""A GPU may take what is smaller for zero."""
_NOT_FINITE = 1e30


def unit_of(model: onnx.ModelProto, *, on_gpu: bool) -> float:
    """The unit roundoff of the narrowest type in which an engine may compute the model."""
    kinds = {FLOAT, *types_of(model).values()}
    coarse = on_gpu or any(node.op_type == "QuantizeLinear" for node in model.graph.node)
    return max([unit for kind, unit in _UNIT.items() if kind in kinds] + [_TF32] * coarse)


class RoundedModels:
    """The model in FP32, and several times in its own types, each run rounded otherwise."""

    def __init__(self, model: ModelFile, *, on_gpu: bool) -> None:
        self.model, self.unit = model.proto, unit_of(model.proto, on_gpu=on_gpu)
        self._random = np.random.default_rng(0)
        with passing(model) as spooling:
            self._exact = open_model(widened(spooling))
            self._moved = [open_model(self._with_moved_weights(spooling)) for _ in range(_RUNS)]

    def exact(self, feed: Arrays) -> Arrays:
        """The float model's outputs."""
        return self._exact.run(self._exact.fit(feed))

    def moved(self, feed: Arrays) -> list[Arrays]:
        """The outputs of each run that is rounded otherwise: the same for the same inputs."""
        self._random = np.random.default_rng(0)
        return [one.run(one.fit({name: self._move(x) for name, x in feed.items()})) for one in self._moved]

    def _move(self, values: Array) -> Array:
        if values.dtype.kind in "iubOSU":
            return values
        draw = self._random.uniform(-_UNITS * self.unit, _UNITS * self.unit, (2, *values.shape))
        moved = values.astype(np.float64) * (1 + draw[0]) + draw[1] * _TINY / self.unit
        return np.asarray(moved).astype(values.dtype)

    def _with_moved_weights(self, model: ModelFile) -> ModelFile:
        """Matrices, filters and tables: what has fewer axes may be a size or an exponent."""
        proto = deepcopy(model.proto)
        quantised = {node.input[0] for node in proto.graph.node if node.op_type == "QuantizeLinear"}
        for tensor in proto.graph.initializer:
            if len(tensor.dims) < 2 or tensor.data_type not in FLOATS_AND_DOUBLE or tensor.name in quantised:
                continue
            values = array_of(tensor, model.folder)
            parts = (self._move(values[run]) for run in runs_of_rows(values))
            tensor.CopyFrom(constant_of_parts(parts, values.dtype, values.shape, tensor.name, model.spool))
        return replace(model, proto=proto)


class ChangedOutput:
    """Adds up, over batches, what of one output rounding does not explain."""

    def __init__(self, name: str, unit: float) -> None:
        self._name, self._unit = name, unit
        self._a, self._b = Deviation(name), Deviation(name)
        self._values = self._wrong = self._open = self._skipped = 0
        self._inputs: dict[str, None] = {}
        self._worst, self._times = "", 0.0

    def add(self, inputs: str, exact: Array, moved: Sequence[Array], a: Array, b: Array) -> None:
        """Take a batch of its values for what is called `inputs`: the float model's, and both engines'."""
        exact, a, b, *moved = (np.atleast_1d(one) for one in (exact, a, b, *moved))
        count = exact.size if b.shape == exact.shape else max(exact.size, b.size, 1)
        self._values += count
        sizes = {one.shape for one in (exact, a, *moved)}  # they may depend on data, and on rounding
        if b.shape not in sizes:
            self._inputs[inputs], self._times = None, _NOT_FINITE
            self._worst = f"its shape for {inputs}: {b.shape}"
            if len(sizes) == 1:
                self._wrong += count
            else:
                self._open += count
            return
        if len(sizes) > 1 or not exact.size:
            self._skipped += count
            return
        self._a.add(exact, a)
        self._b.add(exact, b)
        judge = _unexplained_labels if is_label(exact.dtype) else _unexplained_numbers
        wrong, is_open, times, known = judge(exact, np.stack(moved), a, b, self._unit)
        self._wrong += int(wrong.sum())
        self._open += int(is_open.sum())
        self._skipped += int((~known).sum())
        if (wrong | is_open).any():
            self._inputs[inputs] = None
        if times.max(initial=0.0) > self._times:
            place = np.unravel_index(int(times.argmax()), times.shape)
            values = ", ".join(f"{one[place]:.6g}" for one in (exact, a, b))
            self._times, self._worst = float(times[place]), f"{[*map(int, place)]} of {inputs}: {values}"

    def result(self, batch: int) -> OutputChange:
        """All batches so far."""
        return OutputChange(
            batch=batch,
            output=self._name,
            values=self._values,
            wrong=self._wrong,
            undecided=self._open,
            skipped=self._skipped,
            inputs=tuple(self._inputs),
            times=self._times,
            worst=self._worst,
            a=self._a.result(),
            b=self._b.result(),
        )


_Unexplained = tuple[Array, Array, Array, Array]
"""What is wrong in B; what is open; how many times over what rounding explains; what is known at all."""


def _unexplained_numbers(exact: Array, moved: Array, a: Array, b: Array, unit: float) -> _Unexplained:
    """B is wrong where it is further from the float model than A and rounding, or alone is not finite.

    Where both are too far from it, and from each other, neither is known to be right; nor is B where the
    model is infinite however it is rounded, as a mask may be, and A alone is so too.
    """
    is_whole = exact.dtype.kind in "iu"  # pixels and quantised values: rounded to the next
    exact, moved, a, b = (np.asarray(one, np.float64) for one in (exact, moved, a, b))
    finite = np.isfinite(exact) & np.isfinite(moved).all(0)
    infinite = np.isinf(exact) & (moved == exact).all(0)
    allowed = _allowance(np.where(finite, exact, 0.0), np.where(finite, moved, 0.0), unit) + is_whole
    from_a, from_b, apart = gaps(exact, a), gaps(exact, b), gaps(a, b)
    a_finite, b_finite = np.isfinite(a), np.isfinite(b)
    further = np.where(b_finite, from_b - np.where(a_finite, from_a, 0.0), _NOT_FINITE * a_finite * allowed)
    wrong = finite & (further > allowed)
    far = a_finite & b_finite & (np.minimum(from_a, from_b) > allowed) & (apart > allowed)
    is_open = (finite & ~wrong & far) | (infinite & (a == exact) & (b != exact))
    with np.errstate(over="ignore"):
        times = np.where(is_open, np.minimum(from_b, _NOT_FINITE), further) / allowed
    return wrong, is_open, np.where(finite | is_open, times, 0.0), finite | infinite


def _allowance(exact: Array, moved: Array, unit: float) -> Array:
    """By how much rounding may move each value, by what moved it, and what moved those alongside.

    Inputs and weights are moved by up to four times what rounding them does at most, and the noise of that
    is taken four times. Of a value itself it is known from few runs only, so that of those alongside counts
    too, and their size. A sigmoid or a softmax rounds to parts of 1, however small what comes out.
    """
    with np.errstate(over="ignore"):
        noise, squares = np.square(moved - exact).mean(0), np.square(exact)
        least = np.minimum(squares.mean(tuple(range(1, exact.ndim)), keepdims=True), 1)
        own = np.sqrt(np.maximum(squares, np.maximum(_alongside(squares)[0], least)))
        shared, count = _alongside(noise)
        alone, together = ((1 + _FEW / (len(moved) * number)) for number in (1, count))
        most = np.maximum(alone * np.sqrt(noise), together * np.sqrt(shared))
        return np.asarray(_FACTOR * (most + _UNITS * unit * own) + _TINY)


def _alongside(squares: Array) -> tuple[Array, int]:
    """The mean over what lies alongside each value in its sample, and how many values that is.

    It is taken along the axis whose slices differ most, as channels and columns of unlike units do: a
    detector's coordinates, in pixels, would hide its scores, and a quiet rest would average a loud one away.
    """
    sample = tuple(range(1, squares.ndim))
    axes = [axis for axis in sample if squares.shape[axis] > 1]
    if len(axes) < 2:
        return squares.mean(sample, keepdims=True), max(squares[0].size, 1)

    def spread(kept: int) -> float:
        slices = squares.mean(tuple(axis for axis in range(squares.ndim) if axis != kept))
        return float(slices.std() / max(slices.mean(), _TINY))

    kept = max(axes, key=spread)
    others = tuple(axis for axis in sample if axis != kept)
    return squares.mean(others, keepdims=True), squares[0].size // squares.shape[kept]


def _unexplained_labels(exact: Array, moved: Array, a: Array, b: Array, unit: float) -> _Unexplained:
    """Integers of B that are unlike both; none at a tie, or if as few as the ties that rounding decides."""
    ties = moved != exact
    unlike = (b != exact) & (b != a) & ~ties.any(0)
    unlike &= unlike.sum() > 2 * ties.sum() / len(moved)
    return unlike & (a == exact), unlike & (a != exact), unlike * gaps(exact, b), np.ones_like(unlike)
