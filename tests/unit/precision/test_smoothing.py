"""Smoothing moves factors without changing the function, where it can and where it helps."""

from __future__ import annotations

import numpy as np
import onnx

from tests.support.networks import Net, as_file
from trtopt.precision.calibrate import copy_model
from trtopt.precision.compare import open_model
from trtopt.precision.observe import ChannelValues, PerChannel
from trtopt.precision.placement.draft import View
from trtopt.precision.smoothing import WORTHWHILE, by_error, find, smooth


def seen(peaks: np.ndarray) -> ChannelValues:
    return ChannelValues(peaks.astype(np.float32), (peaks / 4.0) ** 2)


def norm(net: Net, name: str, x: str, width: int = 32) -> str:
    scale, shift = net.constant(f"{name}.g", width), net.constant(f"{name}.o", width)
    return net.node("LayerNormalization", name, x, scale, shift)


def test_the_function_stays_and_outlying_channels_shrink() -> None:
    net = Net(x=["N", 4, 32])
    y = norm(net, "norm", "x")
    net.linear("left", y, 32, 48)
    weight = net.constant("right.w", 48, 32)
    flat = net.node("Reshape", "flat", y, net.constant("s", value=np.array([-1, 32])))
    net.node("Gemm", "right", flat, weight, transB=1)
    other = net.linear("other", norm(net, "norm2", "x"), 32, 16)
    model = as_file(net.model("left", "right", other))
    gamma = next(item for item in model.proto.graph.initializer if item.name == "norm2.g")
    loud = np.ones(32, np.float32)
    loud[5] = 100.0
    gamma.raw_data = loud.tobytes()
    assert [place.tensor for place in find(View(model.proto))] == ["norm", "norm2"]
    feed = {"x": np.random.default_rng(0).standard_normal((3, 4, 32)).astype(np.float32)}
    before = open_model(model).run(feed)
    changed = copy_model(model)
    smooth(changed, find(View(changed.proto)), {"norm": {3: 2.0}, "norm2": {5: 10.0}})
    after = open_model(changed).run(feed)
    for name, array in before.items():
        assert np.abs(after[name] - array).max() < 1e-5 * np.abs(array).max()
    smoothed = next(item for item in changed.proto.graph.initializer if "norm2.g_smoothed" in item.name)
    values = np.abs(np.frombuffer(smoothed.raw_data, np.float32))
    assert values.max() / values.min() < 25


def test_a_residual_reads_the_norm_as_it_was() -> None:
    net = Net(x=["N", 4, 32])
    y = norm(net, "norm", "x")
    net.node("Add", "add", net.linear("fc", y, 32, 32), y)
    model = as_file(net.model("add"))
    feed = {"x": np.random.default_rng(0).standard_normal((3, 4, 32)).astype(np.float32)}
    before = open_model(model).run(feed)["add"]
    smooth(model, find(View(model.proto)), {"norm": {channel: 1.0 + channel for channel in range(32)}})
    onnx.checker.check_model(model.proto, full_check=True)
    assert [node.op_type for node in model.proto.graph.node].count("Mul") == 1
    after = open_model(model).run(feed)["add"]
    assert np.abs(after - before).max() < 1e-5 * np.abs(before).max()


def test_a_norm_that_is_an_output_or_that_no_weight_reads_is_left_alone() -> None:
    net = Net(x=["N", 4, 32])
    y = norm(net, "norm", "x")
    net.node("Add", "add", net.linear("fc", y, 32, 32), norm(net, "lone", "x"))
    assert find(View(net.model("norm", "add"))) == []


def attention(net: Net, x: str, is_swapped: bool = False) -> str:
    """Four heads of eight, joined again: by their order, or (`is_swapped`) by a reshape that mixes rows."""
    split, joined = np.array([0, -1, 4, 8]), np.array([0, -1, 16] if is_swapped else [0, -1, 32])
    parts = []
    for name in "qkv":
        bias = net.constant(f"{name}.b", 32)
        flat = net.node("Add", f"{name}.biased", net.linear(name, x, 32, 32), bias)
        apart = net.node("Reshape", f"{name}.apart", flat, net.constant(f"{name}.s", value=split))
        parts.append(net.node("Transpose", f"{name}.heads", apart, perm=[0, 2, 1, 3]))
    turned = net.node("Transpose", "turned", parts[1], perm=[0, 1, 3, 2])
    shares = net.node("Softmax", "softmax", net.node("MatMul", "scores", parts[0], turned), axis=-1)
    rows = net.node("Transpose", "rows", net.node("MatMul", "mixed", shares, parts[2]), perm=[0, 2, 1, 3])
    return net.node("Reshape", "context", rows, net.constant("joined", value=joined))


