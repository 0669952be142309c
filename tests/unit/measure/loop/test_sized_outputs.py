"""Streams over an engine whose output's size depends on the data, on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from tests.rewrite_graphs import model
from tests.support.scripted_runs import terms
from trtopt.device.api import Session
from trtopt.device.ort.runtime import OnnxRuntimeTarget
from trtopt.device.sized_outputs import capture_inference
from trtopt.errors import GraphCaptureError
from trtopt.measure.loop.inference_stream import InferenceStream

NONZERO = """g (float[2,4] x) => (int64[M,2] y, float[2,4] r)
    {i = NonZero(x) y = Transpose<perm=[1,0]>(i) r = Relu(x)}"""
TARGET = OnnxRuntimeTarget()
X = np.array([[1, 0, 2, 0], [0, 0, 0, 3]], np.float32)
PLACES = [[0, 0], [0, 2], [1, 3]]


@pytest.fixture
def session() -> Iterator[Session]:
    opened = TARGET.load(model(NONZERO).SerializeToString())
    yield opened
    opened.close()


@pytest.mark.parametrize("transfers", [True, False])
def test_every_query_has_its_output_in_its_own_size(session: Session, transfers: bool) -> None:
    contract = terms("trtexec-11", graph=True, transfers=transfers, queue_ahead=2)
    stream = InferenceStream(session, {"x": (2, 4)}, {"x": X}, contract)
    try:
        for slot in stream.slots:
            slot.start()
            slot.finish()
        for outputs in stream.outputs():
            assert outputs["y"].tolist() == PLACES
            assert outputs["r"].tolist() == X.tolist()
        for call in stream.bare()[0]:  # it has bound the buffers once more
            call()
        assert stream.sized_outputs["y"].shape == (3, 2)
        assert stream.graph_refused == "the size of 'y' is known only after running"
    finally:
        stream.close()


def test_each_run_has_another_size(session: Session) -> None:
    context, stream, device = session.context({"x": (2, 4)}), TARGET.device.stream(), TARGET.device
    by_name = {binding.name: binding for binding in context.bindings}
    assert {name for name, one in by_name.items() if one.is_data_dependent} == {"y"}
    buffers = {name: device.device_buffer(by_name[name].nbytes) for name in ("x", "r")}
    context.bind(buffers)
    sizes = []
    for given in (X, np.ones_like(X), np.zeros_like(X), np.ones_like(X)):
        buffers["x"].array[:] = given.reshape(-1).view(np.uint8)  # type: ignore[attr-defined]
        context.enqueue(stream)
        sizes.append(context.sized_outputs()["y"].shape)
    assert sizes == [(3, 2), (8, 2), (0, 2), (8, 2)]
    with pytest.raises(GraphCaptureError, match="'y'"), ExitStack() as resources:
        capture_inference(device, context, stream, resources)
    context.close()


def test_a_model_of_fixed_sizes_has_no_such_outputs_even_with_axes_of_unlike_names() -> None:
    opened = TARGET.load(model("g (float[N,4] x) => (float[M,4] y) {y = Relu(x)}").SerializeToString())
    context = opened.context({"x": (2, 4)})
    assert not any(binding.is_data_dependent for binding in context.bindings)
    assert context.sized_outputs() == {}
    context.close()
    opened.close()
