import json
from typing import Any

from msgspec.structs import replace

from tests.support import examples
from tests.support.inspected import profiled
from tests.unit.inspect.test_explanation import engine
from trtopt.records import (
    EngineProfile,
    EngineTensor,
    LayerCost,
    MemoryTimeline,
    ProfiledLayer,
    ProfileReport,
)
from trtopt.report.trace import trace


def events(*engines: EngineProfile) -> list[dict[str, Any]]:
    report = ProfileReport(
        created="", environment=examples.report().environment, model_sha256="", peaks=None, engines=engines
    )
    found: list[dict[str, Any]] = json.loads(trace(report))["traceEvents"]
    return found


def slices(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(one["name"], one["tid"], one["ts"], one["dur"]) for one in found if one["ph"] == "X"]


CONV: ProfiledLayer = profiled(
    '</script>"conv\x1e',
    "conv relu",
    2.0,
    dtype="float16",
    tactic="t",
    inputs=(EngineTensor(name="x"),),
    cost=LayerCost(flops=1, bytes_moved=2, floor_ms=0.5, bound="memory"),
)


def test_layers_stand_end_to_end_at_their_medians_in_microseconds() -> None:
    found = events(engine("a", CONV, profiled("never timed", ms=None), profiled("relu", ms=0.5)))
    assert slices(found) == [(CONV.name, 1, 0.0, 2000.0), ("relu", 1, 2000.0, 500.0)]
    told = found[2]["args"]
    assert (told["kind"], told["dtype"], told["tactic"]) == ("k", "float16", "t")
    assert (told["onnx_nodes"], told["floor_ms"], told["bound"]) == (["conv", "relu"], 0.5, "memory")
    assert not {"requested_dtype", "low_ms"} & told.keys()  # unknown ones are left out


def test_copies_stand_next_to_the_layers() -> None:
    with_copies = replace(engine("a", CONV), h2d_ms=0.25, d2h_ms=0.5)
    assert slices(events(with_copies)) == [
        ("copy to the device", 2, 0.0, 250.0),
        (CONV.name, 1, 250.0, 2000.0),
        ("copy to the host", 3, 2250.0, 500.0),
    ]


def test_live_memory_is_a_counter_and_every_engine_a_process() -> None:
    memory = MemoryTimeline(
        peak_bytes=8,
        peak_phase="load",
        peak_by_phase={},
        at_peak_bytes={},
        leaked_bytes=(),
        failed_bytes=(),
        buffers_bytes=0,
        driver_bytes=None,
        remainder_bytes=None,
        at_ms=[1.0, 2.5],
        live_bytes=[8, 0],
    )
    found = events(engine("a"), replace(engine("b"), memory=memory))
    counters = [(one["pid"], one["ts"], one["args"]["bytes"]) for one in found if one["ph"] == "C"]
    assert counters == [(2, 1000.0, 8), (2, 2500.0, 0)]
    names = [one["args"]["name"] for one in found if one["name"] == "process_name"]
    assert names == ["a, batch 1", "b, batch 1"]
