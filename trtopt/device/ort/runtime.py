"""ONNX Runtime on the CPU: the target that any machine has.

Its "engine" is the model with its shapes fixed and ONNX Runtime's own optimisations written into it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from trtopt.device.api import (
    AllocationTracker,
    Binding,
    Context,
    Device,
    DeviceBuffer,
    Inputs,
    Session,
    SizedOutput,
    Stream,
    Target,
)
from trtopt.device.ort.host import HostDevice, needs_gpu, present_cores
from trtopt.device.ort.layer_times import time_nodes
from trtopt.device.ort.reference import ONNX_NUMBERS
from trtopt.errors import DataError, IncompatibleEngineError, UsageError
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.onnxio.external_data import refers_to_file, tensors_of
from trtopt.onnxio.graph_walk import data_dependent_outputs, graphs_of, names_length
from trtopt.records import Backend, BuildSettings, LayerPass, Shape, TensorSpec
from trtopt.targets import ONNXRUNTIME

if TYPE_CHECKING:
    import onnx

_FLOAT16 = 10
_OTHER_NAMES = {
    "float": "float32",
    "double": "float64",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e5m2": "float8_e5m2",
}
"""Element types that are not called as in NumPy or ml_dtypes."""


def backend() -> Backend:
    """ONNX Runtime's version; it is a core dependency and always there."""
    import onnxruntime

    return Backend(name=ONNXRUNTIME, version=onnxruntime.__version__)


class OnnxRuntimeTarget(Target):
    """Runs the model on the CPU; see `device.api.Target`.

    After a run its threads spin for a while, so that the next begins at once if nothing else wants the cores;
    with `shares_cores` they sleep.
    """

    def __init__(self, *, shares_cores: bool = False) -> None:
        self.backend, self.device, self._shares_cores = backend(), HostDevice(), shares_cores

    def load(self, engine: bytes, *, track: AllocationTracker | None = None) -> Session:
        if track is not None:
            raise needs_gpu("--memory")
        session = open_session(engine, shares_cores=self._shares_cores)
        return OnnxRuntimeSession(self.device, session, engine)

    def close(self) -> None:
        """Nothing is held."""


def _harmful_optimizers(model: bytes) -> list[str]:
    """Those of ONNX Runtime's optimizers that would change what the model computes.

    `WeightBiasQuantization` rounds a bias to INT32 in the type of the scales (seen in 1.32): in FP16 a bias
    over both scales seldom fits, and a CNN in FP8 fell from 99 % of its images to 25.
    """
    if b"DequantizeLinear" not in model:
        return []
    graphs = list(graphs_of(_parsed(model).graph))
    nodes = [node for graph in graphs for node in graph.node]
    scales = {node.input[1] for node in nodes if node.op_type == "DequantizeLinear"}
    constants = [(tensor.name, tensor) for graph in graphs for tensor in graph.initializer]
    constants += [
        (node.output[0], item.t) for node in nodes if node.op_type == "Constant" for item in node.attribute
    ]
    is_narrow = any(name in scales and tensor.data_type == _FLOAT16 for name, tensor in constants)
    return ["WeightBiasQuantization"] if is_narrow else []


def optimised_session(model: bytes, options: Any) -> Any:
    """A session without those optimisations that would do harm; raises what ONNX Runtime raises."""
    import onnxruntime

    return onnxruntime.InferenceSession(
        model, options, providers=["CPUExecutionProvider"], disabled_optimizers=_harmful_optimizers(model)
    )


def open_session(engine: bytes, *, shares_cores: bool = False) -> Any:
    """A session of a model; see `OnnxRuntimeTarget.load` for errors."""
    options = session_options(engine)
    options.add_session_config_entry("session.force_spinning_stop", str(int(shares_cores)))
    _check_whole(engine)
    try:
        return optimised_session(engine, options)
    except Exception as error:  # noqa: BLE001  (its exceptions share no base class but Exception)
        raise IncompatibleEngineError(
            f"ONNX Runtime cannot open the engine: {first_line(error)}",
            "build it again on this machine; an engine of TensorRT needs a GPU and --backend tensorrt",
        ) from None


def _check_whole(engine: bytes) -> None:
    """ONNX Runtime would look for files that an engine refers to in the current folder, whatever they are."""
    if b"location" in engine and any(map(refers_to_file, tensors_of(_parsed(engine)))):  # the key of a file
        raise IncompatibleEngineError(
            "the engine refers to files, and trtopt builds none that does", "build it again with trtopt"
        )


