"""What profiling asks of TensorRT's Python API, version by version; nothing here runs TensorRT."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.scripted_device.device import Script, ScriptedDevice
from tests.support.trt_behaviour import LAYER, STREAM
from tests.support.trt_exercise import SHAPES, build, each_version, load, target
from tests.support.trt_surface import Surface
from trtopt.errors import BuildError


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


@each_version
def test_a_builders_allocations_are_followed_if_asked(dump: str) -> None:
    surface, device = Surface(dump), ScriptedDevice()
    found = build(surface, memory=device).memory
    assert found is not None
    stream = STREAM if target(dump).async_allocator else None
    assert [(one.phase, one.kind, one.size_bytes, one.stream) for one in found.events] == [
        ("build", "allocate", 8192, stream),
        ("build", "deallocate", 8192, stream),
    ]
    assert (found.driver_used_bytes, device.used, device.open) == (0, 0, 0)
    assert build(Surface(dump)).memory is None


@each_version
def test_a_builder_without_memory_tells_how_much_it_had_and_what_was_refused(dump: str) -> None:
    replaced = {"Builder.build_serialized_network": _build_nothing}
    with pytest.raises(
        BuildError, match=r"peaked at 0\.0 MiB, and there was no memory for 1, first 64\.0 MiB"
    ):
        build(Surface(dump, replaced), memory=ScriptedDevice(Script(memory_bytes=1000)))


def _build_nothing(builder: Any, *_: Any) -> None:
    surface = builder._surface
    allocator = surface.deref(builder._state["gpu_allocator"])
    if surface.has("IGpuAsyncAllocator"):
        assert allocator.allocate_async(64 << 20, 256, 0, STREAM) == 0
    else:
        assert allocator.allocate(64 << 20, 256, 0) == 0
