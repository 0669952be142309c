"""Which layer a launch belongs to, by order and time.

Both the profiler's layers and the launches are in the order in which they ran. The launches are cut into
consecutive stretches, one for each layer, so that the stretches' times differ least from the layers' in all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trtopt.records import Confidence

Home = tuple[int, Confidence]
"""The index of a launch's layer, -1 for none, and how well that is known."""

_FIT_SHARE = 0.25
_FIT_MS = 0.005
"""A stretch fits its layer within a quarter of its time, or the microseconds of a profiler's events."""


def assign_layers(launch_ms: Sequence[float], layer_ms: Sequence[float]) -> list[Home]:
    """For each launch the index of its layer, and how well that is known.

    Layers without time get no launch. With one layer nothing else is possible; otherwise launches of a
    stretch that does not fit its layer are `unknown`.
    """
    timed = [index for index, ms in enumerate(layer_ms) if ms > 0]
    if not timed:
        return [(-1, "unknown")] * len(launch_ms)
    if len(timed) == 1:
        return [(timed[0], "certain")] * len(launch_ms)
    ends = _cut(np.asarray(launch_ms, float), np.asarray([layer_ms[index] for index in timed], float))
    found: list[Home] = []
    begin = 0
    for index, end in zip(timed, ends, strict=True):
        error = abs(sum(launch_ms[begin:end]) - layer_ms[index])
        fits = error <= max(_FIT_MS, _FIT_SHARE * layer_ms[index])
        found += [(index, "likely" if fits else "unknown")] * (end - begin)
        begin = end
    return found


def _cut(launches: np.ndarray, layers: np.ndarray) -> list[int]:
    """The end of each layer's stretch: dynamic programming over (layer, launches so far)."""
    reached = np.concatenate([[0.0], np.cumsum(launches)])
    size = len(reached)
    never = np.triu(np.ones((size, size), bool), 1)  # a stretch does not end before it begins
    best = np.full(size, np.inf)
    best[0] = 0.0
    choices = []
    for ms in layers:
        cost = best[None, :] + np.abs(reached[:, None] - reached[None, :] - ms)
        cost[never] = np.inf
        np.fill_diagonal(cost, cost.diagonal() + ms)  # a layer that took time rather has a launch
        choices.append(cost.argmin(axis=1))
        best = cost.min(axis=1)
    ends = [size - 1]
    for choice in reversed(choices[1:]):
        ends.append(int(choice[ends[-1]]))
    return ends[::-1]
