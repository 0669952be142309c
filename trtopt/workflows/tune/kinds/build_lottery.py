"""Further builds of the incumbent: two builds of TensorRT differ."""

from __future__ import annotations

from collections.abc import Iterator


from trtopt.targets import ONNXRUNTIME
from trtopt.workflows.tune.kinds.kind import Change, Kind, Situation
from trtopt.workflows.tune.prediction import Prior


def _changes(situation: Situation) -> Iterator[Change]:
    if situation.backend.name != ONNXRUNTIME:  # whose builds are all alike
        yield from (Change("build-lottery", f"build {number}", fresh=True) for number in (2, 3, 4))


KIND = Kind("build-lottery", "another build of the same", Prior(0.02, 0.15), 1, _changes)
