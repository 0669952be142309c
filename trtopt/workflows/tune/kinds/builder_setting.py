"""Settings of the builder: what the backend's version has, by the tables of settings and targets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtopt.targets import ONNXRUNTIME, target_of
from trtopt.workflows.tune.kinds.kind import Change, Kind, Situation
from trtopt.workflows.tune.prediction import Prior

_EXTERNAL = "CUBLAS"
"""Among the tactic sources of versions that can use other libraries."""


def _changes(situation: Situation) -> Iterator[Change]:
    values = _onnxruntime(situation) if situation.backend.name == ONNXRUNTIME else _tensorrt(situation)
    for name, value in values:
        if getattr(situation.recipe, name) == value:
            continue
        text = ",".join(value) if isinstance(value, tuple) else value
        yield Change("builder-setting", f"{name}={text}", recipe={name: value})


def _tensorrt(situation: Situation) -> Iterator[tuple[str, Any]]:
    target = target_of(situation.backend)
    yield "opt_level", 5
    yield "opt_level", 4
    yield from (("aux_streams", count) for count in (0, 1, 4))
    if target.tiling:
        yield from (("tiling", level) for level in ("full", "moderate", "fast"))
    if _EXTERNAL in target.tactic_sources:
        yield "tactic_sources", target.tactic_sources


def _onnxruntime(situation: Situation) -> Iterator[tuple[str, Any]]:
    cores = situation.cores
    counts = {1, 2, cores // 2, cores}
    yield from (("intra_op_threads", count) for count in sorted(counts) if 1 <= count <= cores)
    default = ("all",) if situation.recipe.graph_optimization is not None else ()
    yield from (("graph_optimization", level) for level in (*default, "extended", "basic", "disable"))
    yield "execution_mode", "parallel"


KIND = Kind("builder-setting", "settings of the builder", Prior(0.03, 0.15), 1, _changes)
