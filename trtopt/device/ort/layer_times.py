"""Layer times from ONNX Runtime's own profiler, which writes a file for a whole session.

The description of the layers is written in the layout of TensorRT's inspector, so that one reader serves all.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trtopt.device.ort.reference import ort_value
from trtopt.errors import MeasurementError
from trtopt.files.atomic import scratch_folder
from trtopt.files.bounded_reading import reading_as
from trtopt.onnxio.graph_walk import graphs_of
from trtopt.records import LayerPass, LayerTime

if TYPE_CHECKING:
    import onnx

WARM_RUNS = 3
_LONGEST_S = 10.0
_LEAST_RUNS = 20
"""At least so many, and others for 10 s: each pass of each node inside a loop is an event of the profiler."""
_NODE = re.compile(rb'"name" :"((?:[^"\\]|\\.)*)_kernel_time"')


def time_nodes(engine: bytes, options: Any, feeds: Mapping[str, NDArray[Any]], runs: int) -> LayerPass:
    """Run an optimised model `runs` times under the profiler, or as often as is bearable; a few do not count.

    What runs inside a loop or a branch is part of the node that holds it.
    """
    import onnx
    import onnxruntime

    graph = onnx.ModelProto.FromString(engine).graph
    held = {node.name for inner in list(graphs_of(graph))[1:] for node in inner.node}
    with scratch_folder() as folder:
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / "profile")
        session = onnxruntime.InferenceSession(engine, options, providers=["CPUExecutionProvider"])
        values = {name: ort_value(array) for name, array in feeds.items()}
        for _ in range(WARM_RUNS - 1):
            session.run_with_ort_values(None, values)
        began = time.perf_counter()
        session.run_with_ort_values(None, values)
        bearable = max(_LEAST_RUNS, int(_LONGEST_S / (time.perf_counter() - began)))
        runs = min(runs, bearable)
        for _ in range(runs):
            session.run_with_ort_values(None, values)
        file = Path(session.end_profiling())
        remedy = "if the disk is full, free space there, or set TMPDIR"
        with reading_as("ONNX Runtime's profile", file, remedy), file.open("rb") as lines:
            nodes = list(_events(lines, held))
    if not nodes:
        raise MeasurementError(
            "ONNX Runtime's profiler reported no node", "omit --layers; the other passes do not need it"
        )
    return LayerPass(runs=runs, layers=_times(nodes), inspector=json.dumps(_description(graph, nodes)))


@dataclass(frozen=True)
class _Event:
    """One node's run: its time, and what else the profiler reports."""

    name: str
    ms: float
    args: dict[str, Any]


def _events(lines: Iterable[bytes], held: Container[str]) -> Iterator[_Event]:
    """The runs of nodes, one a line, but for those `held` in others: a long file is mostly these."""
    for line in lines:
        found = _NODE.search(line)
        name = json.loads(b'"%s"' % found[1]) if found else None
        if name is not None and name not in held:
            event = json.loads(line.strip().removesuffix(b","))
            args = event["args"]
            yield _Event(name, event["dur"] / 1e3, {key: args[key] for key in _TOLD if key in args})


_TOLD = ("node_index", "op_name", "provider", "input_type_shape", "output_type_shape")


def _times(events: Iterable[_Event]) -> tuple[LayerTime, ...]:
    """The last `runs` times of each node; a name that several nodes have is summed run by run."""
    by_node: dict[tuple[str, str], list[float]] = {}
    for event in events:
        by_node.setdefault((event.name, event.args.get("node_index", "")), []).append(event.ms)
    by_name: dict[str, NDArray[np.float64]] = {}
    for (name, _), ms in by_node.items():
        counted = np.array(ms[WARM_RUNS:])
        earlier = by_name.get(name)
        same_length = earlier is not None and len(earlier) == len(counted)
        by_name[name] = earlier + counted if earlier is not None and same_length else counted
    return tuple(LayerTime(name=name, ms=ms.tolist()) for name, ms in by_name.items())


def _description(graph: onnx.GraphProto, events: Iterable[_Event]) -> dict[str, Any]:
    """The optimised model's nodes with the shapes and types that the profiler saw."""
    seen = {event.name: event.args for event in events}
    listed = {node.name: node for node in graph.node}
    layers = []
    for name, args in seen.items():
        node = listed.get(name)
        layers.append(
            {
                "Name": name,
                "LayerType": args.get("op_name", ""),
                "Inputs": _tensors(list(node.input) if node else [], args.get("input_type_shape", [])),
                "Outputs": _tensors(list(node.output) if node else [], args.get("output_type_shape", [])),
                "TacticName": args.get("provider", ""),
                "Activation": _activation(node),
            }
        )
    return {"Layers": layers, "Bindings": [value.name for value in (*graph.input, *graph.output)]}


def _activation(node: Any) -> str:
    """What a convolution applies to its result, of an optimised graph's node."""
    found = (entry.s.decode() for entry in (node.attribute if node else ()) if entry.name == "activation")
    return next(found, "")


def _tensors(names: list[str], seen: list[dict[str, list[int]]]) -> list[dict[str, Any]]:
    """Absent and packed inputs are not in the profile: where the counts differ, types go without names."""
    types = [
        {"Dimensions": shape, "Format/Datatype": dtype} for entry in seen for dtype, shape in entry.items()
    ]
    if len(names) == len(types):
        return [{"Name": name} | known for name, known in zip(names, types, strict=True)]
    return [*({"Name": name} for name in names if name), *types]
