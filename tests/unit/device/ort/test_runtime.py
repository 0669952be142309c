"""Settings of ONNX Runtime stay with the engine, and decide how it is run."""

from __future__ import annotations

import gc
import weakref

import onnx
import onnxruntime
import pytest

from tests.support.trt_behaviour import IMAGES
from tests.support.trt_exercise import DIGITS, FIXED, SHAPES
from trtopt.device.api import BuildInput, BuiltEngine
from trtopt.device.ort.builder import OnnxRuntimeBuilder
from trtopt.device.ort.runtime import KEY, OnnxRuntimeTarget, session_options
from trtopt.errors import IncompatibleEngineError, OutputError, UsageError
from trtopt.onnxio import disk_space
from trtopt.records import BuildPlan, BuildSettings, ShapeRange


def built(settings: BuildSettings) -> BuiltEngine:
    by, eight = OnnxRuntimeBuilder(), ShapeRange(min=(8,), opt=(8,), max=(8,))
    plan = BuildPlan(
        onnx_sha256="", batch=eight, shapes={IMAGES[0]: FIXED}, settings=settings, backend=by.backend
    )
    return by.build(BuildInput(DIGITS, (), plan, None), lambda *told: None, lambda *told: None)


def test_an_engine_is_run_with_the_settings_that_it_was_built_with() -> None:
    made = built(BuildSettings(graph_optimization="disable", intra_op_threads=3, execution_mode="parallel"))
    options = session_options(made.engine)
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert options.intra_op_num_threads == 3
    assert made.config["graph_optimization_level"] == "ORT_DISABLE_ALL"
    assert made.config["intra_op_threads"] == "3"


def test_the_level_decides_what_is_fused() -> None:
    nodes = [
        len(onnx.load_model_from_string(built(BuildSettings(graph_optimization=level)).engine).graph.node)
        for level in ("disable", "all")
    ]
    assert nodes[0] > nodes[1]


def test_an_engine_without_settings_is_run_with_all_optimisations() -> None:
    made = built(BuildSettings())
    assert KEY.encode() not in made.engine
    options = session_options(made.engine)
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL


def test_a_full_temporary_disk_is_no_fault_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    none = type("Usage", (), {"free": 1 << 10})
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda path: none)
    with pytest.raises(OutputError):
        built(BuildSettings())


def test_a_setting_of_tensorrt_is_refused() -> None:
    with pytest.raises(UsageError, match="--tiling: onnxruntime"):
        built(BuildSettings(tiling="full"))


@pytest.mark.parametrize(
    "text",
    [
        *("{", '["all"]', '{"unknown": 1}', '{"intra_op_threads": "two"}'),
        *('{"graph_optimization": "best"}', '{"graph_optimization": ["all"]}'),
    ],
)
def test_settings_that_were_edited_are_refused(text: str) -> None:
    model = onnx.load(DIGITS)
    model.metadata_props.add(key=KEY, value=text)
    with pytest.raises(IncompatibleEngineError, match="session settings"):
        session_options(model.SerializeToString())


def test_a_launcher_keeps_no_session_that_has_been_closed() -> None:
    target = OnnxRuntimeTarget()
    session = target.load(built(BuildSettings()).engine)
    context = session.context(SHAPES)
    buffers = {one.name: target.device.device_buffer(one.nbytes) for one in context.bindings}
    context.bind(buffers)
    launch = context.launcher(target.device.stream())
    launch()
    alive = [weakref.ref(one) for one in gc.get_objects() if isinstance(one, onnxruntime.IOBinding)]
    context.close()
    session.close()
    assert alive
    assert not any(one() for one in alive)
