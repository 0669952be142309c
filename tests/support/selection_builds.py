"""Contests on ONNX Runtime whose times come from a script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

import trtopt
from tests.support.command_line import DIGITS
from tests.support.scripted_times import LayerScript, ScriptedTimes
from trtopt.records import Manifest
from trtopt.workflows import race
from trtopt.workflows.build import precision_selection as select_precision

TRANSFORMER = DIGITS.parents[1] / "digits_transformer" / "digits_transformer.onnx"
PAIRS = ("QuantizeLinear", "DequantizeLinear")


def script(monkeypatch: pytest.MonkeyPatch, layers: LayerScript, **latency_ms: float) -> ScriptedTimes:
    """`fp16_1=1.0`: the candidate's latency at that batch size; a name with forms keeps its dots."""
    by_key = {}
    for key, value in latency_ms.items():
        name, _, batch = key.rpartition("_")
        by_key[name if "=" in name else name.replace("_", "."), int(batch)] = value
    times = ScriptedTimes(by_key, layers)
    monkeypatch.setattr(race, "run_jobs_of", times)
    monkeypatch.setattr(select_precision, "run_jobs_of", times)
    return times


def build(model: Path, folder: Path, samples: dict[Path, str], **recipe: Any) -> Manifest:
    wanted: dict[str, Any] = {"precision": "int8", "batch": (1, 8), "data": samples[model]} | recipe
    return trtopt.build(model, folder, backend="onnxruntime", **wanted)


def quantised(model: Path) -> set[str]:
    """The products that read an activation through a DQ."""
    graph = onnx.load(str(model)).graph
    made = {name: node.op_type for node in graph.node for name in node.output}
    return {
        node.name for node in graph.node if node.op_type == "MatMul" and made.get(node.input[0]) == PAIRS[1]
    }
