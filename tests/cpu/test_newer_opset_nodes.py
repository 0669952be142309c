"""ONNX's own node tests, opset by opset: ONNX Runtime computes the same once a model is raised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

from trtopt.onnxio.newer_opset import CHANGES, NEWEST, OLDEST, raise_opset

# ONNX Runtime's own: operators that it has not, or not at the newer opset; random numbers; inputs that its
# older versions do not take from these tests. What is an attribute at the older opset has no node test.
NOT_TRIED = {
    *(("Loop", step) for step in (16, 19, 21)),
    *((f"Reduce{kind}", step) for kind in ("L1", "L2", "LogSum", "LogSumExp", "Mean", "SumSquare")
      for step in (11, 13)),
    ("DepthToSpace", 11), ("ReduceSum", 11), ("Squeeze", 11), ("Unsqueeze", 11),
}  # fmt: skip


def unchanged() -> set[tuple[str, int]]:
    """The newer versions of ONNX's operators that read a node as the one before did."""
    versions = {
        (one.name, one.since_version) for one in onnx.defs.get_all_schemas_with_history() if not one.domain
    }
    first = {name: min(step for other, step in versions if other == name) for name, _ in versions}
    steps = {(name, step) for name, step in versions if step > first[name] and OLDEST < step <= NEWEST}
    return steps - CHANGES.keys()


def at_opset(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for entry in copy.opset_import:
        if entry.domain == "":
            entry.version = opset
    copy.ir_version = 10
    return copy


def run(model: onnx.ModelProto, feed: dict[str, Any]) -> list[Any] | None:
    """The outputs; None where ONNX's checker or ONNX Runtime does not take the model."""
    try:
        onnx.checker.check_model(model)
        return list(onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed))
    except Exception:  # noqa: BLE001  (many kinds)
        return None


def node_tests() -> Iterator[tuple[str, onnx.ModelProto, dict[str, Any]]]:
    """Name, model and inputs of the tests of one of ONNX's own operators."""
    for case in collect_testcases(None):
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].domain or case.model.functions:
            continue
        arrays = [
            numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item
            for item in case.data_sets[0][0]
        ]
        if all(isinstance(array, np.ndarray | np.generic) for array in arrays):
            feed = {item.name: np.asarray(a) for item, a in zip(case.model.graph.input, arrays, strict=True)}
            yield case.name, case.model, feed


def is_same(before: list[Any], after: list[Any]) -> bool:
    for old, new in zip(before, after, strict=True):
        if isinstance(old, np.ndarray):
            if (old.shape, old.dtype) != (new.shape, new.dtype):
                return False
            slack = 1e-3 if old.dtype == np.float16 else 1e-5
            is_number = old.dtype.kind in "fc"
            if not (np.allclose(old, new, slack, slack, equal_nan=True) if is_number else (old == new).all()):
                return False
    return True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.long
def test_the_nodes_of_onnx_own_tests_compute_the_same_at_the_next_opset() -> None:
    onnxruntime.set_default_logger_severity(4)
    tried: Counter[tuple[str, int]] = Counter()
    different, same = [], unchanged()
    for name, model, feed in node_tests():
        op = model.graph.node[0].op_type
        for step in (step for other, step in same if other == op):
            if not onnx.defs.has(op, step - 1, ""):
                continue
            before = run(at_opset(model, step - 1), feed)
            if before is None:
                continue
            raised = at_opset(model, step - 1)
            raise_opset(raised, max(step, 13))
            after = run(raised, feed)
            if after is None:
                continue
            tried[op, step] += 1
            if not is_same(before, after):
                different.append((name, step))
    assert different == []
    assert same - tried.keys() == NOT_TRIED
