"""What a device can do at most: probed through its own TensorRT, kept by its UUID, else from data sheets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from trtopt.errors import TrtoptError
from trtopt.executors.api import run_job
from trtopt.files.atomic import scratch_folder, write_atomically
from trtopt.files.bounded_reading import read_bounded, reading_as
from trtopt.inspect.costs import matrix_peak, peaks_of, together
from trtopt.inspect.graph import read_graph
from trtopt.inspect.inspector import read_inspector
from trtopt.inspect.profile import profile_point
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.recipe import Recipe
from trtopt.records import Backend, DeviceInfo, DevicePeaks, MeasuredPeaks, Peak, read_versioned, to_json
from trtopt.requests.measure import BenchRequest
from trtopt.targets import TENSORRT
from trtopt.workers.jobs import CopyJob
from trtopt.workflows.bench.bench import bench
from trtopt.workflows.build.build import build_recipe
from trtopt.workflows.cache_folder import user_folder
from trtopt.workflows.listener import SILENT, Listener
from trtopt.workflows.provenance import now

_SCALE = 0.05
_BENCH_S = 0.3


@dataclass(frozen=True)
class _Probes:
    """What is tried on a kind of device: a product of [size, size] matrices in each type, and a copy."""

    size: int
    copy_bytes: int
    types: tuple[str, ...]


_PROBES = {
    "gpu": _Probes(4096, 1 << 30, ("float32", "float16", "bfloat16", "int8", "float8_e4m3fn")),
    "cpu": _Probes(1024, 1 << 28, ("float32",)),
}


def known_peaks(device: DeviceInfo) -> DevicePeaks | None:
    """What has been measured of a device on this machine, completed from the table of data sheets."""
    measured = None if device.uuid is None else _read(_file_of(device.uuid))
    return together(measured, peaks_of(device.name))


def probe_peaks(
    device: DeviceInfo,
    backend: Backend,
    tactic_sources: tuple[str, ...] | None = None,
    timeout: float | None = None,
    listener: Listener = SILENT,
) -> tuple[DevicePeaks, tuple[str, ...]]:
    """Measure a device's copy bandwidth and its rate of matrix products, type by type, and keep them.

    Each of these has failed after `timeout` seconds.

    A rate is that of the layer that holds the product, from its median time under the profiler. Types that
    give none are listed in the notes; peaks of the table stand in for them.
    """
    probes = _PROBES["gpu" if device.kind == "gpu" else "cpu"]
    listener.note(f"measuring the peaks of {device.name}")
    copy = CopyJob(backend=backend.name, nbytes=probes.copy_bytes)
    bandwidth = Peak(
        value=run_job(copy, limit_s=timeout, on_progress=listener.progress),
        source=f"measured: copy of {copy.nbytes / 2**30:g} GiB within the device, bytes read and written",
    )
    flops: dict[str, Peak] = {}
    notes = []
    for dtype in probes.types:
        try:
            found = _matrix(dtype, probes.size, backend, tactic_sources, timeout, listener)
        except TrtoptError as error:
            found = error.problem
        if isinstance(found, Peak):
            flops[dtype] = found
        else:
            notes.append(f"no measured rate of {dtype}: {found.splitlines()[0]}")
    peaks = DevicePeaks(device=device.name, bandwidth=bandwidth, flops=flops)
    if device.uuid is not None:
        kept = MeasuredPeaks(created=now(), uuid=device.uuid, peaks=peaks, notes=tuple(notes))
        write_atomically(_file_of(device.uuid), to_json(kept))
    return together(peaks, peaks_of(device.name)) or peaks, tuple(notes)


def _matrix(
    dtype: str,
    size: int,
    backend: Backend,
    tactic_sources: tuple[str, ...] | None,
    limit_s: float | None,
    listener: Listener,
) -> Peak | str:
    model = product(dtype, size)
    with scratch_folder() as scratch:
        file, folder = scratch / f"{dtype}.onnx", scratch / "built"
        onnx.save(model, str(file))
        # Of one product, which takes long: more timings of a tactic would tell nothing.
        once = 1 if backend.name == TENSORRT else None
        recipe = Recipe(backend=backend.name, rewrite="none", tactic_sources=tactic_sources, avg_timing=once)
        build_recipe(file, folder, recipe, listener=listener)
        request = BenchRequest(folder, layers=True, duration=_BENCH_S, timeout=limit_s, listener=listener)
        (point,) = bench(request).points
    source = f"measured: MatMul {size}×{size}×{size} in {dtype} by {backend}"
    assert point.layers is not None
    text = point.layers.inspector
    described = () if text is None else read_inspector(text, source)
    found = profile_point(point, described, read_graph(model, {}), None)
    return matrix_peak(found.layers, dtype, source)


def product(dtype: str, size: int) -> onnx.ModelProto:
    """`y = x · w`, all [size, size], in one type; types of 8 bits by Q/DQ of both operands.

    `w` is a seeded constant: zeros would take less power than real weights, and clock higher.
    """
    is_quantized = numpy_dtype(dtype).itemsize == 1
    values = np.random.default_rng(0).standard_normal((size, size), np.float32)
    if dtype == "int8":
        values = np.clip(np.rint(values / _SCALE), -127, 127)
    weights = [numpy_helper.from_array(values.astype(numpy_dtype(dtype)), "w")]
    steps = "y = MatMul (x, w)"
    if is_quantized:
        weights.append(numpy_helper.from_array(np.array(_SCALE, np.float32), "scale"))
        weights.append(numpy_helper.from_array(np.zeros((), numpy_dtype(dtype)), "zero"))
        steps = """
            x_stored = QuantizeLinear (x, scale, zero)
            x_read = DequantizeLinear (x_stored, scale, zero)
            w_read = DequantizeLinear (w, scale, zero)
            y = MatMul (x_read, w_read)
        """
    tensor = f"{'float' if is_quantized or dtype == 'float32' else dtype}[{size}, {size}]"
    opset, ir = (19, 9) if dtype.startswith("float8") else (17, 8)  # the first that have those types
    head = f'<ir_version: {ir}, opset_import: ["": {opset}]>'
    made = onnx.parser.parse_model(f"{head} product ({tensor} x) => ({tensor} y) {{ {steps} }}")
    made.graph.node[-1].name = "product"
    made.graph.initializer.extend(weights)
    return onnx.shape_inference.infer_shapes(made)


def _file_of(uuid: str) -> Path:
    return user_folder() / "peaks" / f"{uuid}.json"


def _read(file: Path) -> DevicePeaks | None:
    remedy = "remove it, and measure them again with `trtopt profile --probe-peaks`"
    with reading_as("measured peaks", file, remedy):
        return read_versioned(read_bounded(file), MeasuredPeaks).peaks if file.exists() else None
