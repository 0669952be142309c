"""Several streams, where queries can overlap."""

from __future__ import annotations

from collections.abc import Iterator

from trtopt.targets import ONNXRUNTIME
from trtopt.workflows.tune.kinds.batch_size import growing_share
from trtopt.workflows.tune.kinds.kind import Change, Kind, Situation
from trtopt.workflows.tune.prediction import Prior

_COUNTS = (2, 4)
_FILLED = 0.5
"""Of what one stream leaves idle, what others fill."""


def _changes(situation: Situation) -> Iterator[Change]:
    overlap = situation.is_rate or situation.is_loaded
    if not overlap or situation.backend.name == ONNXRUNTIME:  # which runs one query after another
        return
    idle = 1 - growing_share(situation)
    for count in _COUNTS:
        if count != situation.streams:
            gain = min(1 - situation.streams / count, idle * _FILLED) if count > situation.streams else 0.01
            yield Change(
                "streams",
                f"streams={count}",
                streams=count,
                prior=Prior(gain, 0.4, loss=0.05, risk=0.2),
                evidence=f"{idle:.0%} of a query's time is not work at the device's rate",
            )


KIND = Kind("streams", Prior(0.1, 0.4), 0, _changes)
