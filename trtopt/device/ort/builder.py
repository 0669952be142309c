"""Building for ONNX Runtime: its "engine" is the model with shapes fixed and its own optimisations in it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from trtopt.builder_settings import check_backend
from trtopt.device.api import BuildInput, BuiltEngine, EngineBuilder, LogSink, ProgressSink
from trtopt.device.ort.host import cpu_info
from trtopt.device.ort.reference import missing_operator
from trtopt.device.ort.runtime import (
    backend,
    describe_options,
    first_line,
    keep_settings,
    open_session,
    optimised_session,
    session_options,
    spec_of,
)
from trtopt.errors import BuildError, UnsupportedOpError, UsageError
from trtopt.files.atomic import scratch_folder
from trtopt.onnxio.disk_space import check_temporary_room
from trtopt.onnxio.external_data import external_files, take_in, tensors_of
from trtopt.onnxio.graph_walk import name_nodes, name_of
from trtopt.onnxio.model_info import load_graph
from trtopt.onnxio.shape_inference import fix_inputs
from trtopt.records import BuildPlan

_PROTOBUF_LIMIT_BYTES = (1 << 31) - 1


class OnnxRuntimeBuilder(EngineBuilder):
    """Writes ONNX Runtime's optimised model with its shapes fixed; see `device.api.EngineBuilder`."""

    uses_timing_cache = False
    max_opset = None

    def __init__(self) -> None:
        self.backend, self.device = backend(), cpu_info()

    def build(self, given: BuildInput, progress: ProgressSink, log: LogSink) -> BuiltEngine:
        """Fix the shapes that the plan fixes, and let ONNX Runtime optimise the graph for this CPU."""
        onnx, plan = given.onnx, given.plan
        check_backend(plan.settings, self.backend)
        progress("Fixing shapes", 0.0)
        model = load_graph(onnx)
        files = (onnx, *external_files(model, onnx))
        if sum(file.stat().st_size for file in files) > _PROTOBUF_LIMIT_BYTES:
            raise BuildError(
                f"{onnx}: above 2 GB, which the onnxruntime backend cannot hold in one file",
                "build with TensorRT, or measure a smaller variant on the CPU",
            )
        take_in(tensors_of(model), onnx)
        name_nodes(model.graph, name_of)  # layer times are joined with the graph's nodes by name
        keep_settings(model, plan.settings)
        progress("Optimizing graph", 0.3)
        engine, settings = _optimise_at(plan, model, log)
        progress("Optimizing graph", 1.0)
        fixed = open_session(engine)
        return BuiltEngine(
            engine=engine,
            inputs=tuple(map(spec_of, fixed.get_inputs())),
            outputs=tuple(map(spec_of, fixed.get_outputs())),
            config={**describe_options(session_options(engine)), **settings},
            timing_cache=None,
        )

    def merge_timing_caches(self, ours: bytes, theirs: bytes) -> bytes:
        raise UsageError("ONNX Runtime has no timing caches", "omit --timing-cache")


def _optimise_at(plan: BuildPlan, model: Any, log: LogSink) -> tuple[bytes, dict[str, str]]:
    """The model at the plan's shapes; where ONNX Runtime refuses it there, with its axes open, and a setting.

    A branch that never runs at these shapes need not fit them, and ONNX Runtime checks those that it knows.
    """
    declared = [type(value).FromString(value.SerializeToString()) for value in model.graph.input]
    fix_inputs(model.graph, {name: given.fixed for name, given in plan.shapes.items()})
    try:
        return _optimise(model), {}
    except BuildError as refusal:
        if declared == list(model.graph.input):
            raise
        del model.graph.input[:]
        model.graph.input.extend(declared)
        with suppress(BuildError):
            engine = _optimise(model)
            log("warning", f"its axes stay open: {refusal.problem}")
            return engine, {"shapes": "open"}
        raise


def _optimise(model: Any) -> bytes:
    """ONNX Runtime's own optimised form of a model."""
    with scratch_folder() as folder:
        target = folder / "optimised.onnx"
        content = model.SerializeToString()
        check_temporary_room(len(content))  # it says of a full disk only that serialising failed
        options = session_options(content)
        options.optimized_model_filepath = str(target)
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.log_severity_level = (
            4  # it warns that the file is meant for this CPU only, which is the point
        )
        try:
            optimised_session(content, options)
        except Exception as error:  # noqa: BLE001  (its exceptions share no base class but Exception)
            raise _refusal(model, first_line(error)) from None
        return target.read_bytes()


def _refusal(model: Any, told: str) -> Exception:
    """What ONNX Runtime objects to; an operator that it lacks is named with its node."""
    if missing := missing_operator(told, model):
        problem, remedy = missing
        return UnsupportedOpError(problem, remedy)
    return BuildError(f"ONNX Runtime cannot build the model: {told}", "check the model's operators and types")
