"""The same contract for both CUDA bindings."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from trtopt.device.api import Device
from trtopt.errors import DeviceMemoryError


def test_the_device_says_what_it_is(device: Device, binding: str) -> None:
    info = device.info
    assert info.kind == "gpu"
    assert info.binding is not None
    assert info.binding.startswith(binding)
    assert info.uuid is not None
    assert info.uuid.startswith("GPU-")
    assert info.memory_bytes is not None
    assert info.memory_bytes > 2**30


def test_bytes_survive_a_round_trip_through_the_device(device: Device) -> None:
    count = 1 << 20
    source, target = device.pinned_buffer(count), device.pinned_buffer(count)
    memory, stream = device.device_buffer(count), device.stream()
    source.array[:] = np.random.default_rng(0).integers(0, 256, count, dtype=np.uint8)
    target.array[:] = 0
    device.copy_to_device(memory, source, stream)
    device.copy_to_host(target, memory, stream)
    stream.synchronize()
    assert np.array_equal(source.array, target.array)
    for resource in (stream, memory, target, source):
        resource.close()
        resource.close()  # twice is allowed


def test_pageable_memory_can_be_copied_from_and_to(device: Device) -> None:
    count = 1 << 20
    source, target = device.pageable_buffer(count), device.pageable_buffer(count)
    memory, stream = device.device_buffer(count), device.stream()
    source.array[:] = np.random.default_rng(0).integers(0, 256, count, dtype=np.uint8)
    target.array[:] = 0
    device.copy_to_device(memory, source, stream)
    device.copy_to_host(target, memory, stream)
    stream.synchronize()
    assert np.array_equal(source.array, target.array)
    for resource in (stream, memory, target, source):
        resource.close()


def test_another_thread_can_use_the_device_once_it_is_adopted(device: Device) -> None:
    source, target = device.pinned_buffer(1 << 20), device.pinned_buffer(1 << 20)
    memory, stream, done = device.device_buffer(1 << 20), device.stream(), device.event()
    source.array[:] = 7

    def work() -> None:
        with device.adopt_thread():
            device.copy_to_device(memory, source, stream)
            device.copy_to_host(target, memory, stream)
            done.record(stream)
            done.wait()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
    assert (target.array == 7).all()
    for resource in (done, stream, memory, target, source):
        resource.close()


def test_events_order_streams_and_measure_time(device: Device) -> None:
    count = 256 << 20
    host, memory = device.pinned_buffer(count), device.device_buffer(count)
    first, second = device.stream(), device.stream()
    start, middle, end = device.event(), device.event(blocking=True), device.event()
    start.record(first)
    device.copy_to_device(memory, host, first)
    middle.record(first)
    second.wait_for(middle)
    end.record(second)
    end.wait()
    assert middle.elapsed_ms(start) > 0.5  # 256 MiB over PCIe at well under 500 GB/s
    assert end.elapsed_ms(start) >= middle.elapsed_ms(start)
    for resource in (end, middle, start, second, first, memory, host):
        resource.close()


def test_an_event_is_reached_once_the_work_before_it_is_done(device: Device) -> None:
    count = 256 << 20
    host, memory = device.pinned_buffer(count), device.device_buffer(count)
    stream, event = device.stream(), device.event()
    for _ in range(4):
        device.copy_to_device(memory, host, stream)
    event.record(stream)
    assert not event.reached()
    device.wait_any([event], device.now() + 60)
    assert event.reached()
    for resource in (event, stream, memory, host):
        resource.close()


def test_a_captured_copy_runs_when_its_graph_is_launched_and_not_before(device: Device) -> None:
    source, target = device.pinned_buffer(16), device.pinned_buffer(16)
    memory, stream = device.device_buffer(16), device.stream()
    source.array[:] = 7
    target.array[:] = 0

    def work() -> None:
        device.copy_to_device(memory, source, stream)
        device.copy_to_host(target, memory, stream)

    graph = device.capture(stream, work)
    stream.synchronize()
    assert not target.array.any()
    graph.launch()
    stream.synchronize()
    assert (target.array == 7).all()
    graph.close()


def test_more_memory_than_there_is_gives_a_typed_error(device: Device) -> None:
    assert device.info.memory_bytes is not None
    with pytest.raises(DeviceMemoryError, match="out of memory"):
        device.device_buffer(device.info.memory_bytes * 2)
    device.device_buffer(1024).close()  # the device goes on


def test_used_memory_grows_by_what_is_allocated(device: Device) -> None:
    before = device.used_bytes()
    buffer = device.device_buffer(512 << 20)
    after = device.used_bytes()
    buffer.close()
    assert before is not None
    assert after is not None
    assert after - before >= 512 << 20
