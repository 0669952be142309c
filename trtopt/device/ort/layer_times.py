"""Layer times from ONNX Runtime's own profiler, which writes a file for a whole session.

The description of the layers is written in the layout of TensorRT's inspector, so that one reader serves all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtopt.errors import MeasurementError
from trtopt.files.atomic import scratch_folder
from trtopt.records import LayerPass, LayerTime

WARM_RUNS = 3
_SUFFIX = "_kernel_time"


def time_nodes(engine: bytes, options: Any, feeds: Mapping[str, NDArray[Any]], runs: int) -> LayerPass:
    """Run an optimised model `runs` times under the profiler, after a few runs that do not count.

    Raises:
        MeasurementError: the profiler reported no node.
    """
    import onnxruntime

    with scratch_folder() as folder:
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / "profile")
        session = onnxruntime.InferenceSession(engine, options, providers=["CPUExecutionProvider"])
        for _ in range(WARM_RUNS + runs):
            session.run(None, dict(feeds))
        events = json.loads(Path(session.end_profiling()).read_bytes())
    nodes = [event for event in events if event.get("cat") == "Node" and event["name"].endswith(_SUFFIX)]
    if not nodes:
        raise MeasurementError(
            "ONNX Runtime's profiler reported no node", "omit --layers; the other passes do not need it"
        )
    return LayerPass(runs=runs, layers=_times(nodes), inspector=json.dumps(_description(engine, nodes)))


def _times(events: list[dict[str, Any]]) -> tuple[LayerTime, ...]:
    """The last `runs` times of each node; a name that several nodes have is summed run by run."""
    by_node: dict[tuple[str, str], list[float]] = {}
    for event in events:
        key = (_name(event), event["args"].get("node_index", ""))
        by_node.setdefault(key, []).append(event["dur"] / 1e3)
    by_name: dict[str, NDArray[np.float64]] = {}
    for (name, _), ms in by_node.items():
        counted = np.array(ms[WARM_RUNS:])
        earlier = by_name.get(name)
        same_length = earlier is not None and len(earlier) == len(counted)
        by_name[name] = earlier + counted if earlier is not None and same_length else counted
    return tuple(LayerTime(name=name, ms=ms.tolist()) for name, ms in by_name.items())


def _name(event: dict[str, Any]) -> str:
    return str(event["name"]).removesuffix(_SUFFIX)


def _description(engine: bytes, events: list[dict[str, Any]]) -> dict[str, Any]:
    """The optimised model's nodes with the shapes and types that the profiler saw."""
    import onnx

    graph = onnx.ModelProto.FromString(engine).graph
    seen = {_name(event): event["args"] for event in events}
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