def test_v_takes_the_factors_of_what_attentions_projection_reads() -> None:
    net = Net(x=["N", 4, 32])
    net.linear("projection", attention(net, "x"), 32, 32)
    assert_smoothed(net, "projection", "context")


def test_heads_that_are_joined_in_another_order_are_left_alone() -> None:
    net = Net(x=["N", 4, 32])
    net.linear("projection", attention(net, "x", is_swapped=True), 16, 32)
    assert find(View(net.model("projection"))) == []


def test_the_linear_side_of_a_gated_product_takes_the_factors() -> None:
    for order in ((0, 1), (1, 0)):
        net = Net(x=["N", 4, 32])
        gate = net.linear("gate", "x", 32, 48)
        silu = net.node("Mul", "silu", gate, net.node("Sigmoid", "sigmoid", gate))
        sides = (silu, net.linear("up", "x", 32, 48))
        product = net.node("Mul", "product", sides[order[0]], sides[order[1]])
        net.linear("down", product, 48, 32)
        assert_smoothed(net, "down", "product")


def assert_smoothed(net: Net, y: str, tensor: str) -> None:
    """The factors go into weights: the graph has the same nodes and computes the same."""
    model = as_file(net.model(y))
    feed = {"x": np.random.default_rng(0).standard_normal((3, 4, 32)).astype(np.float32)}
    before = open_model(model).run(feed)[y]
    places = find(View(model.proto))
    assert [place.tensor for place in places] == [tensor]
    names = [node.name for node in model.proto.graph.node]
    smooth(model, places, {tensor: {channel: 1.0 + channel for channel in range(32)}})
    assert [node.name for node in model.proto.graph.node] == names
    after = open_model(model).run(feed)[y]
    assert np.abs(after - before).max() < 1e-5 * np.abs(before).max()


def test_nothing_is_put_between_gelu_and_what_reads_it() -> None:
    net = Net(x=["N", 4, 32])
    wide = net.linear("up", "x", 32, 48)
    root = net.node("Div", "root", wide, net.constant("two", value=np.float32(2**0.5)))
    shifted = net.node("Add", "one", net.node("Erf", "erf", root), net.constant("1", value=np.float32(1)))
    gelu = net.node(
        "Mul", "gelu", net.node("Mul", "times", wide, shifted), net.constant("h", value=np.float32(0.5))
    )
    net.linear("down", gelu, 48, 32)
    assert find(View(net.model("down"))) == []


def rounded(values: np.ndarray, amax: np.ndarray) -> np.ndarray:
    scale = amax / 127
    return np.rint(values / scale) * scale


def int8_error(x: np.ndarray, w: np.ndarray, factors: dict[int, float]) -> float:
    """The mean squared error of the product with one scale for x and one for each column of w."""
    whole = np.ones(x.shape[1])
    whole[list(factors)] = list(factors.values())
    left, right = x / whole, w * whole[:, None]
    product = rounded(left, np.abs(left).max()) @ rounded(right, np.abs(right).max(axis=0))
    return float(np.mean((product - x @ w) ** 2))


def test_the_cap_for_outlying_channels_is_the_one_that_errs_least() -> None:
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((4096, 64)), rng.standard_normal((64, 48)) / 8
    x[::64, 5] *= 60
    found = PerChannel()
    found.visit("x", x[:1000], 0)
    found.visit("x", x[1000:], 1000)
    factors, left = by_error(found.values("x"), [w])  # type: ignore[misc]
    assert max(factors, key=factors.__getitem__) == 5
    before, after = int8_error(x, w, {}), int8_error(x, w, factors)
    assert abs(after / before / left - 1) < 0.2
    for other in (2.0, 0.5):
        assert int8_error(x, w, {5: factors[5] * other}) > 0.95 * after


def test_channels_alike_are_left_as_they_are() -> None:
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((1024, 64)), rng.standard_normal((64, 48))
    found = PerChannel()
    found.visit("x", x, 0)
    assert by_error(found.values("x"), [w]) is None
    assert by_error(seen(np.zeros(64)), [w]) is None
    assert WORTHWHILE < 1
