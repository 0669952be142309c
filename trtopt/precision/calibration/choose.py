"""The method that suits a model best: least output error on samples that calibration has not seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtopt.records.quantisation import MethodScore

Arrays = Mapping[str, NDArray[Any]]
_PERFECT_DB = 200.0
_ENOUGH = 16
_CLEAR_DB = 3.0
"""What a method that clips must gain on fewer than `_ENOUGH` samples: half of the error's power."""


class Signal:
    """Sums of squares of outputs and of their errors, batch by batch."""

    def __init__(self) -> None:
        self._signal: dict[str, float] = {}
        self._noise: dict[str, float] = {}

    def add(self, reference: Arrays, found: Arrays) -> None:
        """Take in one batch; outputs that are no floats are passed over."""
        for name, array in reference.items():
            if not is_float(array):
                continue
            wide = array.astype(np.float64)
            error = wide - found[name].astype(np.float64)
            self._signal[name] = self._signal.get(name, 0.0) + float(np.vdot(wide, wide))
            self._noise[name] = self._noise.get(name, 0.0) + float(np.vdot(error, error))

    def sqnr_db(self) -> dict[str, float]:
        """10·log₁₀(Σ reference² / Σ error²) by output, at most 200 dB."""
        return {name: _decibels(self._signal[name], noise) for name, noise in self._noise.items()}


def is_float(array: NDArray[Any]) -> bool:
    """Whether the array holds floating-point numbers."""
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _decibels(signal: float, noise: float) -> float:
    if noise == 0.0 or not np.isfinite(noise):
        return _PERFECT_DB if noise == 0.0 else -_PERFECT_DB
    return float(np.clip(10 * np.log10(max(signal, 1e-300) / noise), -_PERFECT_DB, _PERFECT_DB))


def best_of(scores: Sequence[MethodScore], held: int, careful: str) -> str:
    """The best method or, unless it is clearly better on `held` samples that are few, the `careful` one.

    What the others clip is rare: a few samples may have none of it.
    """
    found = {item.method: item.sqnr_db for item in scores}
    lead = scores[0].sqnr_db - found[careful]
    return scores[0].method if held >= _ENOUGH or lead >= _CLEAR_DB else careful


def score(
    methods: Sequence[str], held: Iterable[tuple[Arrays, Arrays]], run: Callable[[str, Arrays], Arrays]
) -> tuple[MethodScore, ...]:
    """Each method's signal-to-noise ratio, averaged over outputs, best first; equal ones in the given order.

    `held` are (inputs, the float model's outputs); `run` answers with the quantised model's outputs.
    """
    signals = {method: Signal() for method in methods}
    for inputs, reference in held:
        for method, signal in signals.items():
            signal.add(reference, run(method, inputs))
    scores = []
    for method, signal in signals.items():
        ratios = list(signal.sqnr_db().values())
        scores.append(MethodScore(method=method, sqnr_db=round(float(np.mean(ratios)) if ratios else 0.0, 3)))
    return tuple(sorted(scores, key=lambda item: -item.sqnr_db))
