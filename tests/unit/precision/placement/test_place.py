"""Which edges carry Q/DQ in the structures that networks are made of, and why."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.support.networks import Net, edges, fate, quantised, residual_block, silu
from trtopt.errors import UsageError
from trtopt.precision.placement.draft import WeightEdge
from trtopt.precision.placement.forms import Forms

IMAGE = ["N", 3, 16, 16]
MAPS = ["N", 32, 16, 16]


# ── gates, activations ──────────────────────────────────────────────────────────────────────────────────


def squeeze_and_excite(net: Net, x: str) -> str:
    pooled = net.node("GlobalAveragePool", "pool", x)
    reduced = net.node("Relu", "se.relu", net.conv("se.reduce", pooled, 32, 16, kernel=1))
    gate = net.node("Sigmoid", "se.sigmoid", net.conv("se.expand", reduced, 16, 32, kernel=1))
    return net.node("Mul", "se.mul", x, gate)


def test_gates_stay_in_float_and_what_they_scale_is_quantised_behind_the_product() -> None:
    net = Net(x=MAPS)
    deep = silu(net, "silu", net.conv("deep", "x", 32, 32, group=32))
    plan = net.plan(net.conv("project", squeeze_and_excite(net, deep), 32, 64, kernel=1))
    assert quantised(plan) == {"deep", "project"}
    assert edges(plan) == {("x", "deep"), ("se.mul", "project")}
    assert "gate" in fate(plan, "se.reduce")[1]
    assert "gate" in fate(plan, "se.expand")[1]


def test_with_the_form_gates_are_in_int8_whole_and_share_the_pair_of_what_they_scale() -> None:
    net = Net(x=MAPS)
    deep = silu(net, "silu", net.conv("deep", "x", 32, 32, group=32))
    plan = net.plan(
        net.conv("project", squeeze_and_excite(net, deep), 32, 64, kernel=1), forms=Forms(gates="int8")
    )
    assert edges(plan) == {
        ("x", "deep"), ("silu", "pool"), ("silu", "se.mul"), ("pool", "se.reduce"), ("se.relu", "se.expand"),
        ("se.sigmoid", "se.mul"), ("se.mul", "project"),
    }  # fmt: skip
    assert quantised(plan) == {"deep", "pool", "se.reduce", "se.expand", "se.mul", "project"}


@pytest.mark.parametrize("is_decomposed", [False, True])
def test_with_the_form_hard_swish_reads_int8_and_nothing_else_of_its_layer_does(is_decomposed: bool) -> None:
    net = Net(x=MAPS)
    first = net.conv("first", "x", 32, 32)
    if is_decomposed:
        net.node("Mul", "swish", first, net.node("HardSigmoid", "bounded", first))
    else:
        net.node("HardSwish", "swish", first)
    y = net.conv("last", "swish", 32, 32)
    net.node("Sigmoid", "aside", first)
    plain = {("x", "first"), ("swish", "last")}
    assert edges(net.plan(y, "aside")) == plain
    reads = {("first", "bounded"), ("first", "swish")} if is_decomposed else {("first", "swish")}
    assert edges(net.plan(y, "aside", forms=Forms(activation="int8"))) == plain | reads


def test_hard_swish_in_front_of_float_gets_no_pair() -> None:
    net = Net(x=MAPS)
    net.node("HardSwish", "swish", net.conv("first", "x", 32, 32))
    assert edges(net.plan("swish", forms=Forms(activation="int8"))) == {("x", "first")}


def test_a_gate_in_front_of_float_gets_no_pairs_of_its_own() -> None:
    net = Net(x=MAPS)
    squeeze_and_excite(net, net.conv("deep", "x", 32, 32))
    plan = net.plan("se.mul", forms=Forms(gates="int8"))
    assert not fate(plan, "se.mul")[0]


def test_a_classifier_behind_a_pool_is_no_gate_even_with_silu() -> None:
    net = Net(x=MAPS)
    pooled = net.node("Flatten", "flat", net.node("GlobalAveragePool", "pool", net.conv("c", "x", 32, 64)))
    hidden = silu(net, "silu", net.linear("hidden", pooled, 64, 64))
    plan = net.plan(net.linear("logits", hidden, 64, 100))
    assert quantised(plan) == {"c", "pool", "hidden"}


def test_the_head_stays_float_but_for_include_and_a_lone_product_is_quantised() -> None:
    net = Net(x=MAPS)
    pooled = net.node("Flatten", "flat", net.node("GlobalAveragePool", "pool", net.conv("c", "x", 32, 64)))
    logits = net.linear("logits", pooled, 64, 100)
    assert quantised(net.plan(net.node("Softmax", "p", logits))) == {"c", "pool"}
    assert "logits" in quantised(net.plan("p", include=("logits",)))
    lone = Net(x=(None, 64))
    assert quantised(lone.plan(lone.linear("logits", "x", 64, 100))) == {"logits"}


@pytest.mark.parametrize("behind", ["sequence", "If", "product"])
def test_a_product_of_rows_with_more_than_elementwise_nodes_behind_it_is_no_head(behind: str) -> None:
    net = Net(x=["N", 6, 64])
    rows = net.node("Reshape", "rows", "x", net.constant("flat", value=np.array([-1, 64])))
    y = net.linear("down", net.node("Relu", "act", net.linear("up", rows, 64, 128)), 128, 64)
    if behind == "sequence":
        y = net.node("Reshape", "y", y, net.constant("apart", value=np.array([-1, 6, 64])))
    elif behind == "product":
        y = net.node("MatMul", "y", y, net.node("Transpose", "t", y))
    else:
        ends = [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)]
        branch = helper.make_graph([helper.make_node("MatMul", ["down", "down.w"], ["z"])], "b", [], ends)
        flag = net.constant("flag", value=np.array(True))
        y = net.node("If", "y", flag, then_branch=branch, else_branch=branch)
    assert quantised(net.plan(y)) == {"up", "down"}


def test_weights_alone_in_int4_are_worth_it_in_the_head_too() -> None:
    net = Net(x=["N", 256])
    plan = net.plan(net.linear("last", net.linear("first", "x", 256, 256), 256, 256), precision="int4")
    assert quantised(plan) == {"first", "last"}


def test_q_dq_stay_outside_of_silu() -> None:
    net = Net(x=MAPS)
    plan = net.plan(net.conv("second", silu(net, "silu", net.conv("first", "x", 32, 32)), 32, 32))
    assert edges(plan) == {("x", "first"), ("silu", "second")}


# ── convolutions ────────────────────────────────────────────────────────────────────────────────────────


def test_depthwise_convolutions_are_quantised_in_int8_and_not_in_fp8() -> None:
    net = Net(x=MAPS)
    net.conv("deep", "x", 32, 32, group=32)
    assert fate(net.plan("deep"), "deep")[0]
    assert fate(net.plan(net.conv("plain", "deep", 32, 32), precision="fp8"), "deep") == (
        False,
        "there are no FP8 kernels for depthwise and grouped convolutions",
    )


def test_the_input_layer_is_quantised_although_narrow_and_others_as_narrow_are_not() -> None:
    net = Net(image=IMAGE)
    shifted = net.node("Sub", "shift", "image", net.constant("mean", 1, 3, 1, 1))
    stem = net.node("Relu", "relu", net.conv("stem", shifted, 3, 8))
    narrow = net.conv("narrow", stem, 8, 8)
    plan = net.plan(net.conv("last", narrow, 8, 32))
    assert quantised(plan) == {"stem", "last"}
    assert fate(plan, "narrow")[1] == "8 and 8 channels: fewer than 16 on both sides, and not the input layer"


def test_weights_are_scaled_along_their_output_channels() -> None:
    net = Net(x=MAPS)
    net.conv("conv", "x", 32, 64)
    net.node("ConvTranspose", "up", "conv", net.constant("up.w", 64, 32, 2, 2), strides=[2, 2])
    net.node("ConvTranspose", "grouped", "up", net.constant("g.w", 32, 8, 2, 2), group=2, strides=[2, 2])
    flat = net.node("Flatten", "flat", net.node("GlobalAveragePool", "pool", "grouped"))
    net.node("Gemm", "plain", flat, net.constant("p.w", 16, 32))
    net.node("Gemm", "turned", "plain", net.constant("t.w", 48, 32), transB=1)
    net.linear("product", "turned", 48, 64)
    plan = net.plan(net.linear("logits", "product", 64, 32))
    assert set(plan.weights) == {
        WeightEdge("conv", 1, 0), WeightEdge("up", 1, 1), WeightEdge("grouped", 1, None),
        WeightEdge("plain", 1, 1), WeightEdge("turned", 1, 0), WeightEdge("product", 1, 1),
    }  # fmt: skip


@pytest.mark.parametrize(("fill", "place"), [(0.0, ("x", "pad")), (1.0, ("pad", "c"))])
def test_nothing_stands_between_a_pad_of_zeros_and_its_convolution(
    fill: float, place: tuple[str, str]
) -> None:
    net = Net(x=MAPS)
    amounts = net.constant("amounts", value=np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    padded = net.node("Pad", "pad", "x", amounts, net.constant("fill", value=np.float32(fill)))
    assert edges(net.plan(net.conv("c", padded, 32, 32))) == {place}


def test_an_excluded_pad_stays_in_float() -> None:
    net = Net(x=("N", 32, 8, 8))
    padded = net.node("Pad", "pad", "x", net.constant("amounts", value=np.array([0, 0, 1, 1] * 2)))
    plan = net.plan(net.conv("c", padded, 32, 32), exclude=("pad",))
    assert edges(plan) == {("pad", "c")}
    assert fate(plan, "pad") == (False, "--exclude pad")


def test_a_pad_that_others_read_too_gives_them_floats() -> None:
    net = Net(x=MAPS)
    amounts = net.constant("amounts", value=np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    padded = net.node("Pad", "pad", "x", amounts, net.constant("fill", value=np.float32(0)))
    net.node("Sub", "sub", padded, net.constant("half", value=np.float32(0.5)))
    assert edges(net.plan(net.conv("c", padded, 32, 32))) == {("pad", "c")}


def test_a_weight_that_is_computed_keeps_its_layer_in_float() -> None:
    net = Net(x=MAPS, w=[32, 32, 1, 1])
    net.node("Conv", "c", "x", "w")
    assert fate(net.plan(net.conv("next", "c", 32, 32)), "c") == (False, "its weight is computed at run time")


# ── pools, concatenation, resizing ──────────────────────────────────────────────────────────────────────


def test_a_max_pool_between_quantised_layers_keeps_one_scale() -> None:
    net = Net(x=MAPS)
    pooled = net.node(
        "MaxPool", "pool", net.node("Relu", "r", net.conv("a", "x", 32, 32)), kernel_shape=[2, 2]
    )
    plan = net.plan(net.conv("b", pooled, 32, 32))
    assert ("r", "pool") in edges(plan)
    assert plan.groups == (frozenset({"r", "pool"}),)


def test_an_average_pool_is_quantised_between_quantised_layers() -> None:
    net = Net(x=MAPS)
    flat = net.node("Flatten", "flat", net.node("GlobalAveragePool", "pool", net.conv("a", "x", 32, 64)))
    plan = net.plan(net.linear("logits", net.linear("wide", flat, 64, 100), 100, 100))
    assert {("a", "pool"), ("flat", "wide")} <= edges(plan)
    assert plan.groups == ()
    net = Net(x=MAPS)
    net.node("AveragePool", "pool", net.conv("a", "x", 32, 64), kernel_shape=[2, 2])
    assert fate(net.plan("pool"), "pool") == (False, "what reads it is float")


def test_a_global_pool_reads_int8_from_a_quantised_layer_whatever_follows() -> None:
    net = Net(x=MAPS)
    relu = net.node("Relu", "relu", net.conv("a", "x", 32, 64))
    narrow = net.linear(
        "narrow", net.node("Flatten", "flat", net.node("GlobalAveragePool", "pool", relu)), 64, 10
    )
    plan = net.plan(narrow)
    assert edges(plan) == {("x", "a"), ("relu", "pool")}
    assert quantised(plan) == {"a", "pool"}
    assert fate(net.plan(narrow, "relu"), "pool")[0] is False  # the maps are wanted in float as well
    net = Net(x=MAPS)
    net.node("GlobalAveragePool", "pool", net.node("Tanh", "tanh", "x"))
    net.linear("narrow", net.node("Flatten", "flat", "pool"), 32, 10)
    assert fate(net.plan("narrow"), "pool") == (False, "what reads it is float")


@pytest.mark.parametrize("axis", [1, -3])
def test_a_concat_of_quantised_layers_has_one_scale_and_one_of_others_none(axis: int) -> None:
    net = Net(x=MAPS)
    left = net.node("Relu", "left", net.conv("a", "x", 32, 32))
    right = net.node("Relu", "right", net.conv("b", "x", 32, 32))
    plan = net.plan(net.conv("c", net.node("Concat", "joined", left, right, axis=axis), 64, 32))
    assert plan.groups == (frozenset({"left", "right", "joined"}),)
    assert {("left", "joined"), ("right", "joined"), ("joined", "c")} <= edges(plan)
    net = Net(x=MAPS)
    tanh = net.node("Tanh", "tanh", "x")
    layer, other = net.conv("a", tanh, 32, 32), net.node("Exp", "e", tanh)
    plan = net.plan(net.conv("c", net.node("Concat", "joined", layer, other, axis=1), 64, 32))
    assert not fate(plan, "joined")[0]
    assert plan.groups == ()
    assert ("joined", "c") in edges(plan)
    net = Net(x=MAPS)
    layer = net.conv("a", "x", 32, 32)
    plan = net.plan(net.conv("c", net.node("Concat", "joined", layer, layer, axis=-1), 32, 32))
    assert fate(plan, "joined") == (False, "it does not join channels")


def test_a_resize_is_quantised_only_behind_a_quantised_layer() -> None:
    net = Net(x=MAPS)
    scales = net.constant("scales", value=np.array([1, 1, 2, 2], np.float32))
    up = net.node("Resize", "up", net.conv("a", "x", 32, 32), "", scales, mode="nearest")
    plan = net.plan(net.conv("b", up, 32, 32))
    assert plan.groups == (frozenset({"a", "up"}),)
    net = Net(x=MAPS)
    scales = net.constant("scales", value=np.array([1, 1, 2, 2], np.float32))
    plan = net.plan(net.conv("b", net.node("Resize", "up", "x", "", scales, mode="linear"), 32, 32))
    assert fate(plan, "up") == (False, "what feeds it is float")


def test_pools_and_concats_behind_x_times_its_sigmoid_are_quantised_too() -> None:
    net = Net(x=MAPS)
    made = net.conv("a", "x", 32, 32)
    swish = net.node("Mul", "swish", made, net.node("Sigmoid", "gate", made))
    pooled = net.node("MaxPool", "pool", swish, kernel_shape=[3, 3], pads=[1] * 4)
    plan = net.plan(net.conv("c", net.node("Concat", "joined", swish, pooled, axis=1), 64, 32))
    assert {("swish", "pool"), ("swish", "joined"), ("pool", "joined"), ("joined", "c")} <= edges(plan)
    assert plan.groups == (frozenset({"swish", "pool", "joined"}),)
    assert fate(plan, "swish")[1].startswith("it fuses with the layer in front of it")


def test_a_concat_of_resized_layers_has_one_scale_down_to_the_layers() -> None:
    net = Net(x=MAPS)
    scales = net.constant("scales", value=np.array([1, 1, 2, 2], np.float32))
    up = net.node("Resize", "up", net.conv("a", "x", 32, 32), "", scales, mode="nearest")
    skip = net.node("ConvTranspose", "b", "x", net.constant("b.w", 32, 32, 2, 2), strides=[2, 2])
    last = net.conv("c", net.node("Concat", "joined", up, skip, axis=1), 64, 32)
    plan = net.plan(last)
    assert {("a", "up"), ("up", "joined"), ("b", "joined"), ("joined", "c")} <= edges(plan)
    assert plan.groups == (frozenset({"a", "up", "b", "joined"}),)
    assert not fate(net.plan(last, exclude=("up",)), "joined")[0]


# ── transformers ────────────────────────────────────────────────────────────────────────────────────────


def encoder(head: int = 32) -> Net:
    """An encoder layer with two heads, its norms in front."""
    width = 2 * head
    net = Net(x=["N", 12, width])

    def norm(name: str, x: str) -> str:
        scale, shift = net.constant(f"{name}.g", width), net.constant(f"{name}.o", width)
        return net.node("LayerNormalization", name, x, scale, shift)

    def heads(name: str, x: str, perm: list[int]) -> str:
        shape = net.constant(f"{name}.shape", value=np.array([0, 12, 2, head]))
        bias = net.constant(f"{name}.b", width)
        biased = net.node("Add", f"{name}.biased", net.linear(name, x, width, width), bias)
        split = net.node("Reshape", f"{name}.split", biased, shape)
        return net.node("Transpose", f"{name}.heads", split, perm=perm)

    y = norm("norm1", "x")
    q, k, v = heads("q", y, [0, 2, 1, 3]), heads("k", y, [0, 2, 3, 1]), heads("v", y, [0, 2, 1, 3])
    scale = net.constant("scale", value=np.float32(0.2))
    scores = net.node("MatMul", "scores", net.node("Mul", "q.scaled", q, scale), k)
    mixed = net.node("MatMul", "mixed", net.node("Softmax", "soft", scores, axis=-1), v)
    flat = net.constant("flat.shape", value=np.array([0, 12, width]))
    back = net.node("Transpose", "back", mixed, perm=[0, 2, 1, 3])
    out = net.linear("out", net.node("Reshape", "flat", back, flat), width, width)
    x = net.node("Add", "add1", out, "x")
    up = net.linear("up", norm("norm2", x), width, 4 * width)
    down = net.linear("down", net.node("Relu", "act", up), 4 * width, width)
    net.node("Add", "add2", down, x)
    return net


LAYERS = {"q", "k", "v", "out", "up", "down"}


def test_a_transformer_s_layers_are_quantised_and_nothing_between_them() -> None:
    plan = encoder().plan("add2")
    assert quantised(plan) == LAYERS
    assert edges(plan) == {
        ("norm1", "q"), ("norm1", "k"), ("norm1", "v"), ("flat", "out"), ("norm2", "up"), ("act", "down"),
    }  # fmt: skip
    for node in ("soft", "norm1", "add1", "scores"):
        assert not fate(plan, node)[0]


def test_fp8_quantises_the_attention_whole() -> None:
    plan = encoder().plan("add2", precision="fp8")
    assert quantised(plan) == LAYERS | {"scores", "mixed"}
    assert {("q.scaled", "scores"), ("k.heads", "scores"), ("soft", "mixed"), ("v.heads", "mixed")} <= edges(
        plan
    )
    assert plan.fixed == {"soft": 1.0}
    assert "soft" not in plan.tensors


@pytest.mark.parametrize("head", [8, 20, 264])
def test_fp8_leaves_an_attention_of_an_unfit_head_size(head: int) -> None:
    plan = encoder(head).plan("add2", precision="fp8")
    assert fate(plan, "scores") == (False, f"its head size {head} is not 16 to 256 and a multiple of 8")


def test_int8_attention_is_there_for_who_asks() -> None:
    plan = encoder().plan("add2", include=("scores",))
    assert {("q.scaled", "scores"), ("k.heads", "scores")} <= edges(plan)
    assert not fate(plan, "mixed")[0]


def test_a_weight_that_is_also_a_table_is_quantised_for_its_product_alone() -> None:
    net = Net(x=["N", 4, 32])
    table = net.constant("table", 100, 32)
    picked = net.node("Gather", "picked", table, net.constant("indices", value=np.array([1, 2, 3, 4])))
    added = net.node("Add", "added", "x", picked)
    plan = net.plan(net.node("MatMul", "logits", added, net.node("Transpose", "turned", table, perm=[1, 0])))
    assert plan.weights == (WeightEdge("logits", 1, 1),)
    assert fate(plan, "picked") == (False, "it is a look-up")


@pytest.mark.parametrize(
    ("shape", "k", "n", "reason"),
    [
        (["N", 8, 12], 12, 64, "K = 12, N = 64: below 16 there is nothing to gain"),
        (["N", 8, 64], 64, 10, "K = 64, N = 10: below 16 there is nothing to gain"),
        (["N", 8, 64], 64, 1, "it is a matrix-vector product (N = 1): bound by reading weights"),
        (["N", 1, 64], 64, 64, "it is a matrix-vector product (M = 1): bound by reading weights"),
    ],
)
def test_small_products_stay_in_float(shape: list[int | str], k: int, n: int, reason: str) -> None:
    net = Net(x=shape)
    net.linear("small", "x", k, n)
    assert fate(net.plan("small"), "small") == (False, reason)
    assert fate(net.plan("small", include=("small",)), "small")[0]


def test_int4_takes_products_whose_rows_fill_blocks() -> None:
    net = Net(x=["N", 8, 256])
    plan = net.plan(net.linear("odd", net.linear("fits", "x", 256, 96), 96, 64), precision="int4")
    assert plan.edges == ()
    assert plan.weights == (WeightEdge("fits", 1, 1),)
    assert fate(plan, "odd")[1] == "K = 96 is no multiple of the block of 128"


# ── patterns ────────────────────────────────────────────────────────────────────────────────────────────


def test_excluded_nodes_and_operators_stay_in_float() -> None:
    net = Net(x=MAPS)
    end = residual_block(net, "two", residual_block(net, "one", "x"))
    assert quantised(net.plan(end, exclude=("two.*", "Add"))) == {"one.c1", "one.c2"}
    assert fate(net.plan(end, exclude=("two.*",)), "two.c1")[1] == "--exclude two.*"


@pytest.mark.parametrize("patterns", [{"exclude": ("nothing*",)}, {"include": ("Nothing",)}])
def test_a_pattern_that_fits_no_node_is_refused(patterns: dict[str, tuple[str, ...]]) -> None:
    net = Net(x=MAPS)
    with pytest.raises(UsageError, match="no node has such a name or operator"):
        net.plan(net.conv("c", "x", 32, 32), **patterns)


def test_every_node_of_floating_point_numbers_is_decided_once() -> None:
    net = encoder()
    decided = [item.node for item in net.plan("add2").decisions]
    assert sorted(decided) == sorted(node.name for node in net.model("add2").graph.node)


def test_an_operator_without_a_rule_is_left_in_float_and_named() -> None:
    net = Net(x=MAPS)
    plan = net.plan(net.node("Einsum", "e", net.conv("c", "x", 32, 32), equation="abcd->abdc"))
    assert fate(plan, "e") == (False, "there is no rule for Einsum")


def test_a_name_is_meant_to_the_letter_too_though_it_looks_like_a_pattern() -> None:
    net = Net(x=MAPS)
    end = net.conv("blk[1]/c", net.conv("blk[0]/c", "x", 16, 16), 16, 16)
    assert quantised(net.plan(end, exclude=("blk[0]/c",))) == {"blk[1]/c"}
