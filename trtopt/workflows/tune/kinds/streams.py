"""Several streams, where a rate is the objective."""

from __future__ import annotations

from collections.abc import Iterator


from trtopt.targets import ONNXRUNTIME
from trtopt.workflows.tune.kinds.kind import Change, Kind, Situation
from trtopt.workflows.tune.prediction import Prior


def _changes(situation: Situation) -> Iterator[Change]:
    if situation.is_rate and situation.backend.name != ONNXRUNTIME:  # which runs one query after another
        yield from (Change("streams", f"streams={count}", streams=count) for count in (2, 4))


KIND = Kind("streams", "several streams", Prior(0.1, 0.4), 0, _changes)
