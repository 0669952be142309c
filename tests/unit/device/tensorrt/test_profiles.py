"""Engines with several optimisation profiles, against TensorRT's Python API, version by version."""

from __future__ import annotations

import pytest

from tests.support.scripted_device.device import ScriptedDevice
from tests.support.trt_behaviour import IMAGES
from tests.support.trt_exercise import ALL, SEVERAL, SMALL, build, each_version, load
from tests.support.trt_surface import Surface
from trtopt.errors import BuildError, DeviceError, UsageError


def shapes(batch: int) -> dict[str, tuple[int, ...]]:
    return {IMAGES[0]: (batch, 1, 8, 8)}


@each_version
def test_a_plan_with_profiles_gives_the_builder_each_of_them_in_its_order(dump: str) -> None:
    surface = Surface(dump, {"IBuilderConfig.num_optimization_profiles": 2})
    built = build(surface, multi_profile=(SMALL, ALL))
    asked = [tuple(map(tuple, list(call.values())[1:])) for call in surface.called(SET_SHAPE)]
    assert asked == [
        tuple((batch, 1, 8, 8) for batch in (1, 1, 4)),
        tuple((batch, 1, 8, 8) for batch in (1, 1, 8)),
    ]
    assert len(surface.called("IBuilderConfig.add_optimization_profile")) == 2
    assert built.config["optimization_profiles"] == "2"


@each_version
def test_a_profile_that_tensorrt_refuses_fails_the_build(dump: str) -> None:
    surface = Surface(dump, {"IBuilderConfig.add_optimization_profile": -1})
    with pytest.raises(BuildError, match="refuses the requested shapes"):
        build(surface, multi_profile=(SMALL, ALL))


@each_version
@pytest.mark.parametrize(("batch", "profile"), [(1, 0), (4, 0), (5, 1), (8, 1)])
def test_a_context_uses_the_narrowest_profile_that_holds_its_shapes(
    dump: str, batch: int, profile: int
) -> None:
    surface, device = Surface(dump, SEVERAL), ScriptedDevice()
    session = load(surface, device=device)
    context = session.context(shapes(batch))
    ((index, stream),) = (tuple(call.values()) for call in surface.called(SET_PROFILE))
    assert (index, stream) == (profile, 1)  # the handle of the scripted device's streams
    names = [name for name, _ in surface.calls]
    assert names.index(SET_PROFILE) < names.index("IExecutionContext.set_input_shape")
    assert device.calls.count("synchronize") == 1
    context.close()
    session.close()
    assert device.open == 0


@each_version
def test_an_engine_with_one_profile_is_not_asked_to_use_it(dump: str) -> None:
    surface = Surface(dump)
    load(surface).context(shapes(4))
    assert surface.called(SET_PROFILE) == []


@each_version
def test_shapes_that_no_profile_admits_are_refused_with_what_each_does(dump: str) -> None:
    session = load(Surface(dump, SEVERAL))
    told = r"shape \(9, 1, 8, 8\) .* \(\(1, 1, 8, 8\) to \(4, 1, 8, 8\), \(1, 1, 8, 8\) to \(8, 1, 8, 8\)\)"
    with pytest.raises(UsageError, match=told):
        session.context(shapes(9))


@each_version
def test_a_session_tells_its_profiles_in_their_order(dump: str) -> None:
    session = load(Surface(dump, SEVERAL))
    assert session.profiles == (SMALL.shapes, ALL.shapes)


@each_version
def test_a_profile_that_cannot_be_used_is_reported_and_leaves_nothing_open(dump: str) -> None:
    device = ScriptedDevice()
    session = load(Surface(dump, SEVERAL | {SET_PROFILE: False}), device=device)
    with pytest.raises(DeviceError, match="optimisation profile 1 cannot be used"):
        session.context(shapes(8))
    assert device.open == 0


SET_SHAPE = "IOptimizationProfile.set_shape"
SET_PROFILE = "IExecutionContext.set_optimization_profile_async"
