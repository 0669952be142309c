"""The situation in which candidates are proposed, for tests of their kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support import examples
from tests.support.inspected import graph, node
from trtopt.recipe import Recipe
from trtopt.records import Backend, DeviceInfo
from trtopt.records.tune import CandidateKind
from trtopt.workflows.tune.kinds import KINDS, Change, Kind, Situation

CPU = DeviceInfo(kind="cpu", name="A CPU")
ONE_NODE = graph(node("Relu", "x", "y"), inputs={"x": (8, 3, 32, 32)})


def situation(backend: str = "tensorrt", version: str = "10.16.1.11", **fields: Any) -> Situation:
    """Of a latency at batch 8, without samples; on ONNX Runtime that of a processor with 8 cores."""
    whole: dict[str, Any] = {
        "backend": Backend(name=backend, version=version),
        "device": CPU if backend == "onnxruntime" else examples.GPU,
        "cores": 8,
        "batch": 8,
        "batches": (8,),
        "streams": 1,
        "is_rate": False,
        "recipe": Recipe(),
        "selected": None,
        "data": None,
        "graph": ONE_NODE,
        "model": Path("model.onnx"),
        "model_sha256": "a" * 64,
    }
    return Situation(**whole | fields)


def kind(name: CandidateKind) -> Kind:
    """The kind of this name."""
    return next(one for one in KINDS if one.name == name)


def proposed(name: CandidateKind, given: Situation) -> dict[str, Change]:
    """A kind's candidates by name."""
    found = [*kind(name).changes(given)]
    assert len({change.name for change in found}) == len(found)
    return {change.name: change for change in found}


def gain(change: Change) -> float:
    """What it is expected to be worth if it works."""
    assert change.guess is not None
    return change.guess.gain
