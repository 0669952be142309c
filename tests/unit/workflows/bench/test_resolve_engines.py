"""What an engine without a manifest tells of itself, and the plan that follows from it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.support.scripted_device.device import Script, ScriptedDevice, ScriptedSession, ScriptedTarget
from trtopt.errors import ArtifactError, DeviceMemoryError
from trtopt.measure.engine import DescribeJob, EngineDescription, describe
from trtopt.records import Backend, DeviceInfo, ShapeRange, TensorSpec
from trtopt.workflows.bench.resolve_engines import plan_of

ENGINE = b"an engine"
FILE = Path("bare.engine")


def job_in(folder: Path, content: bytes = ENGINE) -> DescribeJob:
    (folder / FILE).write_bytes(content)
    sha256 = hashlib.sha256(ENGINE).hexdigest()
    return DescribeJob(path=str(folder / FILE), sha256=sha256, backend="scripted")


def told(inputs: dict[str, tuple[int | str, ...]], *profiles: dict[str, ShapeRange]) -> EngineDescription:
    return EngineDescription(
        inputs=tuple(TensorSpec(name=name, dtype="float32", shape=axes) for name, axes in inputs.items()),
        outputs=(),
        profiles=profiles,
        backend=Backend(name="tensorrt", version="8.6.1"),
        device=DeviceInfo(kind="gpu", name="A GPU"),
    )


def span(low: int, best: int, high: int, *rest: int) -> ShapeRange:
    return ShapeRange(min=(low, *rest), opt=(best, *rest), max=(high, *rest))


def test_a_session_is_asked_and_closed(tmp_path: Path) -> None:
    device = ScriptedDevice()
    found = describe(ScriptedTarget(device), job_in(tmp_path))
    assert (found.inputs, found.outputs) == (ScriptedSession.inputs, ScriptedSession.outputs)
    assert found.profiles == ({"x": span(1, 8, 64, 4)},)
    assert (found.backend, found.device) == (ScriptedTarget.backend, device.info)
    assert device.open == 0
    assert plan_of(FILE, found).label == "batch1-8-64"


def test_a_file_that_has_changed_or_has_no_room_is_not_loaded(tmp_path: Path) -> None:
    device = ScriptedDevice(Script(memory_bytes=8))
    with pytest.raises(ArtifactError, match="not the file that the command line vouches for"):
        describe(ScriptedTarget(device), job_in(tmp_path, b"another"))
    with pytest.raises(DeviceMemoryError, match=r"bare\.engine"):
        describe(ScriptedTarget(device), job_in(tmp_path))
    assert "load" not in device.calls


def test_each_profile_is_one_of_the_plans(tmp_path: Path) -> None:
    multi_profile = [
        {"x": span(1, 1, 4, 3), "mask": span(2, 2, 2)},
        {"x": span(4, 8, 16, 3), "mask": span(2, 2, 2)},
    ]
    plan = plan_of(FILE, told({"mask": (2,), "x": ("?", 3)}, *multi_profile))
    assert plan.label == "batch1-1-4+4-8-16"
    assert [profile.shapes for profile in plan.profiles] == multi_profile
    assert (plan.batch, plan.shapes["x"]) == (span(1, 8, 16), span(1, 8, 16, 3))
    assert plan.span_of(17) is None


@pytest.mark.parametrize(
    ("inputs", "label"),
    [
        ({"scale": (), "x": (8, 3), "y": (2, 3)}, "batch8"),
        ({"scale": ()}, "batch1"),
    ],
)
def test_without_profiles_shapes_tell_the_batch(inputs: dict[str, tuple[int | str, ...]], label: str) -> None:
    plan = plan_of(FILE, told(inputs))
    assert plan.label == label
    assert {name: shapes.max for name, shapes in plan.shapes.items()} == inputs


def test_an_open_axis_that_no_profile_bounds_is_refused() -> None:
    with pytest.raises(ArtifactError, match=r"bare\.engine: leaves an axis of input 'x' open"):
        plan_of(FILE, told({"x": ("N", 3)}))