def first_line(error: Exception) -> str:
    """The first line of its message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class OnnxRuntimeSession(Session):
    """See `device.api.Session`."""

    profiles = ()

    def __init__(self, device: Device, session: Any, engine: bytes) -> None:
        self.device, self._session, self._engine = device, session, engine
        self.inputs = tuple(map(spec_of, session.get_inputs()))
        self.outputs = tuple(map(spec_of, session.get_outputs()))
        self._sized = _sized_outputs(engine, self.inputs, self.outputs)

    def context(self, shapes: Mapping[str, Shape]) -> Context:
        """Bind the model to these shapes; output shapes are found by one run on zeros, or by later ones."""
        for spec in self.inputs:
            shape = shapes[spec.name]
            fits = len(shape) == len(spec.shape) and all(
                isinstance(own, str) or own == axis for own, axis in zip(spec.shape, shape, strict=True)
            )
            if not fits:
                raise UsageError(
                    f"input {spec.name!r}: shape {shape} is not what the engine was built for ({spec.shape})",
                    "choose that batch or shape, or build an engine for this one",
                )
        return OnnxRuntimeContext(self._session, self._bindings(shapes))

    def _bindings(self, shapes: Mapping[str, Shape]) -> tuple[Binding, ...]:
        zeros = {spec.name: np.zeros(shapes[spec.name], numpy_dtype(spec.dtype)) for spec in self.inputs}
        sized = self._sized
        try:
            found = [output.shape for output in self._session.run(None, zeros)]
        except Exception:  # noqa: BLE001  (its exceptions share no base class but Exception)
            # a model may admit other values only, such as a rate of sampling: sizes are known after running
            found = [
                tuple(axis if isinstance(axis, int) else 1 for axis in spec.shape) for spec in self.outputs
            ]
            sized = frozenset(
                spec.name for spec in self.outputs if any(isinstance(axis, str) for axis in spec.shape)
            )
        return (
            *(
                Binding(spec.name, zeros[spec.name].dtype, tuple(shapes[spec.name]), True)
                for spec in self.inputs
            ),
            *(
                Binding(
                    spec.name, numpy_dtype(spec.dtype), shape, False, is_data_dependent=spec.name in sized
                )
                for spec, shape in zip(self.outputs, found, strict=True)
            ),
        )

    def layer_pass(self, shapes: Mapping[str, Shape], data: Inputs, runs: int) -> LayerPass:
        """From ONNX Runtime's own profiler, in a session of its own."""
        bindings = self.context(shapes).bindings
        feeds = {one.name: np.asarray(data[one.name], one.dtype) for one in bindings if one.is_input}
        return time_nodes(self._engine, session_options(self._engine), feeds, runs)

    def close(self) -> None:
        self._session = None


