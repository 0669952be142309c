"""Kinds of candidates: of the graph, of the builder and of how the engine is run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from tests.rewrite_graphs.case import model
from tests.support.inspected import graph, node
from tests.support.networks import Net
from tests.support.tuning import gain, kind, proposed, situation
from trtopt.inspect.graph import read_graph
from trtopt.recipe import Recipe
from trtopt.workflows.tune.kinds import Situation

HALF = graph(node("Relu", "x", "y"), inputs={"x": (8, 4)}, dtype="float16")
QUANTIZED = graph(
    node("QuantizeLinear", "x s", "q"), node("DequantizeLinear", "q s", "y"), inputs={"x": (8, 4), "s": ()}
)


def test_int8_is_offered_with_samples_alone() -> None:
    assert [*proposed("precision", situation())] == ["precision=fp16", "precision=bf16"]
    assert "precision=best" in proposed("precision", situation(data="samples.npz"))


@pytest.mark.parametrize(
    "given",
    [
        situation(data="s.npz", recipe=Recipe(precision="best"), selected="int8"),
        situation(data="s.npz", graph=QUANTIZED),
        situation(data="s.npz", graph=HALF),
    ],
)
def test_a_graph_that_has_a_precision_keeps_it(given: object) -> None:
    assert proposed("precision", given) == {}  # type: ignore[arg-type]


def test_int8_is_still_offered_once_the_graph_was_cast_to_fp16() -> None:
    cast = situation(data="s.npz", recipe=Recipe(precision="fp16"), graph=HALF)
    assert [*proposed("precision", cast)] == ["precision=best"]


def test_selecting_among_precisions_costs_the_measurement_of_each() -> None:
    found = proposed("precision", situation("onnxruntime", "1", data="samples.npz"))
    assert found["precision=best"].measurements == 1 + len(("fp32", "fp16", "int8"))


@pytest.mark.parametrize(
    ("given", "builds"),
    [
        (situation("tensorrt", "8.6.0", data="s.npz"), 2 + 1),
        (situation("tensorrt", "8.6.0", data="s.npz", recipe=Recipe(selection_budget=5)), 2 + 2),
        (situation(data="s.npz"), 4 + 2),
        (situation("onnxruntime", "1", data="s.npz"), 3 + 1),
    ],
)
def test_selecting_among_precisions_costs_a_build_of_each_and_more_in_int8(
    given: Situation, builds: int
) -> None:
    assert proposed("precision", given)["precision=best"].builds == builds


def test_16_bits_are_for_gpus() -> None:
    assert proposed("precision", situation("onnxruntime", "1")) == {}


def gated(folder: Path) -> Path:
    """A convolution behind a squeeze-and-excitation gate."""
    net = Net(x=["N", 32, 16, 16])
    pooled = net.node("GlobalAveragePool", "pool", net.conv("first", "x", 32, 32))
    gate = net.node("Sigmoid", "sigmoid", net.conv("squeeze", pooled, 32, 32, kernel=1))
    net.conv("last", net.node("Mul", "gate", "first", gate), 32, 32)
    onnx.save(net.model("last"), folder / "gated.onnx")
    return folder / "gated.onnx"


def of(model: Path, selected: str = "int8", data: str | None = "samples.npz", **recipe: str) -> Situation:
    built = Recipe(**{"precision": "int8", **recipe})
    graph = read_graph(onnx.load(model), {})
    return situation(graph=graph, model=model, recipe=built, selected=selected, data=data)


def test_what_the_graph_has_a_place_for_is_tried_beside_what_is_chosen(tmp_path: Path) -> None:
    found = proposed("placement", of(gated(tmp_path)))
    assert [*found] == ["forms=gates=int8"]
    assert dict(found["forms=gates=int8"].recipe) == {"forms": "gates=int8", "precision": "int8"}
    assert found["forms=gates=int8"].makes_graph
    assert [*proposed("placement", of(gated(tmp_path), forms="smoothing=off"))] == [
        "forms=gates=int8,smoothing=off"
    ]


@pytest.mark.parametrize(
    "given",
    [
        {"precision": "fp16"},
        {"forms": "gates=int8"},
        {"selected": "fp16", "precision": "best"},
        {"data": None},
    ],
    ids=["float", "done already", "float was faster", "no data"],
)
def test_nothing_is_tried_where_it_would_change_nothing(tmp_path: Path, given: dict[str, str]) -> None:
    assert proposed("placement", of(gated(tmp_path), **given)) == {}


TWO_PRODUCTS = """
    # w: float[8,16]
    # u: float[8,16]
    g (float[2,8] x) => (float[2,16] y) {
        a = MatMul(x, w)
        b = MatMul(x, u)
        c = Relu(a)
        y = Add(c, b)
    }"""


def test_a_rule_is_tried_where_it_finds_something(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    made = model(TWO_PRODUCTS)
    onnx.save(made, path)
    given = situation(graph=read_graph(made, {}), model=path)
    (change,) = proposed("rewrite-rule", given).values()
    assert dict(change.recipe) == {"add_rule": ("merge-matmuls",)}
    assert change.makes_graph
    assert change.evidence == "it changes 1 place"
    assert proposed("rewrite-rule", replace(given, recipe=Recipe(add_rule=("merge-matmuls",)))) == {}


def test_each_rule_that_builds_leave_out_is_added_to_those_that_were(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    made = model(
        "g (float[2,8] x) => (float[2,8] y) <float one = {1.0}>"
        "{a = Identity(x) b = Relu(a) c = Mul(b, one) y = Abs(c)}"
    )
    onnx.save(made, path)
    given = situation(graph=read_graph(made, {}), model=path, recipe=Recipe(add_rule=("erase-identity",)))
    found = proposed("rewrite-rule", given)
    assert [*found] == ["add-rule=erase-arithmetic"]
    assert found["add-rule=erase-arithmetic"].recipe["add_rule"] == ("erase-identity", "erase-arithmetic")


def test_onnx_runtime_gets_fewer_threads_than_cores() -> None:
    found = proposed("builder-setting", situation("onnxruntime", "1"))
    assert [name for name in found if name.startswith("intra")] == [
        f"intra_op_threads={count}" for count in (1, 2, 4)
    ]
    assert "intra_op_threads=2" not in proposed("builder-setting", situation("onnxruntime", "1", cores=1))


def test_the_default_is_tried_where_the_recipe_has_another() -> None:
    lowered = situation("onnxruntime", "1", recipe=Recipe(graph_optimization="basic"))
    assert "graph_optimization=all" in proposed("builder-setting", lowered)
    assert "graph_optimization=all" not in proposed("builder-setting", situation("onnxruntime", "1"))


def test_level_4_is_not_tried_from_level_5() -> None:
    levels = [
        name
        for name in proposed("builder-setting", situation(recipe=Recipe(opt_level=5)))
        if "opt_level" in name
    ]
    assert levels == []
    assert "opt_level=5" in proposed("builder-setting", situation(recipe=Recipe(opt_level=4)))


def test_harder_search_takes_longer_builds() -> None:
    found = proposed("builder-setting", situation())
    builds = [found[f"opt_level={level}"].builds for level in (4, 5)]
    assert kind("builder-setting").builds < builds[0] < builds[1]  # type: ignore[operator]


def test_a_latency_has_use_for_neither_other_batches_nor_streams() -> None:
    given = situation(batches=(8, 32))
    assert proposed("batch", given) == {}
    assert proposed("streams", given) == {}


def test_a_larger_batch_promises_more_than_a_smaller_one() -> None:
    found = proposed("batch", situation(is_rate=True, batches=(8, 32, 1)))
    assert [*found] == ["batch=32", "batch=1"]
    assert gain(found["batch=32"]) > gain(found["batch=1"])


def test_streams_need_no_build() -> None:
    found = proposed("streams", situation(is_rate=True, streams=2))
    assert [change.streams for change in found.values()] == [4]
    assert kind("streams").builds == 0
    assert proposed("streams", situation("onnxruntime", "1", is_rate=True)) == {}


def test_builds_of_onnx_runtime_are_all_alike() -> None:
    assert all(change.fresh for change in proposed("build-lottery", situation()).values())
    assert proposed("build-lottery", situation("onnxruntime", "1")) == {}
