"""Other batch sizes, where a rate is the objective."""

from __future__ import annotations

from collections.abc import Iterator


from trtopt.workflows.tune.kinds.kind import Change, Kind, Situation
from trtopt.workflows.tune.prediction import Prior


def _changes(situation: Situation) -> Iterator[Change]:
    if situation.is_rate:
        for size in situation.batches:
            if size != situation.batch:
                yield Change("batch", f"batch={size}", recipe={"batch": (size,)})


KIND = Kind("batch", "another batch size", Prior(0.2, 0.4), 1, _changes)
