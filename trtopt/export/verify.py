"""Is the file the model? Its outputs are compared with PyTorch's at two sizes of every varying axis.

At the smaller ones other inputs are compared as well, which may take other branches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtopt.errors import ModelError, UsageError
from trtopt.export.source_module import Arrays, Subject, tensors_of
from trtopt.export.spec import Axis, Sizes
from trtopt.files.user_code import where
from trtopt.onnxio.element_types import gaps

Run = Callable[[Arrays], Arrays]
Open = Callable[[Path], Run]
"""What runs an ONNX file: see `trtopt.device.ort.reference.open_reference`."""

_BATCH_STEPS = (0, 2)
_OTHER_STEPS = (6, 18)
_NUDGE = 1e-6


@dataclass(frozen=True)
class Check:
    """One comparison that passed: at these sizes; `worst` is the largest relative difference found."""

    sizes: Sizes
    worst: float


def trace_sizes(axes: Mapping[str, Axis]) -> Sizes:
    """The sizes to trace at: no axis at 1, which tracing would take for a broadcast."""
    return {name: axis.near(1 if name == "batch" else 12) for name, axis in axes.items()}


def check_sizes(axes: Mapping[str, Axis]) -> list[Sizes]:
    """Two sets of sizes: every axis has two values, unlike the traced one where its range allows.

    Without axes there is one set.
    """
    low, high = (
        {
            name: axis.near((_BATCH_STEPS if name == "batch" else _OTHER_STEPS)[end])
            for name, axis in axes.items()
        }
        for end in (0, 1)
    )
    return [low, high] if low != high else [low]


def relative(expected: NDArray[Any], actual: NDArray[Any]) -> NDArray[np.float64]:
    """|actual − expected| of each element over |expected| + RMS(expected); NaN and ∞ match their like.

    Of integers 1 where they are unequal.
    """
    if expected.dtype.kind in "iub":
        return (gaps(expected, actual) > 0).astype(np.float64)
    wanted, found = expected.astype(np.float64), actual.astype(np.float64)
    finite = wanted[np.isfinite(wanted)]
    largest = float(np.abs(finite).max(initial=0.0))
    scale = largest * float(np.sqrt(np.mean((finite / largest) ** 2))) if largest else 0.0
    same = (wanted == found) | (np.isnan(wanted) & np.isnan(found))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        gap = gaps(found, wanted) / np.minimum(np.abs(wanted) + scale, np.finfo(np.float64).max)
    return np.where(same, 0.0, np.nan_to_num(gap, nan=np.inf))


def difference(
    name: str, expected: NDArray[Any], actual: NDArray[Any], *, tolerance: float, mismatch: float
) -> str | None:
    """What is wrong with an output: its shape, its type or its worst element; None if nothing is.

    A share `mismatch` of elements may exceed `tolerance`.
    """
    if expected.shape != actual.shape:
        return f"output {name!r}: shape {actual.shape}, PyTorch gives {expected.shape}"
    if expected.dtype != actual.dtype:
        return f"output {name!r}: type {actual.dtype}, PyTorch gives {expected.dtype}"
    gaps = relative(expected, actual)
    share = float(np.mean(gaps > tolerance)) if gaps.size else 0.0
    if share <= mismatch:
        return None
    worst = np.unravel_index(int(np.argmax(gaps)), gaps.shape)
    place = tuple(int(index) for index in worst)
    return (
        f"output {name!r}: {share:.2%} of its elements differ by more than {tolerance:g}; "
        f"the worst is at {place}: {actual[worst]}, PyTorch gives {expected[worst]}"
    )


def compare(subject: Subject, run: Run, inputs: Arrays) -> tuple[float, str]:
    """Run both with FP32 inputs: the largest relative difference, and what is wrong; empty if nothing is."""
    try:
        return _compared(subject, _wanted(subject, inputs), run(inputs))
    except ModelError as error:
        return np.inf, error.problem


def _wanted(subject: Subject, inputs: Arrays) -> Arrays:
    """PyTorch's outputs by name."""
    import torch

    try:
        with torch.no_grad():
            made = tensors_of(subject.module(*(torch.from_numpy(array.copy()) for array in inputs.values())))
            wanted = {name: one.numpy() for name, one in zip(subject.outputs, made, strict=True)}
    except Exception as error:
        raise ModelError(
            f"PyTorch's own module fails: {where(error)}", "correct the module or its example inputs"
        ) from error
    for name, array in wanted.items():
        if array.size and array.dtype.kind == "f" and np.isnan(array).all():
            raise UsageError(
                f"{subject.name}: PyTorch's own output {name!r} is NaN throughout, which shows nothing",
                "correct the weights or the example inputs",
            )
    return wanted


