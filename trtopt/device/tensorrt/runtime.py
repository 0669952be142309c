"""Loading and running engines with any flavour of TensorRT."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trtopt.device.api import (
    AllocationTracker,
    Binding,
    Context,
    Device,
    DeviceBuffer,
    Session,
    SizedOutput,
    Stream,
    Target,
)
from trtopt.device.memory_check import LESS_MEMORY
from trtopt.device.tensorrt.allocator import OutputMemory, make_allocator, make_output_allocator
from trtopt.device.tensorrt.library import Library, describe, load_plugins, make, make_logger
from trtopt.errors import DeviceError, DeviceMemoryError, IncompatibleEngineError, UsageError
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.records import Plugin, Shape, ShapeRange, TensorSpec, suited
from trtopt.records.tensors import VECTORS
from trtopt.targets import NUMPY_TYPES

_ERRORS_KEPT = 16


class TensorRTTarget(Target):
    """Runs engines on a CUDA device; see `device.api.Target`."""

    def __init__(self, library: Library, device: Device, plugins: tuple[Plugin, ...] = ()) -> None:
        self.library = library
        self.backend = library.backend
        self.device = device
        self._plugins = plugins
        # One logger for all engines, as TensorRT wants it: it keeps to the first one that it is given.
        self._errors: deque[str] = deque(maxlen=_ERRORS_KEPT)
        self._logger = make_logger(library.trt, self._hear)

    def _hear(self, severity: str, message: str) -> None:
        if severity == "error":
            self._errors.append(message)

    def last_errors(self) -> str:
        """What TensorRT logged last as errors, whichever engine it was about."""
        return "; ".join(list(self._errors)[-2:]) or "it logged no error"

    def load(self, engine: bytes, *, track: AllocationTracker | None = None) -> Session:
        trt = self.library.trt
        self._errors.clear()
        load_plugins(self.library, self._logger, self._plugins)
        runtime = make(trt.Runtime, self._logger)
        allocator = None
        if track is not None:
            allocator = make_allocator(trt, self.library.target, self.device, track)
            runtime.gpu_allocator = allocator
        loaded = runtime.deserialize_cuda_engine(engine)
        if loaded is None:
            raise self._load_failure()
        return TensorRTSession(self, loaded, (allocator, runtime))

    def _load_failure(self) -> Exception:
        if any("emory" in message and "out of" in message.lower() for message in self._errors):
            return DeviceMemoryError(
                f"out of device memory while loading the engine ({self.last_errors()})",
                "free the GPU, or load a smaller engine",
            )
        return IncompatibleEngineError(
            f"{self.backend} cannot load this engine ({self.last_errors()})",
            "engines fit one TensorRT version and GPU model: build again on this machine",
        )

    def close(self) -> None:
        self.device.close()


class TensorRTSession(Session):
    """A deserialised engine; see `device.api.Session`."""

    def __init__(self, target: TensorRTTarget, engine: Any, keep_alive: tuple[object, ...]) -> None:
        """`keep_alive` is what Python keeps no reference to, and the engine needs."""
        self.target, self.device = target, target.device
        self.engine = engine
        self._keep_alive = keep_alive
        trt = target.library.trt
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        is_input = {name: engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT for name in names}
        self.inputs = tuple(self._spec(name) for name in names if is_input[name])
        self.outputs = tuple(self._spec(name) for name in names if not is_input[name])
        self.profiles = profiles_of(engine, [spec.name for spec in self.inputs])

    def _spec(self, name: str) -> TensorSpec:
        shape = tuple("?" if axis < 0 else axis for axis in self.engine.get_tensor_shape(name))
        return TensorSpec(name=name, dtype=NUMPY_TYPES[self.engine.get_tensor_dtype(name).name], shape=shape)

    def _layout(self, name: str) -> str:
        """The tensor's vectorised format; every other is linear."""
        layout: str = self.engine.get_tensor_format(name).name.lower()
        return layout if layout in VECTORS else "nchw"

    @property
    def device_memory_bytes(self) -> int | None:
        return int(getattr(self.engine, self.target.library.target.device_memory))

    def context(self, shapes: Mapping[str, Shape]) -> Context:
        """A new execution context for these input shapes, under the optimisation profile that suits them."""
        profile = profile_for(self.profiles, shapes)
        context = self.engine.create_execution_context()
        if context is None:
            raise DeviceMemoryError(
                f"no execution context could be made: {self.target.last_errors()}", LESS_MEMORY
            )
        # by default the engine's own, which enqueuing takes longer for
        verbosity = self.target.library.trt.ProfilingVerbosity
        context.nvtx_verbosity = verbosity.DETAILED if self.device.profilers.nvtx else verbosity.NONE
        if len(self.profiles) > 1:
            set_profile(context, profile, self.target)
        for spec in self.inputs:
            if not context.set_input_shape(spec.name, tuple(shapes[spec.name])):
                raise DeviceError(
                    f"input {spec.name!r} cannot be given shape {shapes[spec.name]}: "
                    f"{self.target.last_errors()}",
                    "see which shapes the engine was built for in its manifest",
                )
        inputs = {spec.name for spec in self.inputs}
        unresolved = [name for name in context.infer_shapes() if name in inputs]
        if unresolved:
            raise UsageError(
                f"inputs {', '.join(unresolved)} decide shapes by their values, which are not given here",
                "make them constants of the model",
            )
        bindings = tuple(
            _binding(
                spec,
                tuple(context.get_tensor_shape(spec.name)),
                is_input=spec.name in inputs,
                layout=self._layout(spec.name),
            )
            for spec in (*self.inputs, *self.outputs)
        )
        return TensorRTContext(self, context, bindings)

    def close(self) -> None:
        """Give the engine back; contexts must be closed before."""
        self.engine = None
        self._keep_alive = ()


