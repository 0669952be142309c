"""What a model says beside its arithmetic is still there after a rewrite."""

from __future__ import annotations

from pathlib import Path

import onnx

from tests.rewrite_graphs import model
from trtopt.rewrite.rewrite import rewrite_model


def _remark(part: onnx.NodeProto | onnx.GraphProto, words: str) -> None:
    part.doc_string = words
    part.metadata_props.add(key="from", value=words)


def _remarks(path: Path) -> dict[str, tuple[str, list[str]]]:
    """What the nodes, in subgraphs too, say: words and metadata by name."""
    graph = onnx.load(path).graph
    nodes = [*graph.node, *(node for held in graph.node for item in held.attribute for node in item.g.node)]
    return {node.name: (node.doc_string, [item.value for item in node.metadata_props]) for node in nodes}


def _rewritten_twice(made: onnx.ModelProto, folder: Path) -> Path:
    onnx.save(made, folder / "in.onnx")
    rewrite_model(folder / "in.onnx", folder / "out.onnx", target="10", clean=True)
    rewrite_model(folder / "out.onnx", folder / "again.onnx", target="10", clean=True)
    assert (folder / "out.onnx").read_bytes() == (folder / "again.onnx").read_bytes()
    return folder / "out.onnx"


def test_what_nodes_say_is_kept_also_in_subgraphs(tmp_path: Path) -> None:
    made = model("""
        g (float[N,4] x, bool c) => (float[N,4] y) {
          a = Identity(x)
          b = Neg(a)
          y = If(c) <then_branch = t () => (float[N,4] p) {u = Relu(b) v = Relu(u) p = Neg(v)},
                     else_branch = e () => (float[N,4] q) {q = Abs(b)}>
        }""")
    branches = [item.g for item in made.graph.node[-1].attribute]
    for graph in (made.graph, *branches):
        _remark(graph, f"graph {graph.name}")
        for node in graph.node:
            _remark(node, f"makes {node.output[0]}")
    out = _rewritten_twice(made, tmp_path)
    after = onnx.load(out).graph
    for graph in (after, *(item.g for item in after.node[-1].attribute)):
        assert graph.doc_string == f"graph {graph.name}"
        assert [item.value for item in graph.metadata_props] == [f"graph {graph.name}"]
    kept = {"Neg:b": "makes b", "If:y": "makes y", "Neg:p": "makes p", "Abs:q": "makes q"}
    told = _remarks(out)
    assert "Identity:a" not in told
    for name, words in kept.items():
        assert told[name] == (words, [words])


def test_what_was_said_of_another_operator_is_not_said_of_the_one_that_takes_its_name(tmp_path: Path) -> None:
    made = model(
        "g (float[N,4] x) => (float[N,4] y) {a = Exp(x) s = ReduceSum<keepdims=1>(a, k) y = Div(a, s)}"
    )
    made.graph.initializer.append(onnx.helper.make_tensor("k", onnx.TensorProto.INT64, [1], [-1]))
    _remark(made.graph.node[2], "divides")
    out = _rewritten_twice(made, tmp_path)
    assert [node.op_type for node in onnx.load(out).graph.node] == ["Softmax"]
    assert list(_remarks(out).values()) == [("", [])]
