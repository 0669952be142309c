import numpy as np
import pytest

from tests.support.inspected import graph, layer, node, stored, zeros
from trtopt.inspect.graph import Graph
from trtopt.inspect.inspector import read_inspector
from trtopt.inspect.mapping import Mapped, map_layers
from trtopt.records import EngineDescription, EngineLayer


def mapped(made: Graph, *layers: EngineLayer, by_tensors: bool = False) -> dict[str, Mapped]:
    return map_layers(EngineDescription(layers=layers), made, by_tensors=by_tensors)


def names(found: Mapped) -> tuple[str, ...]:
    return tuple(one.name for one in found.nodes)


CHAIN = graph(
    node("Conv", "x w", "a", "conv"),
    node("Relu", "a", "b", "relu"),
    node("Mul", "b b", "c", "mul + add"),
    node("Add", "c b", "d", "add"),
    node("Sigmoid", "d", "y", ""),
    inputs={"x": (1, 3, 8, 8)},
    weights={"w": zeros(4, 3, 3, 3)},
)

# ── names and metadata ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "covered"),
    [
        ("conv", ("conv",)),
        ("conv + relu", ("conv", "relu")),
        ("relu + conv", ("conv", "relu")),
        ("conv || relu", ("conv", "relu")),
        ("w + w_QuantizeLinear + conv + relu", ("conv", "relu")),
        ("relu + mul + add", ("relu", "mul + add")),
        ("mul + add + add", ("mul + add", "add")),
        ("PWN(relu)", ("relu",)),
        ("PWN(PWN(relu), PWN(mul + add, add))", ("relu", "mul + add", "add")),
        ("conv + PWN(relu)", ("conv", "relu")),
        ("reshape_before_relu", ("relu",)),
        ("reshape_after_conv + relu", ("conv", "relu")),
        ("unsqueeze_node_after_conv", ("conv",)),
        ("copied_squeeze_after_conv", ("conv",)),
        ("node_of_y", ("node_of_y",)),
        ("conv [profile 1]", ("conv",)),
    ],
)
def test_a_layers_name_tells_its_nodes(name: str, covered: tuple[str, ...]) -> None:
    found = mapped(CHAIN, layer(name))[name]
    assert (names(found), found.by, found.is_opaque, found.is_reformat) == (covered, "name", False, False)


@pytest.mark.parametrize(
    "name", ["", "(Unnamed Layer* 5) [Shuffle]", "PWN()", " + ", "PWN((", "{ForeignNode[]}"]
)
def test_a_name_of_tensorrts_own_tells_nothing(name: str) -> None:
    found = mapped(CHAIN, layer(name))[name]
    assert (names(found), found.by) == ((), "nothing")


def test_metadata_goes_before_the_name_and_what_the_name_adds_is_kept() -> None:
    found = mapped(CHAIN, layer("__myl_1", "kgen", onnx="relu conv"), layer("conv + add", onnx="conv"))
    assert (names(found["__myl_1"]), found["__myl_1"].by) == (("conv", "relu"), "metadata")
    assert (names(found["conv + add"]), found["conv + add"].by) == (("conv", "add"), "metadata")


def test_a_reformat_carries_the_nodes_of_the_layer_that_it_serves() -> None:
    reformat = "Reformatting CopyNode for Input Tensor 0 to conv + relu"
    found = mapped(CHAIN, layer(reformat, "Reformat"), layer("conv + relu"))
    assert found[reformat].is_reformat
    assert names(found[reformat]) == ("conv", "relu")
    assert not found["conv + relu"].is_reformat


def test_a_quantize_node_that_runs_as_a_reformat_is_a_node_of_the_file() -> None:
    made = graph(
        node("QuantizeLinear", "x s", "q", "x_Quantize"),
        node("DequantizeLinear", "q s", "y", "x_Dequantize"),
        inputs={"x": (4,)},
        weights={"s": zeros()},
    )
    found = mapped(made, layer("x_Quantize", "Reformat"), layer("x_Dequantize", "Reformat"))
    assert [(names(one), one.is_reformat) for one in found.values()] == [
        (("x_Quantize",), False),
        (("x_Dequantize",), False),
    ]


# ── opaque layers ───────────────────────────────────────────────────────────────────────────────────────


def encoder() -> Graph:
    return graph(
        node("Cast", "mask", "m", "/m/Cast", to=1),
        node("Gather", "table ids", "e", "/m/Gather"),
        node("Add", "e m", "s", "/m/Add"),
        node("Softmax", "s", "h", "/m/Softmax"),
        node("Relu", "h", "y", "/m/tail"),
        inputs={"ids": (1,), "mask": (1, 4)},
        weights={"table": zeros(9, 4)},
    )


def test_a_foreign_node_hides_all_from_its_outputs_back_to_its_inputs() -> None:
    name = "{ForeignNode[/m/Cast.../m/Softmax]}"
    hidden = layer(name, "Myelin", inputs="mask ids", outputs="h")
    found = mapped(encoder(), hidden, layer("/m/tail"))
    assert names(found[name]) == ("/m/Cast", "/m/Gather", "/m/Add", "/m/Softmax")
    assert (found[name].by, found[name].is_opaque) == ("graph", True)


def test_it_ends_where_another_layer_begins() -> None:
    name = "{ForeignNode[/m/Add.../m/Softmax]}"
    hidden = layer(name, "Myelin", inputs="inner0 inner1", outputs="h")
    found = mapped(encoder(), hidden, layer("/m/Gather"), layer("/m/Cast"))
    assert names(found[name]) == ("/m/Add", "/m/Softmax")


