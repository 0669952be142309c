"""What profiling asks of TensorRT's Python API, version by version; nothing here runs TensorRT."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.scripted_device.device import ScriptedDevice
from tests.support.trt_behaviour import LAYER
from tests.support.trt_exercise import SHAPES, each_version, load
from tests.support.trt_surface import Surface


@each_version
def test_on_request_no_run_reports_its_layers_by_itself(dump: str) -> None:
    surface, device, told = Surface(dump), ScriptedDevice(), list[Any]()
    context = load(surface, device=device).context(SHAPES)
    context.bind({binding.name: device.device_buffer(binding.nbytes) for binding in context.bindings})
    context.report_layers(lambda name, ms: told.append((name, ms)), on_request=True)
    context.enqueue(device.stream())
    assert told == []
    assert context.request_layers()
    assert told == [LAYER]
    assert surface.called("IExecutionContext.enqueue_emits_profile") == [{"value": False}]


@each_version
def test_a_context_without_a_profiler_has_no_layers_to_report(dump: str) -> None:
    assert not load(Surface(dump)).context(SHAPES).request_layers()


@each_version
@pytest.mark.parametrize(("nvtx", "verbosity"), [(False, "NONE"), (True, "DETAILED")])
def test_a_context_shows_profilers_its_layers_only_if_asked(dump: str, nvtx: bool, verbosity: str) -> None:
    surface = Surface(dump)
    context = load(surface, nvtx=nvtx).context(SHAPES)
    set_to = [call["value"].name for call in surface.called("IExecutionContext.nvtx_verbosity")]
    assert set_to == [verbosity]
    context.report_layers(lambda name, ms: None)
    set_to = [call["value"].name for call in surface.called("IExecutionContext.nvtx_verbosity")]
    assert set_to == [verbosity, "DETAILED"]


@each_version
def test_a_context_emits_ranges_on_request_as_detailed_as_the_engine_was_built(dump: str) -> None:
    surface = Surface(dump)
    load(surface, nvtx=False).context(SHAPES).emit_ranges()
    set_to = [call["value"].name for call in surface.called("IExecutionContext.nvtx_verbosity")]
    assert set_to == ["NONE", "DETAILED"]