def _sized_outputs(
    engine: bytes, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> frozenset[str]:
    """The outputs whose size depends on data; only a model with axes that no input has is looked into."""
    lengths = {axis for spec in inputs for axis in spec.shape}
    open_outputs = {
        spec.name
        for spec in outputs
        if any(isinstance(axis, str) and (axis == "?" or axis not in lengths) for axis in spec.shape)
    }
    if not open_outputs:
        return frozenset()
    return frozenset(open_outputs & data_dependent_outputs(_parsed(engine).graph).keys())


def _parsed(engine: bytes) -> onnx.ModelProto:
    """The model; without anything in it if it is none, which ONNX Runtime reports itself."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        return onnx.load_model_from_string(engine)
    except DecodeError:
        return onnx.ModelProto()


def spec_of(value: Any) -> TensorSpec:
    """An input or output as a record."""
    shape = tuple(
        axis if isinstance(axis, int) else axis if axis and names_length(axis) else "?"
        for axis in value.shape
    )
    tensor = re.fullmatch(r"tensor\((\w+)\)", value.type)
    element = tensor[1] if tensor else "unknown"
    return TensorSpec(name=value.name, dtype=_OTHER_NAMES.get(element, element), shape=shape)


class OnnxRuntimeContext(Context):
    """See `device.api.Context`."""

    def __init__(self, session: Any, bindings: tuple[Binding, ...]) -> None:
        self._session = session
        self._run: Any = session.run_with_iobinding
        self.bindings = bindings
        self._bound: list[Any] = []
        self._known: dict[tuple[int, ...], list[Any]] = {}
        """One binding each by addresses, in a list that is emptied at the end: no launcher keeps it."""
        self._sized = tuple(one for one in bindings if one.is_data_dependent)

    def bind(self, buffers: Mapping[str, DeviceBuffer]) -> None:
        fixed = [one for one in self.bindings if not one.is_data_dependent]
        addresses = tuple([buffers[one.name].address for one in fixed])
        self._bound = self._known.get(addresses) or self._known.setdefault(addresses, [self._made(addresses)])

    def _made(self, addresses: Sequence[int]) -> Any:
        made, remaining = self._session.io_binding(), iter(addresses)
        for binding in self.bindings:
            if binding.is_data_dependent:
                made.bind_output(binding.name, "cpu")  # it keeps its place among the outputs
                continue
            bind = made.bind_input if binding.is_input else made.bind_output
            bind(
                name=binding.name,
                device_type="cpu",
                device_id=0,
                element_type=ONNX_NUMBERS.get(binding.dtype.name, binding.dtype.type),
                shape=binding.shape,
                buffer_ptr=next(remaining),
            )
        return made

    def launcher(self, stream: Stream) -> Callable[[], None]:
        """What runs it, and returns when it is done."""
        bound = self._bound

        def launch() -> None:
            try:
                self._run(bound[0])
            except Exception as error:  # noqa: BLE001  (its exceptions share no base class but Exception)
                raise DataError(
                    f"ONNX Runtime cannot run the model on this input: {first_line(error)}",
                    "choose another batch or other shapes, or values that the model admits (--data)",
                ) from None

        return partial(self._launch_sized, launch) if self._sized else launch

    def _launch_sized(self, launch: Callable[[], None]) -> None:
        for binding in self._sized:  # what the last run allocated is of the last run's size
            self._bound[0].bind_output(binding.name, "cpu")
        launch()

    def sized_outputs(self) -> dict[str, SizedOutput]:
        """What ONNX Runtime allocated in the last run."""
        if not self._sized:
            return {}
        names = [binding.name for binding in self.bindings if not binding.is_input]
        made = dict(zip(names, self._bound[0].get_outputs(), strict=True))
        return {
            one.name: SizedOutput(made[one.name].data_ptr(), one.dtype, tuple(made[one.name].shape()))
            for one in self._sized
        }

    def report_layers(self, report: Callable[[str, float], None], *, on_request: bool = False) -> None:
        """ONNX Runtime's profiler covers a whole session: see `OnnxRuntimeSession.layer_pass`."""
        raise UsageError("ONNX Runtime reports no layer times run by run", "take its session's layer pass")

    def emit_ranges(self) -> None:
        """ONNX Runtime has none."""

    def close(self) -> None:
        for bound in self._known.values():
            bound.clear()
        self._run = self._session = None


# ── session settings: kept in the engine itself, so that every run uses them ────────────────────────────

KEY = "trtopt.session"
_LEVELS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
_MODES = {"sequential": "ORT_SEQUENTIAL", "parallel": "ORT_PARALLEL"}


def keep_settings(model: Any, settings: BuildSettings) -> None:
    """Write the settings that differ from the defaults into a model's metadata."""
    names = ("graph_optimization", "intra_op_threads", "execution_mode")
    given = {name: value for name in names if (value := getattr(settings, name)) is not None}
    if given:
        model.metadata_props.add(key=KEY, value=json.dumps(given, sort_keys=True))


def session_options(engine: bytes = b"") -> Any:
    """Options of a session: the engine's own, and no more threads than the process has cores."""
    import onnxruntime

    settings = _settings_of(engine)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    cores = len(present_cores())
    if settings.intra_op_threads is not None:
        options.intra_op_num_threads = settings.intra_op_threads
    elif 0 < cores < (os.cpu_count() or 0):  # by default it starts threads outside of the cores it may use
        options.intra_op_num_threads = cores
    level = _LEVELS[settings.graph_optimization or "all"]
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    mode = _MODES[settings.execution_mode or "sequential"]
    options.execution_mode = getattr(onnxruntime.ExecutionMode, mode)
    return options


def describe_options(options: Any) -> dict[str, str]:
    """The settings of a session as a manifest lists them."""
    return {
        "graph_optimization_level": options.graph_optimization_level.name,
        "execution_mode": options.execution_mode.name,
        "intra_op_threads": str(options.intra_op_num_threads or "the default"),
        "execution_provider": "CPU",
    }


def _settings_of(engine: bytes) -> BuildSettings:
    if KEY.encode() not in engine:
        return BuildSettings()
    kept = {entry.key: entry.value for entry in _parsed(engine).metadata_props}
    try:
        settings = msgspec.json.decode(kept.get(KEY, "{}"), type=BuildSettings)
    except msgspec.DecodeError:
        settings = None
    if (
        settings is None
        or settings.graph_optimization not in {None, *_LEVELS}
        or settings.execution_mode not in {None, *_MODES}
    ):
        raise IncompatibleEngineError("the engine's session settings cannot be read", "build it again")
    return settings
