"""Functions of a model's own that never end, or not soon, are refused before they are inlined."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper

from trtopt.errors import InvalidModelError
from trtopt.rewrite.rewrite import rewrite_model

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]


def _with_functions(folder: Path, bodies: dict[str, list[str]]) -> Path:
    """A model that calls the first function; each calls those of its body one after the other."""
    functions = []
    for name, body in bodies.items():
        names = ["a", *(f"m{index}" for index in range(len(body) - 1)), "b"]
        nodes = [
            helper.make_node(op, [names[index]], [names[index + 1]], domain="" if op == "Relu" else "d")
            for index, op in enumerate(body)
        ]
        functions.append(helper.make_function("d", name, ["a"], ["b"], nodes, OPSETS))
    tensors = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
    call = helper.make_node(next(iter(bodies)), ["x"], ["y"], domain="d")
    graph = helper.make_graph([call], "g", tensors[:1], tensors[1:])
    model = helper.make_model(graph, functions=functions, opset_imports=OPSETS, ir_version=8)
    onnx.save(model, folder / "in.onnx")
    return folder / "in.onnx"


@pytest.mark.parametrize(
    ("bodies", "told"),
    [
        ({"f": ["f"]}, "function 'f' calls itself"),
        ({"f": ["g"], "g": ["Relu", "h"], "h": ["g"]}, "calls itself"),
        ({f"f{n}": [f"f{n - 1}"] * 2 if n else ["Relu"] for n in range(40, -1, -1)}, f"has {2**40} nodes"),
    ],
)
def test_functions_that_never_end_or_not_soon_are_refused(
    bodies: dict[str, list[str]], told: str, tmp_path: Path
) -> None:
    source = _with_functions(tmp_path, bodies)
    with pytest.raises(InvalidModelError, match=told):
        rewrite_model(source, tmp_path / "out.onnx", target="11", check=False)


def test_functions_that_call_one_another_are_inlined(tmp_path: Path) -> None:
    source = _with_functions(tmp_path, {"f": ["g", "g"], "g": ["Relu", "h"], "h": ["Relu"]})
    rewrite_model(source, tmp_path / "out.onnx", target="11", rules=["fold-constants"])
    assert len(onnx.load(tmp_path / "out.onnx").graph.node) == 4