def _compared(subject: Subject, wanted: Arrays, found: Arrays) -> tuple[float, str]:
    wrong = [
        difference(name, wanted[name], found[name], tolerance=subject.tolerance, mismatch=subject.mismatch)
        for name in subject.outputs
    ]
    gaps = [
        float(np.quantile(relative(wanted[name], found[name]), 1.0 - subject.mismatch))
        for name in subject.outputs
        if wanted[name].shape == found[name].shape and wanted[name].size
    ]
    return max(gaps, default=0.0), "\n  ".join(entry for entry in wrong if entry is not None)


def verify(subject: Subject, run: Run) -> list[Check]:
    """Compare at two sizes of every axis, and with other inputs at the smaller ones."""
    checks = []
    for sizes in check_sizes(subject.axes):
        worst, problem = compare(subject, run, subject.example(sizes))
        if problem:
            raise _explained(subject, run, sizes, problem)
        checks.append(Check(sizes, worst))
    sizes = checks[0].sizes
    for words, inputs in subject.others(sizes).items():
        if fault := _differs(subject, run, inputs):
            raise _differing(subject, f"{_at(sizes)}, with the inputs {words}", fault)
    return checks


def _differs(subject: Subject, run: Run, inputs: Arrays) -> str:
    """What is wrong with the file's outputs for these inputs, if anything is and they are usable.

    They are not where PyTorch fails, or where its own outputs differ as much once the floats change by a
    millionth: rounding decides there.
    """
    try:
        wanted, nudged = (_wanted(subject, given) for given in (inputs, _nudged(inputs)))
    except (ModelError, UsageError):
        return ""
    if _compared(subject, wanted, nudged)[1]:
        return ""
    try:
        return _compared(subject, wanted, run(inputs))[1]
    except ModelError as error:
        return error.problem


def _nudged(inputs: Arrays) -> Arrays:
    rng = np.random.default_rng(0)
    return {
        name: (array + _NUDGE * (np.abs(array) + 1) * rng.standard_normal(array.shape)).astype(array.dtype)
        if array.dtype.kind == "f"
        else array
        for name, array in inputs.items()
    }


def _explained(subject: Subject, run: Run, sizes: Sizes, problem: str) -> ModelError:
    """The error for a failed comparison: an axis, if one alone makes it fail, else the numbers."""
    traced = trace_sizes(subject.axes)
    if not compare(subject, run, subject.example(traced))[1]:
        for axis, size in sizes.items():
            words = compare(subject, run, subject.example({**traced, axis: size}))[1]
            if words:
                return baked(subject, axis, traced[axis], "the exporter", words)
    return _differing(subject, _at(sizes), problem)


def _at(sizes: Sizes) -> str:
    return ", ".join(f"{name} {size}" for name, size in sizes.items()) or "the only size"


def _differing(subject: Subject, at: str, problem: str) -> ModelError:
    return ModelError(
        f"{subject.name}: the exported file differs from PyTorch at {at}:\n  {problem}",
        "no file was kept; try the other exporter, or find the operator by exporting parts of the module",
    )


def baked(subject: Subject, axis: str, size: int, culprit: str, words: str = "") -> ModelError:
    """The error for an axis that the export fixed."""
    return ModelError(
        f"{subject.name}: axis {axis!r} was fixed at {size} by {culprit}" + (f"\n  {words}" if words else ""),
        "take the size from the tensor (x.shape[0], or -1) there; "
        "or, if the size is meant to be fixed, write it as a number in the input's shape; of a callable's "
        "input, give the axis no name in the third element, or, if it is axis 0, the name None",
    )
