"""trtopt's sampling loop against a bare loop over the same ONNX Runtime session, in turns in one process.

    python benchmarks/trust/host_loop.py [OUT.json]

Products of square matrices of several sizes, on one core and without copies and then with. The bare loop
reads the clock, calls `run_with_iobinding` (with copies: after copying the input and before copying the
output), and reads the clock. Between it and the whole loop lie two more, each with one part of what trtopt
adds: its own wrapper of that call, and a query's list of calls with the events. Turns are short and in an
order drawn at random; differences and ratios are of neighbouring turns, so that whatever else the machine
does falls on all.
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
from numpy.typing import NDArray
from onnx import TensorProto, helper

from trtopt.data.random_inputs import random_batch
from trtopt.device.ort.runtime import KEY, OnnxRuntimeSession, OnnxRuntimeTarget
from trtopt.measure.contracts import contract_named, with_terms
from trtopt.measure.loop.inference_stream import InferenceStream, Query
from trtopt.measure.loop.sampling import Until, no_garbage_collection, sample, terms_of

SIZES = {"identity": 0, "80": 80, "128": 128, "160": 160, "256": 256}
PAIRS = 150
SECONDS = 0.02
LEAST = 20
LINE = 64
PARTS = {"wrapper": "bare", "calls": "wrapper", "loop": "calls"}
"""Each loop adds one part to the one named: the wrapper of the library's call, the list of a query's calls
with its events, and the code between queries, which leaves the caches colder."""


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


def aligned(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """An array that begins at a cache line, as those of ONNX Runtime's own allocator do."""
    raw = np.zeros(4 * int(np.prod(shape)) + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + raw.size - LINE].view(np.float32).reshape(shape)


def median_ms(run: Callable[[], Any]) -> float:
    """The median of calls for `SECONDS`, each between two readings of the clock."""
    now, times = time.perf_counter, list[float]()
    end = now() + SECONDS
    while len(times) < LEAST or now() < end:
        before = now()
        run()
        times.append((now() - before) * 1e3)
    return statistics.median(times)


def median_query_ms(run: Callable[[], Query]) -> float:
    """The same of queries, which read the clock themselves."""
    now, times = time.perf_counter, list[float]()
    end = now() + SECONDS
    while len(times) < LEAST or now() < end:
        query = run()
        times.append((query.end_s - query.start_s) * 1e3)
    return statistics.median(times)


def compare(size: int, *, transfers: bool) -> dict[str, Any]:
    """The medians in milliseconds, and what the loop adds by neighbouring turns, whole and in parts."""
    target = OnnxRuntimeTarget(shares_cores=True)
    session = target.load(model(size))
    assert isinstance(session, OnnxRuntimeSession)
    shapes = {spec.name: tuple(int(axis) for axis in spec.shape) for spec in session.inputs}
    contract = with_terms(contract_named("isolated"), {"transfers": transfers})
    data = random_batch(session.inputs, shapes)
    stream = InferenceStream(session, shapes, data, terms_of("latency", contract))
    binding, ort = session._session.io_binding(), session._session
    ins, outs, host_in, host_out = (aligned(shapes["x"]) for _ in range(4))
    for bind, name, array in ((binding.bind_input, "x", ins), (binding.bind_output, "y", outs)):
        bind(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
    for array in (ins, host_in):
        np.copyto(array, data["x"])

    def plain() -> None:
        ort.run_with_iobinding(binding)

    def copying() -> None:
        np.copyto(ins, host_in)
        ort.run_with_iobinding(binding)
        np.copyto(host_out, outs)

    def wrapped() -> None:
        for call in calls:
            call()
        wait()

    calls, wait = stream.bare()
    turns = {
        "bare": lambda: median_ms(copying if transfers else plain),
        "wrapper": lambda: median_ms(wrapped),
        "calls": lambda: median_query_ms(stream.slots[0].run),
        "loop": lambda: statistics.median(sample([stream], Until(LEAST, SECONDS)).latency_ms),
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

    def added_us(more: str, less: str) -> float:
        pairs = zip(found[more], found[less], strict=True)
        return statistics.median((after - before) * 1e3 for after, before in pairs)

    return {
        "bare_us": statistics.median(found["bare"]) * 1e3,
        "added_us": added_us("loop", "bare"),
        "ratio": statistics.median(
            ours / bare for bare, ours in zip(found["bare"], found["loop"], strict=True)
        ),
        "parts_us": {part: added_us(part, less) for part, less in PARTS.items()},
    }


def main(out: str | None) -> None:
    """All sizes, without and with copies."""
    rows = []
    for transfers in (False, True):
        for name, size in SIZES.items():
            row = {"model": name, "copies": transfers, **compare(size, transfers=transfers)}
            rows.append(row)
            parts = ", ".join(f"{part} {us:+.2f}" for part, us in row["parts_us"].items())
            print(
                f"{name:8} {'copies' if transfers else '':6} bare {row['bare_us']:8.1f} µs, "
                f"trtopt {row['added_us']:+6.2f} µs ({row['ratio'] - 1:+.1%}): {parts}",
                flush=True,
            )
    if out is not None:
        import onnxruntime

        about = {"python": platform.python_version(), "onnxruntime": onnxruntime.__version__}
        Path(out).write_text(json.dumps({**about, "onnx": onnx.__version__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