def test_the_output_may_have_been_reformatted() -> None:
    name = "{ForeignNode[/m/Cast...(Unnamed Layer* 9) [Normalization]]}"
    ours = f"Reformatted Output Tensor 0 to {name}"
    reformat = f"Reformatting CopyNode for Output Tensor 0 to {name}"
    description = EngineDescription(
        layers=(
            EngineLayer(
                name=name, kind="Myelin", inputs=layer("", inputs="mask ids").inputs, outputs=_one(ours)
            ),
            EngineLayer(name=reformat, kind="Reformat", inputs=_one(ours), outputs=_one("h")),
        )
    )
    found = map_layers(description, encoder())
    assert names(found[name]) == ("/m/Cast", "/m/Gather", "/m/Add", "/m/Softmax")
    assert names(found[reformat]) == names(found[name])
    assert found[reformat].is_reformat


def _one(name: str) -> tuple:  # type: ignore[type-arg]
    from trtopt.records import EngineTensor

    return (EngineTensor(name=name),)


@pytest.mark.parametrize(
    ("name", "covered"),
    [
        ("{ForeignNode[/m/Gather.../m/Softmax]}", ("/m/Gather", "/m/Add", "/m/Softmax")),
        ("{ForeignNode[/m/Add...(Unnamed Layer* 3)]}", ("/m/Add", "/m/Softmax")),
        ("{ForeignNode[who.../m/Softmax]}", ()),
    ],
)
def test_without_known_tensors_it_is_what_lies_between_and_nowhere_else(
    name: str, covered: tuple[str, ...]
) -> None:
    hidden = layer(name, "Myelin", inputs="inner0", outputs="inner1")
    found = mapped(encoder(), hidden, layer("/m/tail"), layer("/m/Cast"))
    assert names(found[name]) == covered


# ── ONNX Runtime's layers ───────────────────────────────────────────────────────────────────────────────


def test_a_convolution_in_blocks_has_the_sum_and_activation_that_it_took_and_nothing_else() -> None:
    made = graph(
        node("Conv", "x w", "a", "conv1"),
        node("Relu", "a", "r", "relu1"),
        node("Conv", "r v", "b", "conv2"),
        node("Add", "b r", "s", "add"),
        node("Relu", "s", "t", "relu2"),
        node("Conv", "t v", "c", "conv3"),
        node("Sigmoid", "c", "g", "gate"),
        node("Mul", "c g", "y", "mul"),
        inputs={"x": (1, 3, 8, 8)},
        weights={"w": zeros(4, 3, 1, 1), "v": zeros(4, 4, 1, 1)},
    )
    layers = [
        layer("r_nchwc", "Conv", inputs="x reorder", outputs="token_0", activation="Relu"),
        layer("b_nchwc", "Conv", inputs="token_0 reorder r token_0", outputs="token_1", activation="Relu"),
        layer("c_nchwc", "Conv", inputs="token_1 reorder", outputs="token_2"),
        layer("mul/QuickGeluFusion/", "QuickGelu", inputs="token_2", outputs="token_3"),
        layer("ReorderOutput", "ReorderOutput", inputs="token_3", outputs="y"),
    ]
    found = mapped(made, *layers, by_tensors=True)
    covered = [names(found[one.name]) for one in layers[:4]]
    assert covered == [("conv1", "relu1"), ("conv2", "add", "relu2"), ("conv3",), ("gate", "mul")]
    assert found["ReorderOutput"].is_reformat


def test_what_its_tensors_do_not_show_is_not_a_layers() -> None:
    made = graph(
        node("Relu", "x", "a", "relu"),
        node("Sigmoid", "a", "b", "sigmoid"),
        node("Tanh", "b", "y", "tanh"),
        inputs={"x": (1, 4)},
    )
    found = mapped(made, layer("tanh", "Tanh", inputs="unheard-of", outputs="y"), by_tensors=True)
    assert names(found["tanh"]) == ("tanh",)


def test_products_with_scales_and_slices_in_one_split_lie_between_their_tensors() -> None:
    made = graph(
        node("MatMul", "x w", "m", "product"),
        node("Div", "m d", "q", "scale"),
        node("Slice", "q zero two", "s", "first"),
        node("Slice", "q two four", "y", "second"),
        inputs={"x": (4, 4)},
        outputs=("s", "y"),
        weights={"w": zeros(4, 4), "d": zeros(1)}
        | {name: np.array([at]) for name, at in (("zero", 0), ("two", 2), ("four", 4))},
    )
    layers = [
        layer(
            "product/MatMulScaleFusion/", "FusedMatMul", inputs="x w", outputs="InsertedPrecisionFreeCast_q"
        ),
        layer("second/GatherSliceToSplitFusion", "Split", inputs="q splits", outputs="s y"),
    ]
    found = mapped(made, *layers, by_tensors=True)
    assert [names(one) for one in found.values()] == [("product", "scale"), ("first", "second")]


# ── real files ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["r50_fp16", "r50_mo_int8"])
def test_every_layer_of_a_real_resnet_finds_nodes(name: str) -> None:
    description = read_inspector(stored(name))
    known = dict.fromkeys(node for one in description.layers for node in one.onnx_nodes)
    known |= dict.fromkeys(one.name for one in description.layers if one.name.endswith("Linear"))
    steps = [node("Relu", f"t{i}", f"t{i + 1}", each) for i, each in enumerate(known)]
    found = map_layers(description, graph(*steps, inputs={"t0": (1,)}, outputs=(f"t{len(known)}",)))
    assert [name for name, one in found.items() if not one.nodes] == []
    assert {node.name for one in found.values() for node in one.nodes} == known.keys()
    reformats = [one for one in found.values() if one.is_reformat]
    assert len(reformats) == {"r50_fp16": 3, "r50_mo_int8": 1}[name]
