import pytest

from tests.support.inspected import profiled
from trtopt.inspect.receipt import faults, receipt, share_of
from trtopt.records import Fallback


def conv(name: str, requested: str, ran: str, weights: int, ms: float | None = 1.0) -> object:
    return profiled(
        name, f"conv{name} relu{name}", ms, requested_dtype=requested, dtype=ran, weights_count=weights
    )


def test_shares_of_time_and_of_weights_by_type() -> None:
    layers = [
        conv("1", "int8", "int8", 600, 2.0),
        conv("2", "int8", "float16", 300, 1.0),
        conv("3", "float16", "float16", 100, 1.0),
        profiled("pool", ms=3.0, dtype="int8"),
        profiled("reformat", ms=1.0, dtype="int8", is_reformat=True, weights_count=600),
    ]
    found = receipt(layers)  # type: ignore[arg-type]
    assert found.time_ran == {"int8": 0.75, "float16": 0.25}
    assert found.weights_ran == {"int8": 0.6, "float16": 0.4}
    assert found.weights_requested == {"int8": 0.9, "float16": 0.1}
    assert found.fallbacks == (
        Fallback(
            layer="2",
            nodes=("conv2", "relu2"),
            requested="int8",
            ran="float16",
            share_of_time=0.125,
            share_of_weights=0.3,
        ),
    )
    assert found.weighted_layers == 3
    assert faults(found) == found.fallbacks
    assert share_of(found.fallbacks) == 0.3


@pytest.mark.parametrize(
    ("requested", "ran", "falls_back"),
    [
        ("int8", "float16", True),
        ("int8", "float32", True),
        ("float16", "float32", True),
        ("float8_e4m3fn", "bfloat16", True),
        ("int8", "int8", False),
        ("float16", "bfloat16", False),
        ("float32", "float16", False),
        ("float16", "", False),
        ("", "float32", False),
    ],
)
def test_only_a_wider_type_than_asked_is_held_against_a_layer(
    requested: str, ran: str, falls_back: bool
) -> None:
    found = receipt([conv("1", requested, ran, 10)])  # type: ignore[list-item]
    assert bool(found.fallbacks) == falls_back


def test_without_times_weights_are_all_there_is() -> None:
    found = receipt([conv("1", "int8", "float32", 10, None)])  # type: ignore[list-item]
    assert found.time_ran is None
    assert found.fallbacks[0].share_of_time is None
    assert found.weights_ran == {"float32": 1.0}


def test_an_engine_without_weights_has_nothing_to_show() -> None:
    found = receipt([profiled("relu", dtype="float16")])
    assert (found.weights_ran, found.weights_requested, found.fallbacks) == ({}, {}, ())
    assert receipt([]).time_ran is None


def test_what_cannot_be_told_is_unknown() -> None:
    found = receipt([conv("{ForeignNode}", "float16", "", 10)])  # type: ignore[list-item]
    assert found.weights_ran == {"unknown": 1.0}
    assert found.time_ran == {"unknown": 1.0}


@pytest.mark.parametrize(("wider", "fails"), [(0, False), (50, False), (51, True), (100, True)])
def test_a_weakly_typed_builder_may_choose_fp32_for_up_to_half_of_the_16_bit_weights(
    wider: int, fails: bool
) -> None:
    layers = [
        conv("fp32 in the graph", "float32", "float32", 900),
        conv("chosen", "float16", "float32", wider),
        conv("as asked", "float16", "float16", 100 - wider),
    ]
    found = receipt(layers, weakly_typed=True)  # type: ignore[arg-type]
    assert [one.chosen for one in found.fallbacks] == ([True] if wider else [])
    assert faults(found) == (found.fallbacks if fails else ())
    assert bool(faults(receipt(layers))) == (wider > 10)  # type: ignore[arg-type]


def test_8_bit_types_bind_a_weakly_typed_builder_too() -> None:
    layers = [
        conv("1", "int8", "float16", 2),
        conv("2", "float16", "float32", 49),
        conv("3", "int8", "int8", 49),
    ]
    found = receipt(layers, weakly_typed=True)  # type: ignore[arg-type]
    assert {one.layer: one.chosen for one in found.fallbacks} == {"1": False, "2": True}
    assert [one.layer for one in faults(found)] == ["1"]


def test_when_nothing_of_what_was_requested_happened_no_choice_excuses_it() -> None:
    found = receipt([conv("1", "bfloat16", "float32", 1)], weakly_typed=True)  # type: ignore[list-item]
    assert faults(found) == found.fallbacks
