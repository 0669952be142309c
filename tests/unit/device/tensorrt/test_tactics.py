"""Tactics recorded and held, on stand-ins for each TensorRT made of its own API dumps."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.support.trt_behaviour import LAYERS
from tests.support.trt_exercise import build
from tests.support.trt_surface import Surface
from trtopt.errors import BuildError

SELECTOR = ("tensorrt-8.6.0", "tensorrt-10.0.1")
SLOW_FIRST: dict[str, Callable[..., Any]] = {
    "IAlgorithm.timing_msec": lambda algorithm: -algorithm._state["tactic"]
}


@pytest.mark.parametrize("dump", SELECTOR)
def test_a_selector_holds_what_other_timings_would_change(dump: str) -> None:
    first = build(Surface(dump), tactics=()).tactics
    assert [one.layer for one in first] == list(LAYERS)
    assert first[0].tactic == "0xffffffffffffffff"
    assert first[0].formats == ("HALF (64, 8, 1) -1:1",) * 2
    assert build(Surface(dump, SLOW_FIRST), tactics=()).tactics != first
    assert build(Surface(dump, SLOW_FIRST), tactics=first).tactics == first


@pytest.mark.parametrize("dump", SELECTOR)
def test_a_selector_goes_without_a_timing_cache(dump: str) -> None:
    """What a cache has is no choice any more, and what a lock leaves is no winner to be kept."""
    surface = Surface(dump)
    built = build(surface, tactics=())
    assert built.timing_cache is None
    assert "DISABLE_TIMING_CACHE" in built.config["flags"].split()
    assert not surface.called("IBuilderConfig.set_timing_cache")


@pytest.mark.parametrize("dump", SELECTOR)
def test_layers_that_cannot_be_held_are_named(dump: str) -> None:
    first = build(Surface(dump), tactics=()).tactics
    gone = msgspec.structs.replace(first[2], tactic="0x0000000000000001")
    with pytest.raises(BuildError, match=r"held 2 of 3 layers; not held: fc\n"):
        build(Surface(dump), tactics=(*first[:2], gone))
    with pytest.raises(BuildError, match="not held: pool"):  # it has come since
        build(Surface(dump), tactics=(first[0], first[2]))
    with pytest.raises(BuildError, match="not held: more"):
        build(Surface(dump), tactics=(*first, msgspec.structs.replace(gone, layer="more")))


@pytest.mark.parametrize("dump", SELECTOR)
def test_a_selector_that_hears_of_no_layer_is_no_lock(dump: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT only prints what goes wrong in a selector."""
    monkeypatch.setattr("tests.support.trt_behaviour.LAYERS", {})
    with pytest.raises(BuildError, match="no layer"):
        build(Surface(dump), tactics=())
