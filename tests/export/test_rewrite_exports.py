"""Networks from both of PyTorch's exporters, cleaned: same function, fewer nodes, a second run rests."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import pytest

torch = pytest.importorskip("torch")

from tests.support import tiny_networks  # noqa: E402
from trtopt.rewrite.rewrite import rewrite_model  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

_LEFT = {
    ("residual", "script", 17): 12,
    ("residual", "dynamo", 18): 12,
    ("mobile", "script", 17): 13,
    ("mobile", "dynamo", 18): 13,
    ("mobile", "dynamo", 21): 11,
    ("transformer", "script", 17): 50,
    ("transformer", "dynamo", 18): 52,
    ("transformer", "dynamo", 20): 41,
}


@pytest.mark.parametrize(("name", "exporter", "opset"), _LEFT, ids=str)
def test_an_exported_network_is_rewritten(name: str, exporter: str, opset: int, tmp_path: Path) -> None:
    source, out, again = (tmp_path / f"{file}.onnx" for file in ("in", "out", "again"))
    tiny_networks.export(name, source, exporter, opset)
    trace = rewrite_model(source, out, target="10", clean=True)
    assert trace.undone == ()
    assert len({item.feed for item in trace.checked}) == 2
    assert trace.nodes_after <= _LEFT[name, exporter, opset]
    left = Counter(node.op_type for node in onnx.load(out).graph.node)
    assert not {"Identity", "Constant", "Shape", "BatchNormalization", "Pad", "Dropout"} & left.keys()
    rewrite_model(out, again, target="10", clean=True, check=False)
    assert out.read_bytes() == again.read_bytes()
