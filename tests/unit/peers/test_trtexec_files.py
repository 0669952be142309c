import json
from pathlib import Path

import pytest

from tests.support.scripted_device.device import Script, ScriptedDevice
from tests.support.scripted_runs import counted, run, terms
from trtopt.peers import trtexec_files as layouts
from trtopt.records import LayerPass, LayerTime

SCRIPT = Script(compute_ms=[1.0], enqueue_ms=[0.125], h2d_ms=0.5, d2h_ms=0.25)
KEYS = [
    *("startEnqMs", "endEnqMs", "startH2dMs", "endH2dMs", "startComputeMs", "endComputeMs"),
    *("startD2hMs", "endD2hMs", "h2dMs", "computeMs", "d2hMs", "latencyMs"),
]


def exported(contract: str) -> list[dict[str, float]]:
    measured = run(ScriptedDevice(SCRIPT), terms(contract), "latency", counted(queries=2))
    rows: list[dict[str, float]] = json.loads(layouts.times(measured.staged))
    return rows


def test_times_have_trtexecs_keys_in_milliseconds_where_they_happened() -> None:
    first, second, third, *_ = exported("trtexec-10")
    assert list(first) == KEYS
    places = [value - 5.25 for value in list(first.values())[:8]]  # after three samples of 1.75 ms
    assert places == [0.0, 0.125, 0.0, 0.5, 0.5, 1.5, 1.5, 1.75]
    assert list(first.values())[8:] == [0.5, 1.0, 0.25, 1.75]
    shifted = {key: value + (1.75 if key.startswith(("start", "end")) else 0) for key, value in first.items()}
    assert second == pytest.approx(shifted, rel=1e-12)
    assert third["endD2hMs"] == 10.5


def test_times_without_copies_have_them_where_computing_begins_and_ends() -> None:
    first = exported("isolated")[0]
    assert list(first) == KEYS
    places = [value - 3.375 for value in list(first.values())[:8]]  # after three samples of 1.125 ms
    assert places == [0.0, 0.125, 0.0, 0.0, 0.0, 1.125, 1.125, 1.125]
    assert list(first.values())[8:] == [0.0, 1.125, 0.0, 1.125]


def test_a_profile_begins_with_the_count_of_runs() -> None:
    layers = LayerPass(
        runs=3,
        layers=(LayerTime(name='conv "1"', ms=[1.0, 2.0, 6.0]), LayerTime(name="relu", ms=[1.0] * 3)),
    )
    assert json.loads(layouts.profile(layers)) == [
        {"count": 3},
        {"name": 'conv "1"', "timeMs": 9.0, "averageMs": 3.0, "medianMs": 2.0, "percentage": 75.0},
        {"name": "relu", "timeMs": 3.0, "averageMs": 1.0, "medianMs": 1.0, "percentage": 25.0},
    ]


def test_layers_that_take_no_time_have_no_share() -> None:
    layers = LayerPass(runs=1, layers=(LayerTime(name="nothing", ms=[0.0]),))
    assert json.loads(layouts.profile(layers))[1]["percentage"] == 0.0


def test_several_batch_sizes_get_a_file_each() -> None:
    assert layouts.path_for(Path("a/times.json"), 8, batches=1) == Path("a/times.json")
    assert layouts.path_for(Path("a/times.json"), 8, batches=2) == Path("a/times.batch8.json")
    assert layouts.path_for(Path("times"), 1, batches=2) == Path("times.batch1")
