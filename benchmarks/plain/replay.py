"""An engine as `trtexec --fp16` builds it, and a loop around two engines that uses nothing of trtopt.

    python replay.py build MODEL.onnx PLAN SHAPES [--cache FILE]
    python replay.py measure FIRST SECOND SHAPES TYPES RESULT.json [--rounds 12] [--seconds 0.2]

SHAPES and TYPES are JSON: the shape and the NumPy type of every input. Engines are TensorRT's plans, or
`.onnx` files, which ONNX Runtime runs. Both are loaded at once and take turns; which begins changes from
round to round. On a GPU a turn replays a CUDA graph, each replay between two events, one at a time; nothing
is copied. Needs TensorRT and cuda-python.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

SOURCES = ("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")
"""TensorRT 8.6's tactics that need neither cuDNN nor cuBLAS."""
LEAST_QUERIES = 10
_MOST = 16
"""Integers are below: every table of the collection has as many rows."""
Shapes = Mapping[str, list[int]]


class Side(Protocol):
    """A loaded engine with its inputs in place."""

    def query(self) -> tuple[float, float]:
        """Run once: milliseconds on the device, and by the host's clock."""

    def outputs(self) -> list[np.ndarray]:
        """The results of the last query."""


# ── TensorRT ────────────────────────────────────────────────────────────────────────────────────────────


def build(
    model: Path, plan: Path, shapes: Shapes, cache_file: Path | None, flags: Sequence[str] = ("FP16",)
) -> None:
    """trtexec's defaults with the types of `flags` allowed, FP32 inputs and outputs, and one fixed shape."""
    import tensorrt as trt

    logger = trt.Logger(trt.Logger.WARNING)
    trt.init_libnvinfer_plugins(logger, "")
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(model)):
        raise SystemExit("; ".join(parser.get_error(index).desc() for index in range(parser.num_errors)))
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    for flag in flags:
        config.set_flag(getattr(trt.BuilderFlag, flag))
    config.avg_timing_iterations = 8  # trtexec's default; TensorRT's own is 1
    config.set_tactic_sources(sum(1 << int(getattr(trt.TacticSource, name)) for name in SOURCES))
    for name, shape in shapes.items():
        profile.set_shape(name, shape, shape, shape)
    config.add_optimization_profile(profile)
    content = cache_file.read_bytes() if cache_file is not None and cache_file.is_file() else b""
    cache = config.create_timing_cache(content)
    config.set_timing_cache(cache, ignore_mismatch=False)
    blob = builder.build_serialized_network(network, config)
    if blob is None:
        raise SystemExit("TensorRT could not build the engine")
    plan.write_bytes(blob)
    if cache_file is not None:
        cache_file.write_bytes(cache.serialize())


class Cuda:
    """cuda-python's runtime, whose errors are raised."""

    def __init__(self) -> None:
        from cuda.bindings import runtime

        self.runtime = runtime

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self.runtime, name)

        def call(*arguments: Any) -> Any:
            status, *values = function(*arguments)
            if int(status) != 0:
                raise RuntimeError(f"{name}: {status.name}")
            return values[0] if len(values) == 1 else None

        return call


class Plan:
    """A plan's only profile, captured as a CUDA graph."""

    def __init__(self, file: Path, shapes: Shapes, feed: Mapping[str, np.ndarray]) -> None:
        import tensorrt as trt

        self._cuda = cuda = Cuda()
        self._logger = trt.Logger(trt.Logger.ERROR)
        trt.init_libnvinfer_plugins(self._logger, "")
        self._runtime = trt.Runtime(self._logger)
        self._engine = engine = self._runtime.deserialize_cuda_engine(file.read_bytes())
        self._context = context = engine.create_execution_context()
        self._stream = cuda.cudaStreamCreateWithFlags(cuda.runtime.cudaStreamNonBlocking)
        self._results: list[tuple[int, np.ndarray]] = []
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        for name in names:
            if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT:
                context.set_input_shape(name, shapes[name])
        for name in names:
            dtype = np.dtype(_NUMPY[engine.get_tensor_dtype(name).name])
            if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT:
                array = np.ascontiguousarray(feed[name].astype(dtype))
            else:
                shape = tuple(context.get_tensor_shape(name))
                if min(shape, default=1) < 0:
                    raise SystemExit(f"{name}: its size depends on the data, so no CUDA graph can hold it")
                array = np.zeros(shape, dtype)
            address = cuda.cudaMalloc(max(array.nbytes, 1))
            kind = cuda.runtime.cudaMemcpyKind
            cuda.cudaMemcpy(address, array.ctypes.data, array.nbytes, kind.cudaMemcpyHostToDevice)
            context.set_tensor_address(name, int(address))
            if engine.get_tensor_mode(name) != trt.TensorIOMode.INPUT:
                self._results.append((address, array))
        for _ in range(2):  # what is set up at the first run must not be captured
            context.execute_async_v3(int(self._stream))
        cuda.cudaStreamSynchronize(self._stream)
        mode = cuda.runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        cuda.cudaStreamBeginCapture(self._stream, mode)
        context.execute_async_v3(int(self._stream))
        self._graph = cuda.cudaGraphInstantiate(cuda.cudaStreamEndCapture(self._stream), 0)
        self._start, self._end = cuda.cudaEventCreate(), cuda.cudaEventCreate()

    def query(self) -> tuple[float, float]:
        """See `Side`."""
        cuda, stream = self._cuda, self._stream
        began = time.perf_counter()
        cuda.cudaEventRecord(self._start, stream)
        cuda.cudaGraphLaunch(self._graph, stream)
        cuda.cudaEventRecord(self._end, stream)
        cuda.cudaEventSynchronize(self._end)
        host = (time.perf_counter() - began) * 1e3
        return cuda.cudaEventElapsedTime(self._start, self._end), host

    def outputs(self) -> list[np.ndarray]:
        """See `Side`."""
        for address, array in self._results:
            kind = self._cuda.runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
            self._cuda.cudaMemcpy(array.ctypes.data, address, array.nbytes, kind)
        return [array for _, array in self._results]


