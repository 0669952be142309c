"""A chain of engines as one session: slices by address, events, layers of all segments."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from tests.support.scripted_device.device import ScriptedDevice
from tests.support.trt_behaviour import IMAGES, LAYER, LOGITS
from tests.support.trt_exercise import SHAPES, each_version, library
from tests.support.trt_surface import Surface
from trtopt.device.api import Session
from trtopt.device.tensorrt.runtime import TensorRTTarget
from trtopt.errors import UsageError
from trtopt.files.chain_file import Chain, pack_chain
from trtopt.records import Segment, TensorSpec

TURNS = 4
BATCH = SHAPES[IMAGES[0]][0]
WHOLE = {IMAGES[0]: (TURNS * BATCH, *SHAPES[IMAGES[0]][1:])}


def spec(name: str, dtype: str, *shape: int) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape)


def chain_of(engine: bytes) -> bytes:
    """One engine that runs four times, as the digits model has its inputs and outputs."""
    (own_in, all_in), (own_out, all_out) = (
        tuple(spec(name, "float32", rows, *shape[1:]) for rows in (BATCH, TURNS * BATCH))
        for name, shape in ((IMAGES[0], SHAPES[IMAGES[0]]), (LOGITS[0], (BATCH, 10)))
    )
    segment = Segment(
        batch=BATCH,
        repeats=TURNS,
        inputs=(own_in,),
        outputs=(own_out,),
        size_bytes=len(engine),
        sha256=hashlib.sha256(engine).hexdigest(),
    )
    return pack_chain(Chain(inputs=(all_in,), outputs=(all_out,), segments=(segment,)), [engine])


def session_of(surface: Surface, device: ScriptedDevice) -> Session:
    return TensorRTTarget(library(surface), device).load(chain_of(b"engine"))


@each_version
def test_each_run_of_a_segment_has_the_next_slice_at_its_address(dump: str) -> None:
    surface, device = Surface(dump), ScriptedDevice()
    session = session_of(surface, device)
    context = session.context(WHOLE)
    buffers = {one.name: device.device_buffer(one.nbytes) for one in context.bindings}
    context.bind(buffers)
    context.enqueue(device.stream())
    calls = surface.called("IExecutionContext.set_tensor_address")
    for name, step in ((IMAGES[0], BATCH * 64 * 4), (LOGITS[0], BATCH * 10 * 4)):
        found = [call["memory"] for call in calls if call.get("name", call.get("tensor_name")) == name]
        assert found == [buffers[name].address + turn * step for turn in range(TURNS)]
    assert len(surface.called("IExecutionContext.execute_async_v3")) == TURNS


@each_version
def test_layers_are_named_by_segment_and_count_for_all_its_runs(dump: str) -> None:
    told: list[Any] = []
    surface, device = Surface(dump), ScriptedDevice()
    session = session_of(surface, device)
    context = session.context(WHOLE)
    context.bind({one.name: device.device_buffer(one.nbytes) for one in context.bindings})
    context.report_layers(lambda name, ms: told.append((name, ms)), on_request=True)
    context.enqueue(device.stream())
    assert context.request_layers()
    assert told == [(f"{LAYER[0]} [segment 1]", pytest.approx(TURNS * LAYER[1]))]


@each_version
def test_inputs_may_be_refilled_once_the_last_run_has_read_them(dump: str) -> None:
    surface, device = Surface(dump), ScriptedDevice()
    session = session_of(surface, device)
    context = session.context(WHOLE)
    stream, consumed = device.stream(), device.event(timed=False)
    buffers = {one.name: device.device_buffer(one.nbytes) for one in context.bindings}
    context.bind(buffers, consumed)
    context.enqueue(stream)
    stream.synchronize()
    assert consumed.reached()
    assert not any(call["event"] for call in surface.called("IExecutionContext.set_input_consumed_event"))


def test_another_batch_is_refused_with_what_it_was_built_for() -> None:
    session = session_of(Surface("tensorrt-8.6.0"), ScriptedDevice())
    with pytest.raises(UsageError, match="is not the chain's"):
        session.context(SHAPES)
    assert np.prod(session.profiles[0][IMAGES[0]].opt) == TURNS * BATCH * 64
