"""Pools on the scripted device: which calls they make of it, and what they keep."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tests.support.scripted_device.device import ScriptedDevice, ScriptedTarget
from tests.support.scripted_device.script import Script
from tests.support.serving_pools import (
    ACTIVATIONS,
    ROW_BYTES,
    artifact,
    calls_in,
    device,
    pool_on,
    rows,
)
from trtopt.errors import ClosedError, DataError, DeviceError, DeviceMemoryError, UsageError, WorkerError
from trtopt.records import EngineArtifact, Profile
from trtopt.serving.load_folder import Source, offers_of
from trtopt.serving.pool import EnginePool

ENQUEUED = ["copy_to_device", "enqueue", "copy_to_host"]
PLAIN = ["bind", *ENQUEUED, "synchronize"]
REPLAYED = ["launch", "synchronize"]
PROFILES, RANGE = (artifact(1, 4), artifact(8)), artifact(1, 8)
MADE = ["context", "pinned_buffer", "pinned_buffer", "device_buffer", "device_buffer"]


def test_nothing_is_prepared_before_it_is_needed() -> None:
    gpu = device()
    with pool_on(gpu):
        assert "context" not in gpu.calls
        assert gpu.used == 0


def test_the_first_run_is_plain_the_second_captures_and_later_ones_replay() -> None:
    gpu = device()
    with pool_on(gpu) as pool:
        assert calls_in(gpu, lambda: pool.run(rows(8))) == [*MADE, *PLAIN]
        second = ["capture", *ENQUEUED, "launch", "synchronize"]
        assert calls_in(gpu, lambda: pool.run(rows(8))) == second
        assert calls_in(gpu, lambda: pool.run(rows(8))) == REPLAYED
        assert calls_in(gpu, lambda: pool.run(rows(1))) == [*MADE, *PLAIN]  # another engine
        assert pool.usage().graphs == 1


@pytest.mark.parametrize("refused", [False, True])
def test_without_graphs_every_run_is_plain_and_binds_once(refused: bool) -> None:
    gpu = device(graphs=not refused)
    with pool_on(gpu, graphs=refused) as pool:
        pool.run(rows(8))
        tries = ["capture"] if refused else []
        again = [*ENQUEUED, "synchronize"]
        assert calls_in(gpu, lambda: pool.run(rows(8))) == [*tries, *again]
        assert calls_in(gpu, lambda: pool.run(rows(8))) == again
        why = "the script's engine cannot be captured" if refused else None
        assert (pool.usage().graphs, pool.usage().graph_refused) == (0, why)


def test_a_graph_that_there_is_no_memory_for_is_tried_once_and_the_engine_serves_on() -> None:
    gpu = device()

    def full(stream: object, work: object) -> object:
        gpu.call("capture")
        raise DeviceMemoryError("out of memory: instantiating a graph", "free the GPU")

    gpu.capture = full  # type: ignore[method-assign, assignment]
    with pool_on(gpu) as pool:
        for _ in range(4):
            assert pool.run(rows(8))["y"].shape == (8, 2)
        assert gpu.calls.count("capture") == 1
        assert pool.usage().graph_refused == "out of memory: instantiating a graph"


def test_rows_over_the_largest_engine_are_split() -> None:
    gpu = device()
    with pool_on(gpu) as pool:
        answer = pool.run(rows(17))
        assert answer["y"].shape == (17, 2)
        assert gpu.calls.count("synchronize") == 3
        assert pool.usage().prepared == 2


def profiled() -> EngineArtifact:
    """One engine with both profiles."""
    multi_profile = tuple(Profile(batch=one.plan.batch, shapes=one.plan.shapes) for one in PROFILES)
    plan = msgspec.structs.replace(RANGE.plan, multi_profile=multi_profile)
    return msgspec.structs.replace(RANGE, plan=plan)


def test_each_profile_of_an_engine_has_contexts_of_its_own_and_what_lies_between_is_padded_up() -> None:
    gpu = device()
    with EnginePool(ScriptedTarget(gpu), [Source(profiled(), b"engine", offers_of(profiled()))]) as pool:
        assert gpu.calls.count("load") == 1
        for count, made in ((2, 1), (4, 2), (5, 3), (8, 3), (20, 4)):  # 5 runs as 8; 20 is 8, 8 and 4
            assert pool.run(rows(count))["y"].shape == (count, 2)
            assert gpu.calls.count("context") == min(made, 3)
        assert pool.largest_batch == 8


@pytest.mark.parametrize(("planned", "largest", "batches"), [(False, 8, 2), (True, 4, 3)])
def test_a_profile_that_was_not_measured_is_used_but_not_where_a_plan_has_left_it_out(
    planned: bool, largest: int, batches: int
) -> None:
    gpu = device()
    source = Source(profiled(), b"engine", offers_of(profiled(), ((4, 1.0),), only_measured=planned))
    with EnginePool(ScriptedTarget(gpu), [source]) as pool:
        assert pool.largest_batch == largest
        pool.run(rows(12))
        assert gpu.calls.count("synchronize") == batches


# ── bounded memory ──────────────────────────────────────────────────────────────────────────────────────


def test_the_least_recently_used_engine_gives_way_to_the_next() -> None:
    gpu = device()
    bound = 2 * ACTIVATIONS + (1 + 8) * ROW_BYTES
    with pool_on(gpu, (1, 8, 32), bound_bytes=bound) as pool:
        pool.run(rows(1))
        pool.run(rows(8))
        assert pool.usage().prepared_bytes == bound
        assert pool.usage().evicted == 0
        pool.run(rows(1))
        pool.run(rows(32))  # batch 8 was used longer ago, but both must go
        usage = pool.usage()
        assert (usage.prepared, usage.evicted) == (1, 2)
        assert usage.prepared_bytes == ACTIVATIONS + 32 * ROW_BYTES
        assert gpu.used == 32 * ROW_BYTES


def test_what_was_used_last_stays() -> None:
    gpu = device()
    with pool_on(gpu, (1, 2, 4), bound_bytes=2 * ACTIVATIONS + 6 * ROW_BYTES) as pool:
        for count in (1, 2, 1, 4):  # 2 gives way
            pool.run(rows(count))
        assert pool.usage().evicted == 1
        assert "context" not in calls_in(gpu, lambda: pool.run(rows(1)))
        assert "context" in calls_in(gpu, lambda: pool.run(rows(2)))


def test_an_engine_above_the_bound_runs_alone() -> None:
    gpu = device()
    with pool_on(gpu, bound_bytes=1) as pool:
        for count in (8, 1, 8, 8, 8):
            pool.run(rows(count))
            assert pool.usage().prepared == 1
        assert pool.usage().graphs == 1
        pool.run(rows(1))
        assert pool.usage().graphs == 0


def test_the_bound_is_shared_by_the_workers_equally() -> None:
    with pool_on(device(), workers=2, bound_bytes=2 * (ACTIVATIONS + 8 * ROW_BYTES)) as pool:
        pool.run(rows(8))
        pool.run(rows(1))
        assert pool.usage().evicted == 1


def test_a_device_without_memory_left_lets_everything_else_go_and_tries_again() -> None:
    gpu = device(memory_bytes=8 * ROW_BYTES)
    with pool_on(gpu, (1, 8, 32)) as pool:
        pool.run(rows(1))
        assert pool.run(rows(8))["y"].shape == (8, 2)
        assert pool.usage().evicted == 1
        with pytest.raises(DeviceError, match="out of memory"):
            pool.run(rows(32))
        assert (gpu.used, pool.usage().prepared, pool.usage().replaced) == (0, 0, 0)
        assert pool.run(rows(1))["y"].shape == (1, 2)


# ── failure and teardown ────────────────────────────────────────────────────────────────────────────────


def everything(gpu: ScriptedDevice) -> None:
    with pool_on(gpu, workers=2, bound_bytes=4 * ACTIVATIONS) as pool:
        for count in (8, 8, 1, 17):
            pool.run(rows(count))


def calls_of_everything() -> list[tuple[str, int]]:
    gpu = device()
    everything(gpu)
    made = [name for name in gpu.calls if name != "close device"]
    return [(name, made[: index + 1].count(name)) for index, name in enumerate(made)]


def test_a_pool_that_goes_well_gives_everything_back() -> None:
    gpu = device()
    everything(gpu)
    assert (gpu.open, gpu.used, gpu.calls[-1]) == (0, 0, "close device")
    expected = {"load", "stream", "capture", "launch", "adopt_thread"}
    assert expected | set(MADE) | set(PLAIN) == {name for name, _ in calls_of_everything()}


def test_whichever_call_fails_everything_is_released_and_the_failure_reported() -> None:
    for name, count in calls_of_everything():
        gpu = device(fail_at=(name, count))
        with pytest.raises((DeviceError, WorkerError), match=f"scripted failure of {name}"):
            everything(gpu)
        assert (gpu.open, gpu.used) == (0, 0), f"{name} {count}"


def test_a_worker_that_fails_is_replaced_and_the_pool_goes_on() -> None:
    gpu = device(fail_at=("synchronize", 2))
    with pool_on(gpu) as pool:
        pool.run(rows(8))
        with pytest.raises(WorkerError, match=r"the worker failed: scripted failure.*\n.*1 of 1 workers"):
            pool.run(rows(8))
        assert (pool.usage().workers, pool.usage().replaced, gpu.used) == (1, 1, 0)
        assert pool.run(rows(8))["y"].shape == (8, 2)


def test_a_worker_that_cannot_be_replaced_is_lost_and_the_others_go_on() -> None:
    class Dying(ScriptedDevice):
        """Has two streams to give, and no more."""

        def call(self, name: str) -> None:
            super().call(name)
            if name == "stream" and self.calls.count("stream") > 2:
                raise DeviceError("no stream is left", "the test wants it so")
            if name == "enqueue" and self.calls.count("enqueue") in (2, 3):
                raise DeviceError("the device died", "the test wants it so")

    gpu = Dying()
    with pool_on(gpu, workers=2, graphs=False) as pool:
        pool.run(rows(8))
        with pytest.raises(WorkerError, match=r"the device died\n.*1 of 2 workers"):
            pool.run(rows(8))
        with pytest.raises(WorkerError, match=r"the device died\n.*0 of 2 workers"):
            pool.run(rows(8))
        with pytest.raises(WorkerError, match="no worker is left"):
            pool.run(rows(8))
    assert (gpu.open, gpu.used) == (0, 0)


def test_an_interruption_replaces_the_worker_and_comes_through() -> None:
    class Interrupted(ScriptedDevice):
        def call(self, name: str) -> None:
            super().call(name)
            if name == "synchronize" and self.calls.count("synchronize") == 1:
                raise KeyboardInterrupt

    gpu = Interrupted()
    with pool_on(gpu) as pool:
        with pytest.raises(KeyboardInterrupt):
            pool.run(rows(1))
        assert pool.run(rows(1))["y"].shape == (1, 2)
    assert (gpu.open, gpu.used) == (0, 0)


def test_a_closed_pool_reports_it_and_can_be_closed_again() -> None:
    pool = pool_on(device())
    pool.close()
    pool.close()
    with pytest.raises(ClosedError, match="the pool has been closed"):
        pool.run(rows(1))


# ── what it takes ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ({"z": rows(1)}, r"inputs \['z'\] given, the engines take \['x'\]"),
        ({}, r"inputs \[\] given"),
        (rows(1).astype(np.float64), "'x': has type float64, the engines take float32"),
        (rows(1).astype(">f4"), "has type >f4"),
        (rows(0), r"one at least: x \[0, 4\]"),
        (np.zeros((), np.float32), r"one at least: x \[\]"),
        (np.zeros((2, 5), np.float32), r"shape x \[5\] fit no engine\n.*take x \[4\]"),
        (np.zeros((2, 4, 1), np.float32), r"shape x \[4, 1\] fit no engine"),
        ([1.0], "list is not a NumPy array"),
    ],
)
def test_inputs_that_no_engine_takes_are_refused_before_anything_runs(inputs: object, told: str) -> None:
    gpu = device()
    with pool_on(gpu) as pool:
        with pytest.raises(DataError, match=told):
            pool.run(inputs)
        assert pool.usage().prepared == 0


@pytest.mark.parametrize(("workers", "bound_bytes"), [(0, 1), (1, 0)])
def test_a_pool_that_cannot_run_anything_is_refused(workers: int, bound_bytes: int) -> None:
    with pytest.raises(UsageError, match="cannot run anything"):
        pool_on(device(), workers=workers, bound_bytes=bound_bytes)


def test_an_engine_whose_inputs_have_no_batch_axis_is_refused_and_everything_released() -> None:
    from tests.support.scripted_device.device import ScriptedTarget
    from tests.support.serving_pools import artifact

    other = artifact(8)
    other.plan.shapes["x"] = artifact(4).plan.shapes["x"]
    gpu = device()
    with pytest.raises(UsageError, match="batch8: 'x' has no batch axis in front"):
        EnginePool(ScriptedTarget(gpu), [Source(other, b"engine", offers_of(other))])
    assert (gpu.open, gpu.calls[-1]) == (0, "close device")


def test_an_engine_that_there_is_no_room_for_is_not_loaded() -> None:
    gpu = ScriptedDevice(Script(memory_bytes=len(b"engine") - 1))
    with pytest.raises(DeviceMemoryError, match=r"batch1\.engine needs at least"):
        pool_on(gpu)
    assert "load" not in gpu.calls
    assert (gpu.open, gpu.calls[-1]) == (0, "close device")
