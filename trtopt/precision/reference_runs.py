"""Opening models on ONNX Runtime as the references and candidates of a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

import onnx
from onnx import TensorProto

from trtopt.data import SampleSource
from trtopt.data.reader import Arrays, samples_in
from trtopt.device.ort.reference import Unoptimised
from trtopt.errors import ModelError
from trtopt.onnxio.graph_walk import TYPE_ATTRIBUTES, Part, graphs_of
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.unique_names import name_apart
from trtopt.precision.casting.places import FLOAT, LOW, types_of
from trtopt.precision.casting.weights import converted
from trtopt.precision.deviation import Deviation, is_classifier
from trtopt.precision.stages import open_proto
from trtopt.precision.temporary_disk import passing
from trtopt.precision.weight_folding import with_weights_dequantised
from trtopt.records import TensorSpec
from trtopt.records.checking import OutputDifference

_LOW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def has_low(types: Mapping[str, int]) -> bool:
    """Whether any tensor is 16-bit."""
    return any(kind in _LOW for kind in types.values())


def emulated(model: onnx.ModelProto, types: Mapping[str, int]) -> onnx.ModelProto:
    """The model with FP32 operators and the same inputs, outputs, weights and roundings: what a GPU computes.

    GPUs add up 16-bit products in FP32 and round what they store. ONNX Runtime's CPU kernels lack most 16-bit
    operators: runs of FP16 nodes are computed in FP32 and rounded only where the run ends, which flatters,
    and BF16 does not run at all. `types` are those of its tensors; large weights stay where they are and are
    widened when it runs.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    parts = list(graphs_of(copy.graph))
    stem = _unused_stem({*types, *(name for part in parts for node in part.node for name in node.output)})
    for index, part in reversed(list(enumerate(parts))):  # inner graphs first: nodes around them are copied
        # Each graph widens for itself: inner graphs may read outer tensors.
        _widen(part, types, f"{stem}{index}:")
    return copy


def _unused_stem(names: Set[str]) -> str:
    """What no name begins with, so that names made from it are new in every graph and at every call."""
    stem = "wide"
    while any(name.startswith(stem) for name in names):
        stem += "r"
    return stem


def _widen(part: Part, types: Mapping[str, int], prefix: str) -> None:
    nodes: list[onnx.NodeProto] = []
    wide: dict[str, str] = {}
    for old in part.node:
        node = onnx.NodeProto()
        node.CopyFrom(old)
        for index, name in enumerate(old.input):
            if types.get(name) in _LOW:
                if name not in wide:
                    wide[name] = prefix + name
                    nodes.append(_cast(name, wide[name], TensorProto.FLOAT))
                node.input[index] = wide[name]
        nodes.append(node)
        if _names_its_type(node):
            continue
        for index, name in enumerate(old.output):
            if types.get(name) in _LOW:
                node.output[index] = f"{prefix}raw:{name}"
                nodes.append(_cast(node.output[index], name, types[name]))
    del part.node[:]
    part.node.extend(nodes)
    del part.value_info[:]


def _names_its_type(node: onnx.NodeProto) -> bool:
    """Whether an attribute names the node's output type: FP32 inputs then do not change it."""
    return node.op_type == "ConstantOfShape" or any(item.name in TYPE_ATTRIBUTES for item in node.attribute)


def _cast(source: str, target: str, to: int) -> onnx.NodeProto:
    return onnx.helper.make_node("Cast", [source], [target], to=to)


def open_model(model: ModelFile) -> Unoptimised:
    """The model, its 16-bit arithmetic emulated if it has any.

    Raises:
        ModelError: ONNX Runtime cannot load it.
        OutputError: there is no room for its weights in FP32.
    """
    # ONNX Runtime reads weights that are mapped from files, also once these have no name any more.
    with passing(model) as spooling:
        wide = in_fp32(with_weights_dequantised(spooling))
        return open_proto(wide, wide.proto)


def in_fp32(model: ModelFile) -> ModelFile:
    """The model, its 16-bit arithmetic emulated if it has any; weights are widened now if there is a spool.

    Otherwise they are widened whenever the model runs. What it computes is the same to the bit.
    """
    if not has_low(types_of(model.proto)):
        return model
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    name_apart(proto.graph)
    types = types_of(proto)
    outputs = {item.name for item in proto.graph.output}
    if model.spool is not None:
        for tensor in proto.graph.initializer:
            if types[tensor.name] not in LOW.values() or tensor.name in outputs:
                continue
            tensor.CopyFrom(converted(tensor, model, tensor.name, FLOAT))
            types[tensor.name] = FLOAT
            # Constants are multiplied by in another order of sums; what is among the inputs is none.
            proto.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, FLOAT, tensor.dims))
    return replace(model, proto=emulated(proto, types))


def compared(pairs: Iterable[tuple[Arrays, Arrays]], other: Unoptimised) -> tuple[OutputDifference, ...]:
    """How far every output of `other` lies from that of the reference; `pairs` are its inputs and outputs.

    Raises:
        ModelError: the model fails.
    """
    found: dict[str, Deviation] = {}
    for feed, wanted in pairs:
        add_outputs(found, wanted, other.run(other.fitted(feed)))
    return tuple(item.result() for item in found.values())


def add_outputs(found: dict[str, Deviation], wanted: Arrays, got: Arrays) -> None:
    """Add a batch's outputs, by name; what is no number is left out.

    Raises:
        ModelError: their names or shapes differ.
    """
    _check_names(wanted, got)
    for name, value in wanted.items():
        if value.dtype.kind in "OSU":
            continue
        if name not in found:
            found[name] = Deviation(name, classifies=is_classifier(value))
        if value.shape != got[name].shape:
            raise ModelError(
                f"output {name!r} has shape {got[name].shape}, the reference's {value.shape}",
                "check that both are versions of one model; where the size depends on the data, precision "
                "decides it too: compare the tensor that it is computed from",
            )
        found[name].add(value, got[name])


def _check_names(wanted: Arrays, got: Arrays) -> None:
    lacking, more = sorted(wanted.keys() - got.keys()), sorted(got.keys() - wanted.keys())
    differences = [f"lacks {', '.join(map(repr, lacking))}"] if lacking else []
    differences += [f"also has {', '.join(map(repr, more))}"] if more else []
    if differences:
        raise ModelError(
            f"the model has other outputs than the reference: it {' and '.join(differences)}",
            "compare it with the model that it was made from, with the same outputs",
        )


class First(SampleSource):
    """The first samples of a source, `most` of them or up to a batch more."""

    def __init__(self, source: SampleSource, most: int) -> None:
        super().__init__(source.name, [])
        self._source, self._most = source, most

    def batches(self, inputs: Sequence[TensorSpec], size: int) -> Iterator[Arrays]:
        """As the source's."""
        return at_most(self._source.batches(inputs, size), self._most)


def at_most(feeds: Iterable[Arrays], samples: int) -> Iterator[Arrays]:
    """The first batches, until they hold as many samples."""
    seen = 0
    for feed in feeds:
        yield feed
        seen += samples_in(feed)
        if seen >= samples:
            return
