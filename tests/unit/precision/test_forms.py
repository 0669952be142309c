"""Every combination of forms computes what the float graph computes, up to quantisation."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import given, settings, strategies as st

from tests.support.networks import Net, as_file, silu
from trtopt.data.feeds import seeded_source
from trtopt.precision.calibrate import QuantizationJob
from trtopt.precision.placement.draft import View
from trtopt.precision.placement.forms import CHOICES, PLAIN, Forms
from trtopt.precision.placement.place import applicable, with_choice
from trtopt.precision.qdq import qdq_format_for
from trtopt.precision.quantize import make_rest_half, output_error, peaks_for_rest, quantize_graph
from trtopt.targets import target_named

FORMS = st.fixed_dictionaries({name: st.sampled_from(choices) for name, choices in CHOICES.items()})


def gated_network(net: Net, activation: str, blocks: int) -> str:
    """Inverted bottlenecks with gates and residuals."""
    x = "x"
    for number in range(blocks):
        wide = activated(net, f"{number}.act", net.conv(f"{number}.expand", x, 32, 32, kernel=1), activation)
        deep = activated(net, f"{number}.deep", net.conv(f"{number}.dw", wide, 32, 32, group=32), activation)
        pooled = net.node("GlobalAveragePool", f"{number}.pool", deep)
        hidden = net.node("Relu", f"{number}.relu", net.conv(f"{number}.reduce", pooled, 32, 16, kernel=1))
        signal = net.node("Sigmoid", f"{number}.gate", net.conv(f"{number}.up", hidden, 16, 32, kernel=1))
        scaled = net.node("Mul", f"{number}.scaled", signal, deep)
        x = net.node("Add", f"{number}.add", net.conv(f"{number}.project", scaled, 32, 32, kernel=1), x)
    return x


def activated(net: Net, name: str, x: str, kind: str) -> str:
    return silu(net, name, x) if kind == "silu" else net.node(kind, name, x)


def encoder(net: Net, layers: int) -> str:
    """Post-norm layers with attention of four heads and GELU."""
    x = "x"
    for number in range(layers):
        heads = []
        for part in "qkv":
            flat = biased(net, f"{number}.{part}", x, 32, 32)
            shape = net.constant(f"{number}.{part}.shape", value=np.array([0, -1, 4, 8]))
            apart = net.node("Reshape", f"{number}.{part}.apart", flat, shape)
            heads.append(net.node("Transpose", f"{number}.{part}.heads", apart, perm=[0, 2, 1, 3]))
        turned = net.node("Transpose", f"{number}.turned", heads[1], perm=[0, 1, 3, 2])
        scores = net.node("MatMul", f"{number}.scores", heads[0], turned)
        mixed = net.node("MatMul", f"{number}.mixed", net.node("Softmax", f"{number}.p", scores), heads[2])
        rows = net.node("Transpose", f"{number}.rows", mixed, perm=[0, 2, 1, 3])
        joined = net.node(
            "Reshape", f"{number}.j", rows, net.constant(f"{number}.js", value=np.array([0, -1, 32]))
        )
        x = normed(
            net,
            f"{number}.n1",
            net.node("Add", f"{number}.a1", biased(net, f"{number}.o", joined, 32, 32), x),
        )
        wide = biased(net, f"{number}.up", x, 32, 64)
        root = net.node(
            "Div", f"{number}.root", wide, net.constant(f"{number}.two", value=np.float32(2**0.5))
        )
        one = net.constant(f"{number}.one", value=np.float32(1))
        shifted = net.node("Add", f"{number}.plus", net.node("Erf", f"{number}.erf", root), one)
        half = net.constant(f"{number}.half", value=np.float32(0.5))
        gelu = net.node("Mul", f"{number}.gelu", net.node("Mul", f"{number}.times", wide, shifted), half)
        x = normed(
            net, f"{number}.n2", net.node("Add", f"{number}.a2", biased(net, f"{number}.d", gelu, 64, 32), x)
        )
    return x


def biased(net: Net, name: str, x: str, k: int, n: int) -> str:
    return net.node("Add", f"{name}.b", net.linear(name, x, k, n), net.constant(f"{name}.bias", n))


def normed(net: Net, name: str, x: str) -> str:
    return net.node(
        "LayerNormalization", name, x, net.constant(f"{name}.g", 32), net.constant(f"{name}.o", 32)
    )


def check(net: Net, y: str, forms: Forms, target: str) -> None:
    """Written for the target, the graph is valid, lies near the float one, and has one pair a tensor."""
    model = as_file(net.model(y))
    source = seeded_source(model)
    qdq = qdq_format_for("int8", target)
    job = QuantizationJob("int8", forms=forms, qdq=qdq, method="max", source=source)
    made = quantize_graph(model, job)
    make_rest_half(made, target, peaks_for_rest(made.model, source), forms, is_real=True)
    onnx.checker.check_model(made.model.proto, full_check=True)
    errors, _, _ = output_error(model, made.model, source)
    assert errors[y] > 10, str(forms)
    view = View(made.model.proto)
    read = [node.input[0] for node in view.nodes if node.op_type == "QuantizeLinear"]
    activations = [name for name in read if name not in view.constants]
    assert len(activations) == len(set(activations))


@settings(max_examples=10, deadline=None)
@given(
    FORMS, st.sampled_from(["Relu", "HardSwish", "silu"]), st.integers(1, 2), st.sampled_from(["8.6", "11"])
)
def test_gated_networks(chosen: dict[str, str], activation: str, blocks: int, target: str) -> None:
    net = Net(x=["N", 32, 8, 8])
    check(net, gated_network(net, activation, blocks), Forms(**chosen), target)  # type: ignore[arg-type]


@settings(max_examples=10, deadline=None)
@given(FORMS, st.integers(1, 2), st.sampled_from(["8.6", "11"]))
def test_encoders(chosen: dict[str, str], layers: int, target: str) -> None:
    net = Net(x=["N", 6, 32])
    check(net, encoder(net, layers), Forms(**chosen), target)  # type: ignore[arg-type]


def test_a_graph_has_places_for_what_changes_it_alone() -> None:
    gated, layers = Net(x=["N", 32, 8, 8]), Net(x=["N", 6, 32])
    first = View(gated.model(gated_network(gated, "HardSwish", 1)))
    assert applicable(first, target_named("8.6")) == {"gates": ("int8",), "activation": ("int8",)}
    found = applicable(View(layers.model(encoder(layers, 2))), target_named("8.6"))
    assert found == {
        name: choices[1:] for name, choices in CHOICES.items() if name not in ("gates", "activation")
    }
    strong = applicable(View(layers.model("1.n2")), target_named("11"))
    assert found.keys() - strong.keys() == {"gelu", "rest"}
    assert with_choice(PLAIN, "gates", "int8") == Forms(gates="int8")
