"""Models that refer to files: from every part that can hold a tensor, to every kind of place.

A case is a folder `model` with `model.onnx` and a file `decoy` that may be read, beside a folder `outside`
with a `secret` that may not. The current folder is a third one, with a `stray` file.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import onnx
from onnx import TensorProto, helper

SIZE = 64
SECRET = b"TOPSECRET".ljust(SIZE, b"!")
DECOY = b"decoy".ljust(SIZE, b".")
Entries = list[tuple[str, str]]
Part = Callable[[TensorProto], onnx.ModelProto]


def tensor_at(entries: Entries) -> TensorProto:
    """64 bytes in a file."""
    tensor = TensorProto(name="k", data_type=TensorProto.UINT8, dims=(SIZE,))
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries:
        tensor.external_data.add(key=key, value=value)
    return tensor


# ── parts of a model ────────────────────────────────────────────────────────────────────────────────────


def _value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.UINT8, [SIZE])


def _model(nodes: list[onnx.NodeProto], **graph: list[onnx.Message]) -> onnx.ModelProto:
    made = helper.make_graph(
        [*nodes, helper.make_node("Max", ["x", "k"], ["y"], name="max")], "g", [_value("x")], [_value("y")]
    )
    for field, items in graph.items():
        getattr(made, field).extend(items)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _sparse(tensor: TensorProto) -> onnx.SparseTensorProto:
    indices = helper.make_tensor("i", TensorProto.INT64, [SIZE], range(SIZE))
    return onnx.SparseTensorProto(values=tensor, indices=indices, dims=[SIZE])


def _branching(node: onnx.NodeProto | None, tensor: TensorProto | None) -> onnx.ModelProto:
    inner = onnx.GraphProto(name="inner", output=[_value("k")])
    inner.node.extend([node] if node else [])
    inner.initializer.extend([tensor] if tensor else [])
    yes = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
    choice = helper.make_node("If", ["yes"], ["k"], name="if", then_branch=inner, else_branch=inner)
    return _model([choice], initializer=[yes])


def _function(tensor: TensorProto, *, default: bool) -> onnx.ModelProto:
    constant = helper.make_node("Constant", [], ["out"])
    attribute = constant.attribute.add(name="value", type=onnx.AttributeProto.TENSOR)
    function = onnx.FunctionProto(domain="own", name="K", output=["out"])
    if default:
        attribute.ref_attr_name = "held"
        function.attribute_proto.append(helper.make_attribute("held", tensor))
    else:
        attribute.t.CopyFrom(tensor)
    function.node.append(constant)
    function.opset_import.append(helper.make_opsetid("", 17))
    made = _model([helper.make_node("K", [], ["k"], domain="own")])
    made.opset_import.append(helper.make_opsetid("own", 1))
    made.functions.append(function)
    return made


def _in_a_list(tensor: TensorProto) -> onnx.ModelProto:
    node = helper.make_node("Vendors", ["x"], ["k"], name="v", domain="vendor")
    node.attribute.add(name="held", type=onnx.AttributeProto.TENSORS).tensors.append(tensor)
    made = _model([node])
    made.opset_import.append(helper.make_opsetid("vendor", 1))
    return made


def _for_training(tensor: TensorProto) -> onnx.ModelProto:
    made = _model([helper.make_node("Identity", ["x"], ["k"])])
    made.training_info.add().initialization.initializer.append(tensor)
    return made


def _constant(tensor: TensorProto) -> onnx.NodeProto:
    return helper.make_node("Constant", [], ["k"], name="c", value=tensor)


PARTS: dict[str, Part] = {
    "initializer": lambda tensor: _model([], initializer=[tensor]),
    "unused initializer": lambda tensor: _model(
        [helper.make_node("Identity", ["x"], ["k"])],
        initializer=[TensorProto.FromString(tensor.SerializeToString().replace(b"\x01k", b"\x01u"))],
    ),
    "Constant": lambda tensor: _model([_constant(tensor)]),
    "sparse Constant": lambda tensor: _model(
        [helper.make_node("Constant", [], ["k"], name="c", sparse_value=_sparse(tensor))]
    ),
    "sparse initializer": lambda tensor: _model([], sparse_initializer=[_sparse(tensor)]),
    "initializer of a branch": lambda tensor: _branching(None, tensor),
    "Constant of a branch": lambda tensor: _branching(_constant(tensor), None),
    "function": lambda tensor: _function(tensor, default=False),
    "default of a function": lambda tensor: _function(tensor, default=True),
    "list of tensors": _in_a_list,
    "training": _for_training,
}


# ── places ──────────────────────────────────────────────────────────────────────────────────────────────


def lay_out(root: Path) -> Path:
    """The folders of a case, with everything that a location can name; returns where the model goes."""
    folder, outside, current = root / "model", root / "outside", root / "current"
    for one in (folder, folder / "sub", outside, current):
        one.mkdir(parents=True)
    (outside / "secret").write_bytes(SECRET)
    (outside / "other").write_bytes(SECRET)
    (current / "stray").write_bytes(SECRET)
    (folder / "decoy").write_bytes(DECOY)
    (folder / "link").symlink_to("../outside/secret")
    (folder / "linked").symlink_to("../outside")
    (folder / "circle").symlink_to("circle")
    (folder / "zero").symlink_to("/dev/zero")
    os.link(outside / "other", folder / "hard")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(folder / "socket"))
    address = folder / "*" / "_ORT_MEM_ADDR_"  # ONNX Runtime's mark of what lies in memory
    address.mkdir(parents=True)
    (address / "*").write_bytes(DECOY)
    return folder


PLACES: dict[str, Callable[[Path], Entries]] = {
    "absolute": lambda root: [("location", str(root / "outside" / "secret"))],
    "above": lambda root: [("location", "../outside/secret")],
    "above from below": lambda root: [("location", "sub/../../outside/secret")],
    "link": lambda root: [("location", "link")],
    "linked folder": lambda root: [("location", "linked/secret")],
    "circle": lambda root: [("location", "circle")],
    "hard link": lambda root: [("location", "hard")],
    "pipe": lambda root: [("location", "pipe")],
    "socket": lambda root: [("location", "socket")],
    "folder": lambda root: [("location", "sub")],
    "device": lambda root: [("location", "zero")],
    "memory": lambda root: [("location", "*/_ORT_MEM_ADDR_/*"), ("offset", "4194304"), ("length", str(SIZE))],
    "current folder": lambda root: [("location", "stray")],
    "nowhere": lambda root: [],
    "twice": lambda root: [("location", "decoy"), ("location", "../outside/secret")],
    "private key": lambda root: [("location", "secret"), ("trtopt-spool", str(root / "outside"))],
    "private key beside": lambda root: [("location", "decoy"), ("trtopt-spool", str(root / "outside"))],
    "before the file": lambda root: [("location", "decoy"), ("offset", "-64")],
    "behind the file": lambda root: [("location", "decoy"), ("offset", "1")],
}
"""None of them may be read."""
