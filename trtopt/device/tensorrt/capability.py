"""What TensorRT's parser takes of a model: every node that it refuses, not the first alone.

The parser finds all operators that it does not have in one go, and of those that it has the first whose
import fails. What it refuses is cut out, its outputs become inputs of the types that ONNX's inference finds,
and the rest is parsed again, until nothing is refused. Behind an output of unknown type nothing is imported.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from trtopt.device.api import ProgressSink
from trtopt.device.cuda.probe import first_gpu
from trtopt.device.tensorrt.builder import mask_of
from trtopt.device.tensorrt.library import load_library, load_plugins, make, make_logger
from trtopt.errors import BackendMissingError, InvalidModelError
from trtopt.onnxio.graph_walk import inner_nodes, reads_of, refill
from trtopt.onnxio.model_file import read_message
from trtopt.onnxio.prepare import inline_and_name
from trtopt.onnxio.shape_inference import inferred
from trtopt.records import Backend, Job, Record, Refusal
from trtopt.targets import target_named

if TYPE_CHECKING:
    import onnx

    from trtopt.device.tensorrt.library import Library

GRAPH = ""
"""What a refusal is about that names no node and no input."""
_MESSAGE = re.compile(r'&& "(?P<quoted>.*)"$|^Assertion failed: .*?: (?P<rest>[A-Z].*)$', re.DOTALL)


class ParserReport(Record, frozen=True, kw_only=True):
    """What the parser refuses; `unknown` are nodes that it could not be asked about."""

    backend: Backend
    refused: tuple[Refusal, ...]
    unknown: tuple[str, ...]


class ParseJob(Job[ParserReport], frozen=True, kw_only=True, tag="parse"):
    """A worker's job: ask the parser of a target what it takes of the ONNX file at `path`."""

    path: str
    target: str

    @property
    def backend(self) -> str:
        """Whose parser it is."""
        return target_named(self.target).backend


def parse(job: ParseJob, progress: ProgressSink) -> ParserReport:
    """Ask until nothing more is refused."""
    library = load_library(job.backend)
    if library.target.name != job.target:
        raise BackendMissingError(
            f"TensorRT {library.backend.version} is installed here, not {job.target}", "install that version"
        )
    if library.target.needs_gpu_to_build:
        first_gpu()
    rest = inline_and_name(read_message(Path(job.path)))
    types = _known_types(rest)
    own_inputs = {one.name for one in rest.graph.input}
    refused: dict[str, Refusal] = {}
    unknown: list[str] = []
    while rest.graph.node:
        progress(f"parsing, {len(refused)} refused so far", None)
        found = _refusals(library, rest, job.path)
        if GRAPH in found and (node := _where(library, rest, job.path)) is not None:
            found[node.name] = replace(found.pop(GRAPH), node=node.name, operator=node.op_type)
        cut = {one.name for one in rest.graph.input} - own_inputs
        for place, one in found.items():
            if any(node.name == place and reads_of(node) & cut for node in rest.graph.node):
                one = replace(one, reason=f"{one.reason}, where what it reads was refused and is an input")
            if place not in cut:
                refused[place] = one
        if not found:
            break
        if GRAPH in found:  # about no node and no input: there is nothing to cut out
            unknown += [node.name for node in rest.graph.node]
            break
        unknown += _cut_out(rest.graph, found.keys(), types)
    return ParserReport(backend=library.backend, refused=tuple(refused.values()), unknown=tuple(unknown))


def _refusals(library: Library, model: onnx.ModelProto, path: str) -> dict[str, Refusal]:
    """What the parser refuses of a model, by the node of its graph or the input that it is about."""
    trt = library.trt
    logger = make_logger(trt, lambda severity, message: None)
    builder = make(trt.Builder, logger)
    load_plugins(library, logger, ())
    network = builder.create_network(mask_of(trt.NetworkDefinitionCreationFlag, library.target.network_flags))
    parser = trt.OnnxParser(network, logger)
    try:
        if parser.parse(model.SerializeToString(), path):
            return {}
        faults = [parser.get_error(index) for index in range(parser.num_errors)]
        return dict(map(partial(_refusal, model.graph), faults)) or {GRAPH: Refusal(reason="it says not why")}
    finally:  # all that TensorRT makes goes before its logger
        parser = network = builder = None


def _where(library: Library, model: onnx.ModelProto, path: str) -> onnx.NodeProto | None:
    """The node that a refusal without a name is about: the last of the shortest beginning that is refused.

    None: the graph is refused without any of its nodes.
    """
    taken, refused = -1, len(model.graph.node)
    while refused - taken > 1:
        middle = (taken + refused) // 2
        beginning = type(model)()
        beginning.CopyFrom(model)
        _keep(beginning.graph, model.graph.node[:middle])
        if _refusals(library, beginning, path):
            refused = middle
        else:
            taken = middle
    return model.graph.node[refused - 1] if refused else None


def _refusal(graph: onnx.GraphProto, fault: Any) -> tuple[str, Refusal]:
    """What it is about, and the parser's words; 8.6 knows a node by its index alone."""
    reason, name = _reason_of(fault.desc()), fault.node_name() if hasattr(fault, "node_name") else ""
    for node in graph.node:
        for inner in inner_nodes(node):
            if inner.name == name:
                inside = "" if inner is node else f", inside {node.name}"
                return node.name, Refusal(node=name, operator=inner.op_type, reason=f"{reason}{inside}")
    if 0 <= fault.node() < len(graph.node):
        node = graph.node[fault.node()]
        return node.name, Refusal(node=node.name, operator=node.op_type, reason=reason)
    if fault.file() in {one.name for one in graph.input}:
        return fault.file(), Refusal(input=fault.file(), reason=reason)
    return GRAPH, Refusal(reason=reason)


def _reason_of(text: str) -> str:
    """The message in an assertion; `false` is all that it says of operators that it does not have."""
    if text == "false":
        return "the parser has no importer for this operator"
    match = _MESSAGE.search(text)
    return ((match["quoted"] or match["rest"]) if match else text).strip().replace("\n", ": ")


def _known_types(model: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """The tensors whose type and number of axes are known."""
    try:
        graph = inferred(model).graph
    except InvalidModelError:  # what is declared has to do
        graph = model.graph
    return {
        value.name: value
        for value in (*graph.value_info, *graph.output)
        if value.type.tensor_type.elem_type and value.type.tensor_type.HasField("shape")
    }


def _cut_out(
    graph: onnx.GraphProto, gone: Collection[str], types: Mapping[str, onnx.ValueInfoProto]
) -> list[str]:
    """Take nodes and inputs out of a sorted graph, in place; returns the nodes that have to go with them."""
    unknown, lost = [], {one.name for one in graph.input if one.name in gone}
    kept: list[onnx.NodeProto] = []
    cut: dict[str, onnx.ValueInfoProto] = {}
    for node in graph.node:
        is_blind = bool(reads_of(node) & lost)
        if node.name not in gone and not is_blind:
            kept.append(node)
            continue
        if node.name not in gone:
            unknown.append(node.name)
        for name in filter(None, node.output):
            if name in types:
                cut[name] = types[name]
            else:
                lost.add(name)
    read = {name for node in kept for name in reads_of(node)}
    inputs = [one for one in graph.input if one.name not in gone]
    refill(graph.input, [*inputs, *(value for name, value in cut.items() if name in read)])
    _keep(graph, kept)
    return unknown


def _keep(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Leave these nodes alone in a graph, and the outputs that they make."""
    refill(graph.node, nodes)
    made = {name for node in graph.node for name in node.output}
    refill(graph.output, [one for one in graph.output if one.name in made])
