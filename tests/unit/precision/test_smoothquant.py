"""SmoothQuant moves factors without changing the function, where it can, and says where it cannot."""

from __future__ import annotations

import numpy as np
import onnx
from nets import Net, as_file

from trtopt.precision.calibration.run import copied
from trtopt.precision.placement.view import View
from trtopt.precision.runs import open_model
from trtopt.precision.smoothquant import find, smooth


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
    places, declined = find(View(model.proto))
    assert [place.tensor for place in places] == ["norm", "norm2"]
    assert declined == []
    feed = {"x": np.random.default_rng(0).standard_normal((3, 4, 32)).astype(np.float32)}
    before = open_model(model).run(feed)
    changed = copied(model)
    places, _ = find(View(changed.proto))
    smooth(changed, places, {"norm": np.ones(32, np.float32), "norm2": 3 * loud}, alpha=0.5)
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
    places, declined = find(View(model.proto))
    assert declined == []
    smooth(model, places, {"norm": np.linspace(1.0, 50.0, 32, dtype=np.float32)}, alpha=0.5)
    onnx.checker.check_model(model.proto, full_check=True)
    assert [node.op_type for node in model.proto.graph.node].count("Mul") == 1
    after = open_model(model).run(feed)["add"]
    assert np.abs(after - before).max() < 1e-5 * np.abs(before).max()


def test_a_norm_that_is_an_output_or_that_no_weight_reads_is_left_alone() -> None:
    net = Net(x=["N", 4, 32])
    y = norm(net, "norm", "x")
    net.node("Add", "add", net.linear("fc", y, 32, 32), norm(net, "lone", "x"))
    places, declined = find(View(net.model("norm", "add")))
    assert places == []
    assert declined == [
        "norm: its result is an output",
        "lone: no layer with weights reads it, or it normalises several axes",
    ]
