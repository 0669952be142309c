"""Which nodes take part, what a job needs there, and when it is given up."""

import pytest

from trtopt.errors import DeviceError
from trtopt.executors.placement import (
    KILLED_FOR_MEMORY,
    MEASURING,
    Needs,
    Node,
    candidates,
    check_offers,
    exhausted,
    fleet_of,
)
from trtopt.records import Backend, Identity

BACKEND = Backend(name="tensorrt", version="10.13.0")
BUILD, MEASURE = Needs(gpus=1, is_alone=False), Needs(gpus=1, is_alone=True)


def node(name: str, **offers: float) -> Node:
    return Node(id=f"id-{name}", name=name, offers={"CPU": 8, "GPU": 1, MEASURING: 1} | offers)


def identity(gpu: str = "NVIDIA H100 80GB HBM3", driver: str = "570.1", version: str = "10.13.0") -> Identity:
    backend = Backend(name="tensorrt", version=version)
    return Identity(backend=backend, gpu=gpu, compute_capability="9.0", driver=driver, cuda="12.8")


A, B, C = node("a"), node("b"), node("c")


def test_the_first_node_says_what_gpu_model_and_driver_all_are_of() -> None:
    l4, newer = identity("NVIDIA L4"), identity(driver="575.2")
    fleet = fleet_of([(A, identity()), (B, l4), (C, newer)], BACKEND, None)
    assert fleet.nodes == (A,)
    assert [*map(str, fleet.refused)] == [
        "b: gpu NVIDIA L4, the others NVIDIA H100 80GB HBM3",
        "c: driver 575.2, the others 570.1",
    ]


def test_a_gpu_model_that_is_named_passes_over_others() -> None:
    fleet = fleet_of([(A, identity("NVIDIA L4")), (B, identity())], BACKEND, "h100")
    assert fleet.nodes == (B,)
    assert [*map(str, fleet.refused)] == ["a: has NVIDIA L4, not h100"]


def test_another_tensorrt_is_refused_with_both_versions() -> None:
    fleet = fleet_of([(A, identity(version="10.9.0")), (B, identity())], BACKEND, None)
    assert fleet.nodes == (B,)
    assert "10.9.0" in str(*fleet.refused)
    assert "10.13.0" in str(*fleet.refused)


def test_nodes_of_one_host_that_are_refused_alike_are_named_once() -> None:
    two = [(A, identity("NVIDIA L4")), (Node("second", A.name, A.offers), identity("NVIDIA L4"))]
    assert [*map(str, fleet_of(two, BACKEND, "h100").refused)] == ["a: has NVIDIA L4, not h100"]


def test_a_node_that_comes_later_must_be_like_those_that_are_there() -> None:
    late = fleet_of([(B, identity("NVIDIA L4"))], BACKEND, None, identity())
    assert late.nodes == ()


def test_a_host_has_room_for_a_build_on_each_gpu_or_for_one_measurement_alone() -> None:
    two, without = node("two", GPU=2), node("plain", **{MEASURING: 0})
    assert [BUILD.room_on(two), MEASURE.room_on(two)] == [2, 1]
    assert BUILD.resources[MEASURING] + MEASURE.resources[MEASURING] > 1  # a measurement is alone
    for needs in (BUILD, MEASURE):
        assert candidates([A, without], needs, ()) == [A]
        with pytest.raises(DeviceError, match=MEASURING) as raised:
            check_offers([without], needs)
        assert f"--resources='{{\"{MEASURING}\": 1}}'" in raised.value.remedy


def test_a_cluster_without_gpus_is_refused_for_gpu_work() -> None:
    with pytest.raises(DeviceError, match="resource GPU"):
        check_offers([node("cpu", GPU=0)], MEASURE)


def test_a_host_that_would_run_two_measurements_at_a_time_is_refused() -> None:
    with pytest.raises(DeviceError, match="twice: offers more than 1"):
        check_offers([A, node("twice", **{MEASURING: 2})], MEASURE)


def test_a_lost_job_goes_to_another_node_while_there_is_one() -> None:
    assert candidates([A, B], MEASURE, {A.id}) == [B]
    assert candidates([A], MEASURE, {A.id}) == [A]


def test_a_job_is_given_up_after_its_retries_with_every_reason() -> None:
    assert exhausted("building batch1", ["died"], retries=1) is None
    error = exhausted("building batch1", ["died", "starved"], retries=1)
    assert error is not None
    assert error.problem == "building batch1: lost 2 times: died; starved"


def test_a_job_that_was_only_killed_for_memory_is_not_to_be_tried_more_often() -> None:
    starved = f"{KILLED_FOR_MEMORY}: the node was running low (on a)"
    error, mixed = (
        exhausted("building batch1", [starved], 0),
        exhausted("building batch1", [starved, "died"], 1),
    )
    assert error is not None
    assert error.remedy == "use a smaller batch or model, or nodes with more memory"
    assert mixed is not None
    assert "--retries" in mixed.remedy
