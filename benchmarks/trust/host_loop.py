"""trtopt's sampling loop against a bare loop over the same ONNX Runtime session, in turns in one process.

    python benchmarks/trust/host_loop.py [OUT.json]

Products of square matrices of several sizes, on one core and without copies and then with. The bare loop
reads the clock, calls `run_with_iobinding` (with copies: after copying the input and before copying the
output), and reads the clock. Turns are short and in an order drawn at random; differences and ratios are of
neighbouring turns, so that whatever else the machine does falls on both.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from trtopt.data.random_inputs import random_batch
from trtopt.device.ort.runtime import KEY, OnnxRuntimeSession, OnnxRuntimeTarget
from trtopt.measure.contracts import changed, contract_named
from trtopt.measure.loop.inference_stream import InferenceStream
from trtopt.measure.loop.run_pass import terms_of
from trtopt.measure.loop.sampling import Until, no_garbage_collection, sample

SIZES = {"identity": 0, "64": 64, "96": 96, "128": 128, "192": 192, "320": 320, "448": 448}
PAIRS = 60
SECONDS = 0.02
LEAST = 20


def model(size: int) -> bytes:
    """x @ W, or for 0 a sum of four values."""
    shape = [1, 4] if not size else [size, size]
    weights = helper.make_tensor(
        "w", TensorProto.FLOAT, shape, np.ones(shape, np.float32).tobytes(), raw=True
    )
    graph = helper.make_graph(
        [helper.make_node("MatMul" if size else "Add", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [weights],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    made.metadata_props.add(key=KEY, value='{"intra_op_threads": 1}')
    return made.SerializeToString()


def bare_ms(run: Callable[[], Any]) -> float:
    """The median of calls for `SECONDS`."""
    now, times = time.perf_counter, list[float]()
    end = now() + SECONDS
    while len(times) < LEAST or now() < end:
        before = now()
        run()
        times.append((now() - before) * 1e3)
    return statistics.median(times)


def compared(size: int, *, transfers: bool) -> dict[str, float]:
    """The medians in milliseconds, and what the loop adds by neighbouring turns."""
    target = OnnxRuntimeTarget(shares_cores=True)
    session = target.load(model(size))
    assert isinstance(session, OnnxRuntimeSession)
    shapes = {spec.name: tuple(int(axis) for axis in spec.shape) for spec in session.inputs}
    contract = changed(contract_named("isolated"), {"transfers": transfers})
    data = random_batch(session.inputs, shapes)
    stream = InferenceStream(target.device, session, shapes, data, terms_of("latency", contract))
    binding, ort = session._session.io_binding(), session._session
    ins, outs = (np.zeros(shapes["x"], np.float32) for _ in range(2))
    host_in, host_out = data["x"].copy(), np.zeros_like(outs)
    for bind, name, array in ((binding.bind_input, "x", ins), (binding.bind_output, "y", outs)):
        bind(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
    np.copyto(ins, host_in)

    def plain() -> None:
        ort.run_with_iobinding(binding)

    def copying() -> None:
        np.copyto(ins, host_in)
        ort.run_with_iobinding(binding)
        np.copyto(host_out, outs)

    turns = {
        "bare": lambda: bare_ms(copying if transfers else plain),
        "trtopt": lambda: statistics.median(
            sample(target.device, [stream], Until(LEAST, SECONDS)).latency_ms
        ),
    }
    random, found = np.random.RandomState(0), {name: list[float]() for name in turns}
    with no_garbage_collection():
        for pair in range(PAIRS + 2):
            for name in random.permutation(list(turns)):
                ms = turns[name]()
                if pair >= 2:
                    found[name].append(ms)
    stream.close()
    session.close()
    pairs = list(zip(found["bare"], found["trtopt"], strict=True))
    return {
        "bare_us": statistics.median(found["bare"]) * 1e3,
        "added_us": statistics.median((ours - bare) * 1e3 for bare, ours in pairs),
        "ratio": statistics.median(ours / bare for bare, ours in pairs),
    }


def main(out: str | None) -> None:
    """All sizes, without and with copies."""
    rows = []
    for transfers in (False, True):
        for name, size in SIZES.items():
            row = {"model": name, "copies": transfers, **compared(size, transfers=transfers)}
            rows.append(row)
            print(
                f"{name:8} {'copies' if transfers else '':6} bare {row['bare_us']:8.1f} µs, "
                f"trtopt {row['added_us']:+6.2f} µs ({row['ratio'] - 1:+.1%})",
                flush=True,
            )
    if out is not None:
        import onnxruntime

        about = {"python": platform.python_version(), "onnxruntime": onnxruntime.__version__}
        Path(out).write_text(json.dumps({**about, "onnx": onnx.__version__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