def _binding(spec: TensorSpec, shape: Shape, *, is_input: bool, layout: str) -> Binding:
    """An axis that is still open once the inputs' shapes are known depends on data."""
    known = tuple(max(0, axis) for axis in shape)
    dtype = numpy_dtype(spec.dtype)
    return Binding(spec.name, dtype, known, is_input, layout=layout, is_data_dependent=known != shape)


def profiles_of(engine: Any, inputs: Sequence[str]) -> tuple[dict[str, ShapeRange], ...]:
    """What each profile of an engine admits, for its inputs by name; one at least."""
    return tuple(
        {name: _range(engine.get_tensor_profile_shape(name, index)) for name in inputs}
        for index in range(engine.num_optimization_profiles)
    )


def _range(shapes: Sequence[Sequence[int]]) -> ShapeRange:
    low, best, high = map(tuple, shapes)
    return ShapeRange(min=low, opt=best, max=high)


def profile_for(profiles: Sequence[Mapping[str, ShapeRange]], shapes: Mapping[str, Shape]) -> int:
    """The index of the profile that suits the shapes: see `records.tensors.suited`."""
    wanted = {name: tuple(shapes[name]) for name in profiles[0]}
    found = suited(profiles, wanted)
    if found is not None:
        return found
    refused = [name for name, shape in wanted.items() if not any(one[name].admits(shape) for one in profiles)]
    name = refused[0] if refused else next(iter(wanted))
    ranges = ", ".join(dict.fromkeys(f"{one[name].min} to {one[name].max}" for one in profiles))
    raise UsageError(
        f"input {name!r}: shape {wanted[name]} is outside what the engine was built for ({ranges})",
        "choose a batch or shape within it, or build an engine for this one",
    )


def set_profile(context: Any, index: int, target: TensorRTTarget) -> None:
    """Have a new context use a profile, before its shapes are set; what that enqueues is waited for."""
    stream = target.device.stream()
    try:
        if not context.set_optimization_profile_async(index, stream.handle):
            raise DeviceError(
                f"optimisation profile {index} cannot be used: {target.last_errors()}",
                "build the engine again, or one engine per batch size, which needs no profiles",
            )
        stream.synchronize()
    finally:
        stream.close()


class TensorRTContext(Context):
    """An execution context with fixed shapes; see `device.api.Context`."""

    def __init__(self, session: TensorRTSession, context: Any, bindings: tuple[Binding, ...]) -> None:
        self._target = target = session.target
        self._engine = session.engine
        self._context = context
        self.bindings = bindings
        self._execute = context.execute_async_v3
        self._profiler: Any = None
        self._sized = {
            one.name: OutputMemory(target.device, one.dtype) for one in bindings if one.is_data_dependent
        }
        self._allocators = {
            name: make_output_allocator(target.library.trt, target.library.target, memory)
            for name, memory in self._sized.items()
        }
        for name, allocator in self._allocators.items():
            if not context.set_output_allocator(name, allocator):
                raise DeviceError(
                    f"TensorRT took no allocator for output {name!r}: {target.last_errors()}",
                    "give the model outputs of a fixed size with a count",
                )

    def bind(self, buffers: Mapping[str, DeviceBuffer]) -> None:
        for binding in self.bindings:
            if binding.is_data_dependent:
                continue
            if not self._context.set_tensor_address(binding.name, buffers[binding.name].address):
                raise DeviceError(
                    f"TensorRT took no buffer for {binding.name!r}: {self._target.last_errors()}",
                    "see the messages above; TensorRT wants buffers aligned to 256 bytes",
                )

    def launcher(self, stream: Stream) -> Callable[[], None]:
        """`execute_async_v3`, looked up in each call: a launcher does not keep a closed context's memory."""
        handle = stream.handle

        def launch() -> None:
            if not self._execute(handle):
                raise self._failure()

        return launch

    def _failure(self) -> Exception:
        for memory in self._sized.values():
            if memory.error is not None:
                return memory.error
        return DeviceError(
            f"TensorRT could not enqueue: {self._target.last_errors()}",
            "see the messages above; a device that has met an error must be left and opened again",
        )

    def sized_outputs(self) -> dict[str, SizedOutput]:
        """What TensorRT allocated; it knows the shapes when an enqueue returns."""
        return {name: memory.output for name, memory in self._sized.items()}

    def report_layers(self, report: Callable[[str, float], None], *, on_request: bool = False) -> None:
        """Attach a profiler; unless it is to report on request, every enqueue waits for its layers."""
        self._profiler = _make_profiler(self._target.library.trt, report)
        self.emit_ranges()  # whatever they may mean to a profiler
        self._context.enqueue_emits_profile = not on_request
        self._context.profiler = self._profiler

    def request_layers(self) -> bool:
        """Have TensorRT read the events that the last run, or replay of a graph, has left."""
        return bool(self._context.report_to_profiler())

    def emit_ranges(self) -> None:
        """As far as the engine was built with names of its layers."""
        self._context.nvtx_verbosity = self._engine.profiling_verbosity

    def inspect(self) -> str | None:
        return describe(self._target.library.trt, self._engine, self._context)

    def close(self) -> None:
        self._engine = None
        self._execute = self._context = None
        self._profiler = None
        self._allocators = {}
        for memory in self._sized.values():
            memory.close()


def _make_profiler(trt: Any, report: Callable[[str, float], None]) -> Any:
    class Profiler(trt.IProfiler):  # type: ignore[misc]  # the base class is only known at run time
        def report_layer_time(self, layer_name: str, ms: float) -> None:
            report(layer_name, ms)

    return Profiler()
