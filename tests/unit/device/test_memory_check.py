"""A device's memory is asked before it is needed; refused is only what cannot fit."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

from tests.support.scripted_device.device import ScriptedDevice, ScriptedSession
from tests.support.scripted_device.script import Script
from tests.support.scripted_runs import terms
from tests.unit.builder.test_timing_cache_of_build import Bench
from tests.unit.measure.test_engine import ENGINE, bench, job_in
from trtopt.device.api import DeviceMemory, Holder
from trtopt.device.memory_check import require_memory, warn_if_short
from trtopt.device.tensorrt.builder import TensorRTBuilder
from trtopt.errors import DeviceMemoryError
from trtopt.onnxio.external_data import least_bytes
from trtopt.records import BuildSettings, TensorSpec

GIB = 1 << 30
NOBODY = 1 << 22  # Linux numbers no process so high
HOLDERS = (
    Holder(NOBODY, 100 * GIB),
    Holder(os.getpid(), 20 << 20),
    Holder(NOBODY + 1, None),
    Holder(NOBODY + 2, None),
)
INPUT_BYTES, OUTPUT_BYTES = 8 * 4 * 4, 8 * 2 * 2
"""A batch of 8 of x [4], float32, and of y [2], float16."""


def test_a_refusal_says_what_is_needed_what_is_free_who_holds_it_and_what_to_do() -> None:
    parts = {"engine": 3 * GIB, "inputs and outputs": 512 << 20, "nothing": 0}
    with pytest.raises(DeviceMemoryError) as caught:
        require_memory("big.engine", parts, DeviceMemory(2 * GIB, 141 * GIB, HOLDERS), "use a smaller batch")
    assert caught.value.problem == (
        "big.engine needs at least 3.5 GiB of device memory (engine 3.0 GiB, inputs and outputs 512.0 MiB), "
        "and 2.0 GiB of 141.0 GiB are free; "
        f"held by process {NOBODY} (100.0 GiB), this process (20.0 MiB), process {NOBODY + 1} and 1 more"
    )
    assert caught.value.remedy == "end what holds the memory, or use a smaller batch"


def test_what_fits_just_so_is_not_refused_nor_is_what_no_one_can_judge() -> None:
    require_memory("x", {"engine": 5}, DeviceMemory(5, 5), "")
    require_memory("x", {"engine": 5}, None, "")
    with pytest.raises(DeviceMemoryError, match=r"0\.0 MiB are free\n"):
        require_memory("x", {"engine": 6}, DeviceMemory(5, 5), "")


def test_an_estimate_that_does_not_fit_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    warn_if_short("x", {"activations": GIB}, DeviceMemory(GIB, GIB))
    assert caplog.records == []
    warn_if_short("x", {"activations": GIB}, DeviceMemory(GIB - 1, GIB))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "x may need 1.0 GiB" in record.getMessage()


def test_an_engine_that_cannot_fit_is_not_loaded(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    output = TensorSpec(name="y", dtype="float16", shape=(8, 2))
    replace = msgspec.structs.replace
    engine = replace(job.engine, artifact=replace(job.engine.artifact, outputs=(output,)))
    known = replace(job, engine=engine)
    least = len(ENGINE) + INPUT_BYTES
    for asked, needed in ((job, least), (known, least + OUTPUT_BYTES)):
        device = ScriptedDevice(Script(memory_bytes=needed - 1, holders=HOLDERS))
        with pytest.raises(DeviceMemoryError, match=f"process {NOBODY}"):
            bench(device, asked)
        assert "load" not in device.calls
        with pytest.raises(DeviceMemoryError, match="out of memory"):  # it is tried: more may be needed
            bench(ScriptedDevice(Script(memory_bytes=needed)), job)


def test_lanes_that_may_not_fit_are_warned_of_and_measured(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inference_streams = terms("isolated", streams=2)
    enough = 2 * (ScriptedSession.device_memory_bytes + INPUT_BYTES)
    for memory, warned in ((enough, False), (enough - 1, True)):
        caplog.clear()
        device = ScriptedDevice(Script(memory_bytes=memory))
        bench(device, job_in(tmp_path, contract=inference_streams))
        assert [record.name for record in caplog.records] == ["trtopt.device.memory_check"] * warned


@pytest.mark.parametrize(
    ("types", "nbytes"),
    [
        (("float32", "int64", "bool"), 4 * 100 + 4),
        (("float16", "float32"), 2 * 100 + 2),
        (("float32", "int8"), 100 + 1),
        (("float32", "float8_e4m3fn"), 100 + 1),
        (("float32", "int4"), 50),
        ((), 4 * 100 + 8),
    ],
)
def test_weights_are_counted_as_narrow_as_an_engine_may_keep_them(
    types: tuple[str, ...], nbytes: int
) -> None:
    weights = [np.zeros((10, 10), np.float32), np.zeros(1, np.int64)]
    tensors = [onnx.numpy_helper.from_array(array, f"w{index}") for index, array in enumerate(weights)]
    graph = onnx.helper.make_graph([], "g", [], [], tensors)
    assert least_bytes(onnx.helper.make_model(graph), types) == nbytes


def test_a_build_whose_weights_cannot_fit_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rooms = [
        DeviceMemory(1000, 2000, HOLDERS),
        DeviceMemory(1 << 20, 1 << 30),
        DeviceMemory(1 << 29, 1 << 30),
    ]
    monkeypatch.setattr(TensorRTBuilder, "device_memory", lambda by: rooms.pop(0))
    by = Bench(tmp_path, monkeypatch)
    with pytest.raises(DeviceMemoryError, match=rf"building batch1-4-8 needs at least .* process {NOBODY}"):
        by.build()
    assert list((tmp_path / "out").iterdir()) == []
    by.build(settings=BuildSettings(workspace_bytes=1 << 21))
    by.build()
    (warning,) = (record for record in caplog.records if record.name == "trtopt.device.memory_check")
    assert "workspace 2.0 MiB" in warning.getMessage()
