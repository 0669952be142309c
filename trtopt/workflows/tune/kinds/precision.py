"""Precisions for the whole model: the fastest that keeps the accuracy."""

from __future__ import annotations

from collections.abc import Iterator


from trtopt.workflows.tune.kinds.kind import Change, Kind, Situation
from trtopt.workflows.tune.prediction import Prior


def _changes(situation: Situation) -> Iterator[Change]:
    if situation.data is not None and situation.selected is None:
        yield Change("precision", "precision=best", recipe={"precision": "best"})


KIND = Kind("precision", "the fastest precision that keeps the accuracy", Prior(0.35, 0.7), 5, _changes)
