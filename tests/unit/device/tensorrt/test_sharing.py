"""What several engines and contexts of one process share with TensorRT, version by version."""

from __future__ import annotations

import pytest

from tests.support.scripted_device.device import ScriptedDevice
from tests.support.trt_exercise import FIXED, SHAPES, build, each_version, library
from tests.support.trt_surface import Surface
from trtopt.device.tensorrt.runtime import TensorRTTarget
from trtopt.errors import DeviceMemoryError


@each_version
def test_all_engines_of_a_target_have_one_logger(dump: str) -> None:
    surface = Surface(dump)
    target = TensorRTTarget(library(surface), ScriptedDevice())
    sessions = [target.load(b"engine") for _ in range(3)]
    assert len({id(made["logger"]) for made in surface.called("Runtime.__init__")}) == 1
    assert all(session.context(SHAPES).bindings for session in sessions)


@each_version
def test_errors_that_were_logged_are_not_kept_for_ever(dump: str) -> None:
    target = TensorRTTarget(library(Surface(dump)), ScriptedDevice())
    for number in range(100):
        target._hear("error", f"failure {number}")
        target._hear("warning", "nothing much")
    assert list(target._errors)[-1] == "failure 99"
    assert len(target._errors) == 16


@each_version
def test_an_old_error_does_not_explain_a_later_load(dump: str) -> None:
    surface = Surface(dump, {"Runtime.deserialize_cuda_engine": None})
    failing = TensorRTTarget(library(surface), ScriptedDevice())
    failing._hear("error", "out of memory")
    with pytest.raises(Exception, match="it logged no error") as raised:
        failing.load(b"engine")
    assert not isinstance(raised.value, DeviceMemoryError)


@each_version
def test_contexts_share_a_range_of_shapes_where_that_must_be_requested(dump: str) -> None:
    static, dynamic = Surface(dump), Surface(dump)
    build(static, shape=FIXED)
    build(dynamic)
    asked = [list(call.values()) for call in dynamic.called("IBuilderConfig.set_preview_feature")]
    assert [(feature.name, on) for feature, on in asked] == (
        [("PROFILE_SHARING_0806", True)] if dump == "tensorrt-8.6.0" else []
    )
    assert static.called("IBuilderConfig.set_preview_feature") == []
