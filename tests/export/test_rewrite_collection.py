"""The whole collection, tiny, from both exporters: rewritten, equal, no more nodes, built by TensorRT-RTX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trtopt.export.export import Exported
from trtopt.export.source_module import from_spec
from trtopt.export.spec import files, read_spec
from trtopt.rewrite.rewrite import rewrite_model

_NAMES = [name for name, path in files().items() if read_spec(path).construct is not None]
_OF_ONE_EXPORTER = {("maskrcnn", "torchscript"), ("retinanet", "torchscript"), ("rnnt-encoder", "dynamo")}
"""What that exporter cannot do: it bakes in an axis."""
_PAIRS = [
    (name, exporter)
    for name in _NAMES
    for exporter in ("dynamo", "torchscript")
    if (name, exporter) not in _OF_ONE_EXPORTER
]
_SAVED = {
    ("bert-base", "torchscript"),
    ("diffusion-unet", "dynamo"),
    ("gpt-decode", "torchscript"),
    ("maskrcnn", "dynamo"),
    ("rnnt-encoder", "torchscript"),
    ("vit-b16", "dynamo"),
}
"""Some where nodes go; most models of the newer exporter have little left to fold."""


@pytest.mark.parametrize(("name", "exporter"), _PAIRS)
def test_a_model_of_the_collection_is_rewritten(
    name: str, exporter: str, exported: Callable[[str, str], Exported], tmp_path: Path
) -> None:
    source = exported(name, exporter).path
    out, again = tmp_path / "out.onnx", tmp_path / "again.onnx"
    trace = rewrite_model(source, out, target="rtx", clean=True)
    assert trace.undone == ()
    assert all(item.ok for item in trace.checked)
    assert bool(trace.checked) == bool(trace.applied)
    assert trace.nodes_after <= trace.nodes_before
    if (name, exporter) in _SAVED:
        assert trace.nodes_after < trace.nodes_before
    rewrite_model(out, again, target="rtx", clean=True, check=False)
    assert out.read_bytes() == again.read_bytes()
    if not trace.applied:
        return  # the exported model itself is built elsewhere
    rtx = pytest.importorskip("rtx", reason="tensorrt_rtx is not installed", exc_type=ImportError)
    spec = read_spec(files()[name])
    subject = from_spec(files()[name], "tiny")
    assert rtx.build(out, subject.inputs, subject.axes, spec.variants["tiny"].sizes) == []