_NUMPY = {"FLOAT": "f4", "HALF": "f2", "INT8": "i1", "UINT8": "u1", "INT32": "i4", "INT64": "i8", "BOOL": "?"}


class OnnxFile:
    """ONNX Runtime's, for the dry run."""

    def __init__(self, file: Path, feed: Mapping[str, np.ndarray]) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(file, options)
        self._feed = feed
        self._last: list[np.ndarray] = []

    def query(self) -> tuple[float, float]:
        """See `Side`."""
        began = time.perf_counter()
        self._last = self._session.run(None, self._feed)
        taken = (time.perf_counter() - began) * 1e3
        return taken, taken

    def outputs(self) -> list[np.ndarray]:
        """See `Side`."""
        return self._last


# ── the loop ────────────────────────────────────────────────────────────────────────────────────────────


def seeded(shapes: Shapes, types: Mapping[str, str]) -> dict[str, np.ndarray]:
    """The same inputs for both: floats from a normal distribution, small integers, masks of 0 and 1."""
    random, feed = np.random.default_rng(0), {}
    for name, shape in shapes.items():
        dtype = np.dtype(types[name])
        if dtype.kind == "f":
            feed[name] = random.standard_normal(shape, dtype=np.float32).astype(dtype)
        else:
            most = 2 if dtype.kind == "b" or "mask" in name or "type" in name else _MOST
            feed[name] = random.integers(0, most, shape).astype(dtype)
    return feed


def opened(file: Path, shapes: Shapes, types: Mapping[str, str]) -> Side:
    """An engine on the inputs that all get."""
    feed = seeded(shapes, types)
    return OnnxFile(file, feed) if file.suffix == ".onnx" else Plan(file, shapes, feed)


def turn(side: Side, seconds: float) -> dict[str, float]:
    """Medians of one engine's queries in a row."""
    times = [side.query()]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < LEAST_QUERIES:
        times.append(side.query())
    device, host = (float(np.median(column)) for column in zip(*times, strict=True))
    return {"device_ms": device, "host_ms": host, "queries": len(times)}


def measure(sides: Mapping[str, Side], rounds: int, seconds: float) -> dict[str, list[dict[str, float]]]:
    """All turns of each side; the first round warms up and is left out."""
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name in list(sides) if number % 2 else [*sides][::-1]:
            found = turn(sides[name], seconds)
            if number:
                turns[name].append(found)
    return turns


def cosine(first: list[np.ndarray], second: list[np.ndarray]) -> float:
    """The least over the outputs of floats."""
    found = [1.0]
    for one, other in zip(first, second, strict=True):
        if one.dtype.kind == "f":
            left, right = (array.astype(np.float64).ravel() for array in (one, other))
            length = float(np.linalg.norm(left) * np.linalg.norm(right))
            found.append(float(left @ right) / length if length else 1.0)
    return float(np.min(found))  # NaN where one is


def main() -> None:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    steps = parser.add_subparsers(dest="step", required=True)
    one = steps.add_parser("build")
    one.add_argument("model", type=Path)
    one.add_argument("plan", type=Path)
    one.add_argument("shapes", type=json.loads)
    one.add_argument("--cache", type=Path)
    two = steps.add_parser("measure")
    two.add_argument("first", type=Path)
    two.add_argument("second", type=Path)
    two.add_argument("shapes", type=json.loads)
    two.add_argument("types", type=json.loads)
    two.add_argument("result", type=Path)
    two.add_argument("--rounds", type=int, default=12)
    two.add_argument("--seconds", type=float, default=0.2)
    args = parser.parse_args()
    if args.step == "build":
        build(args.model, args.plan, args.shapes, args.cache)
        return
    sides = {
        name: opened(file, args.shapes, args.types)
        for name, file in (("plain", args.first), ("trtopt", args.second))
    }
    turns = measure(sides, args.rounds, args.seconds)
    close = cosine(sides["plain"].outputs(), sides["trtopt"].outputs())
    args.result.write_text(json.dumps({"turns": turns, "cosine": close}) + "\n")


if __name__ == "__main__":
    main()
