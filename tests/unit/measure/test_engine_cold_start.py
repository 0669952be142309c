"""The phases of one start, over the scripted device."""

import time
from pathlib import Path

import msgspec
import pytest

from tests.support.scripted_device.device import Script, ScriptedDevice, ScriptedTarget
from tests.support.scripted_runs import terms
from tests.unit.measure.test_engine import engine_in, job_in
from trtopt.errors import ArtifactError
from trtopt.measure.engine import ColdStartJob, StartResult, start_engine
from trtopt.records import ColdStart
from trtopt.records.bench import START_PHASES


def start_in(folder: Path, device: ScriptedDevice, **changes: object) -> StartResult:
    bench = msgspec.structs.replace(job_in(folder), **{"contract": terms("trtexec-11")} | changes)
    job = ColdStartJob(bench=bench, page_cache="cold", began_s=time.monotonic() - 1.0)
    return start_engine(job, lambda: ScriptedTarget(device))


def test_every_phase_is_timed_in_order_and_all_is_closed(tmp_path: Path) -> None:
    device = ScriptedDevice()
    found = start_in(tmp_path, device).start
    assert tuple(found.ms) == START_PHASES
    assert found.ms["process start"] >= 1000.0
    assert found.page_cache == "cold"
    assert device.calls[-1] == "close device"
    assert device.open == 0


def test_the_time_to_the_first_output_ends_with_it() -> None:
    ms = dict.fromkeys(START_PHASES, 1.0) | {"second inference": 100.0, "graph capture": 100.0}
    assert ColdStart(page_cache="warm", ms=ms).first_result_ms == 6.0


def test_a_graph_that_cannot_be_captured_has_a_reason_instead_of_a_time(tmp_path: Path) -> None:
    found = start_in(tmp_path, ScriptedDevice(Script(graphs=False))).start
    assert "graph capture" not in found.ms
    assert found.graph_refused == "the script's engine cannot be captured"
    plain = start_in(tmp_path, ScriptedDevice(), contract=terms("trtexec-11", graph=False)).start
    assert "graph capture" not in plain.ms
    assert plain.graph_refused is None


def test_an_engine_that_is_not_the_one_that_was_built_is_not_loaded(tmp_path: Path) -> None:
    device = ScriptedDevice()
    with pytest.raises(ArtifactError, match="SHA-256 differs"):
        start_in(tmp_path, device, engine=engine_in(tmp_path, sha256="0" * 64))
    assert "load" not in device.calls
