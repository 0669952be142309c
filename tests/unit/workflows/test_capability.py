"""The parts of a graph between refused nodes: every node in one of them, none behind itself."""

from __future__ import annotations

from graphlib import TopologicalSorter

from hypothesis import given, strategies as st
from onnx import GraphProto, TensorProto, helper

from trtopt.workflows.inspect import subgraphs_between


@st.composite
def graphs(draw: st.DrawFn) -> tuple[GraphProto, set[str]]:
    """A sorted graph of nodes that read one to three earlier tensors, or a constant; some are refused."""
    count = draw(st.integers(1, 14))
    tensors = ["x", "w"]
    nodes = []
    for index in range(count):
        read = draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=3, unique=True))
        nodes.append(helper.make_node("Sum", read, [f"t{index}"], name=f"n{index}"))
        tensors.append(f"t{index}")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", tensors[-1])]
    weights = [helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])]
    refused = draw(st.sets(st.sampled_from([node.name for node in nodes])))
    return helper.make_graph(nodes, "g", ends[:1], ends[1:], weights), refused


@given(graphs())
def test_every_node_that_depends_on_an_input_is_refused_or_in_one_subgraph(
    drawn: tuple[GraphProto, set[str]],
) -> None:
    graph, refused = drawn
    constant = {"w"}
    left = []
    for node in graph.node:
        if node.name not in refused and {*node.input} <= constant:
            constant.add(node.output[0])
        elif node.name not in refused:
            left.append(node.name)
    found = [name for one in subgraphs_between(graph, refused) for name in one.nodes]
    assert sorted(found) == sorted(left)


@given(graphs())
def test_subgraphs_can_be_run_one_after_another_and_touching_ones_lie_apart(
    drawn: tuple[GraphProto, set[str]],
) -> None:
    """Contracted, the graph has no cycle; two that touch have a refused node on another way between them."""
    graph, refused = drawn
    parts = subgraphs_between(graph, refused)
    home = {name: f"part {index}" for index, one in enumerate(parts) for name in one.nodes}
    maker = {node.output[0]: node.name for node in graph.node}
    order: TopologicalSorter[str] = TopologicalSorter()
    for node in graph.node:
        for tensor in node.input:
            if tensor in maker:
                here, there = home.get(node.name, node.name), home.get(maker[tensor], maker[tensor])
                if here != there:
                    order.add(here, there)
    order.prepare()
    if not refused:
        touching = {(a, b) for a, one in enumerate(parts) for b, other in enumerate(parts)
                    if a != b and {*one.outputs} & {*other.inputs}}  # fmt: skip
        assert not touching


@given(graphs())
def test_the_ends_of_a_subgraph_are_what_others_give_and_take(drawn: tuple[GraphProto, set[str]]) -> None:
    graph, refused = drawn
    for one in subgraphs_between(graph, refused):
        inside = {node.name for node in graph.node} & {*one.nodes}
        made = {node.output[0] for node in graph.node if node.name in inside}
        read = {name for node in graph.node if node.name not in inside for name in node.input}
        assert {*one.outputs} == made & (read | {value.name for value in graph.output})
        assert not {*one.inputs} & (made | {"w"})
