"""Further builds of the incumbent: two builds of TensorRT differ."""

from __future__ import annotations

import math
from collections.abc import Iterator

from trtopt.measure.statistics.comparison import THRESHOLD
from trtopt.targets import ONNXRUNTIME
from trtopt.workflows.tune.kinds.kind import Change, Kind, Situation
from trtopt.workflows.tune.prediction import BUILD_SPREAD, Prior

_BUILDS = (2, 3, 4)


def _changes(situation: Situation) -> Iterator[Change]:
    if situation.backend.name == ONNXRUNTIME:  # whose builds are all alike
        return
    spread = situation.build_spread
    for number in _BUILDS:
        yield Change(
            "build-lottery",
            f"build {number}",
            fresh=True,
            prior=better_build(spread, situation.threshold),
            evidence=f"builds of one graph differ by {spread:.1%} (standard deviation)",
        )


def better_build(spread: float, threshold: float) -> Prior:
    """What one more build is worth: its gain over the incumbent's is normal, with a spread of √2 builds.

    Gains below the threshold are not taken; the gain is the mean of those above.
    """
    deviation = max(spread, 1e-6) * math.sqrt(2)
    least = threshold / deviation
    probability = math.erfc(least / math.sqrt(2)) / 2
    density = math.exp(-least * least / 2) / math.sqrt(2 * math.pi)
    mean = deviation * density / probability if probability > 1e-12 else threshold
    return Prior(max(mean, threshold), probability, max(mean, threshold), probability)


KIND = Kind("build-lottery", better_build(BUILD_SPREAD, THRESHOLD), 1, _changes)
