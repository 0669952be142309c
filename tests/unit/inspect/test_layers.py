import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.support.inspected import graph, layer, node, profiled, stored, times, zeros
from trtopt.inspect.graph import Graph
from trtopt.inspect.inspector import EngineLayer, read_inspector
from trtopt.inspect.layers import Mapped, join, map_layers, ran_dtype
from trtopt.inspect.profile import grouped, kind_of, module_of
from trtopt.records import LayerPass, LayerTime

GRAPH = graph(
    node("Conv", "x w", "a", "conv"),
    node("Relu", "a", "b", "relu"),
    node("Exp", "b", "c", "exp"),
    node("Log", "c", "y", "log"),
    inputs={"x": (1, 3, 8, 8)},
    weights={"w": zeros(4, 3, 1, 1)},
)
LAYERS = (
    layer("Reformatting CopyNode for Input Tensor 0 to conv + relu", "Reformat", outputs="q:float16"),
    layer("conv + relu", weights_dtype="float16", weights_count=12),
    layer("exp", "PointWiseV2", inputs="b:float16"),
    layer("{ForeignNode[log...log]}", "Myelin", inputs="c", outputs="y"),
)
MS = dict(zip((one.name for one in LAYERS), (1.0, 4.0, 2.0, 3.0), strict=True))

# ── times and layers ────────────────────────────────────────────────────────────────────────────────────


def test_times_are_joined_by_name_and_never_by_position() -> None:
    backwards = dict(reversed(MS.items()))
    layers, coverage = join(LAYERS, times(**backwards), GRAPH)
    assert {one.name: one.ms for one in layers} == MS
    assert [one.name for one in layers] == [one.name for one in LAYERS]
    assert (coverage.unmatched_times, coverage.unmatched_layers) == ((), ())


def test_a_layer_carries_its_nodes_types_cost_and_spread() -> None:
    runs = LayerPass(runs=11, layers=(LayerTime(name="conv + relu", ms=[float(n) for n in range(11)]),))
    found = {one.name: one for one in join(LAYERS, runs, GRAPH)[0]}
    conv = found["conv + relu"]
    assert (conv.ms, conv.low_ms, conv.high_ms) == (5.0, 1.0, 9.0)
    assert (conv.onnx_nodes, conv.onnx_ops, conv.mapped_by) == (("conv", "relu"), ("Conv", "Relu"), "name")
    assert (conv.dtype, conv.requested_dtype, conv.weights_count) == ("float16", "float32", 12)
    assert conv.cost is not None
    assert conv.cost.flops == 2 * 4 * 64 * 3 + 4 * 64
    reformat = found[LAYERS[0].name]
    assert reformat.is_reformat
    assert (reformat.dtype, reformat.requested_dtype, reformat.cost) == ("float16", "", None)


def test_shares_of_time_that_are_mapped_and_that_cannot_be_split() -> None:
    _, coverage = join(LAYERS, times(**MS), GRAPH)
    assert coverage.time_mapped == 1.0
    assert coverage.nodes_mapped == 1.0
    assert coverage.time_opaque == pytest.approx(0.3)
    stranger = {"__mye12": 10.0}
    _, coverage = join(LAYERS, times(**MS, **stranger), GRAPH)
    assert coverage.time_mapped == pytest.approx(0.5)


def test_layers_of_one_name_share_one_time() -> None:
    twice = (layer("exp"), layer("exp"), layer("log"))
    layers, coverage = join(twice, times(exp=2.0, log=1.0), GRAPH)
    assert [one.ms for one in layers] == [2.0, None, 1.0]
    assert coverage.unmatched_layers == ()


def test_weights_count_at_one_layer_though_several_name_their_node() -> None:
    cast = layer("__myl_Cast", "kgen", onnx="conv", inputs="a:float32")
    gemm = layer("__myl_Fc", "gemm", onnx="conv relu", tactic="sm80_xmma_gemm_f16f16_f16f32_f32_tn_n")
    hidden = layer("{ForeignNode[conv...relu]}", "Myelin", onnx="conv")
    layers, _ = join((cast, hidden, gemm), None, GRAPH)
    assert {one.name: one.weights_count for one in layers} == {cast.name: 0, hidden.name: 0, gemm.name: 12}


def test_what_only_one_of_the_two_knows_is_reported() -> None:
    layers, coverage = join(LAYERS, times(**{"conv + relu": 4.0, "log": 1.0}), GRAPH)
    assert coverage.unmatched_times == ("log",)
    assert coverage.unmatched_layers == (LAYERS[0].name, "exp", LAYERS[3].name)
    assert layers[-1].name == "log"
    assert layers[-1].onnx_nodes == ("log",)


def test_without_a_description_names_alone_are_mapped() -> None:
    layers, coverage = join((), times(**MS), GRAPH)
    assert {one.name: one.ms for one in layers} == MS
    assert coverage.nodes_mapped == 1.0
    assert coverage.unmatched_layers == ()


def test_without_times_the_layers_are_reported_all_the_same() -> None:
    layers, coverage = join(LAYERS, None, GRAPH)
    assert [one.ms for one in layers] == [None] * 4
    assert (coverage.time_mapped, coverage.unmatched_layers) == (0.0, ())


@given(st.lists(st.text(min_size=1), unique=True, max_size=8))
def test_names_of_any_characters_are_kept(names: list[str]) -> None:
    layers, _ = join((), times(**dict.fromkeys(names, 1.0)), GRAPH)
    assert [one.name for one in layers] == names


def test_thousands_of_layers_are_joined() -> None:
    many = 5000
    steps = [node("Relu", f"t{i}", f"t{i + 1}", f"/block{i % 10}/relu{i}") for i in range(many)]
    made = graph(*steps, inputs={"t0": (4,)}, outputs=(f"t{many}",))
    described = tuple(layer(step.name, "PointWise") for step in steps)
    layers, coverage = join(described, times(**{step.name: 1.0 for step in steps}), made)
    assert (len(layers), coverage.nodes_mapped) == (many, 1.0)


# ── types ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("tactic", "dtype"),
    [
        ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize64x64x64", "float16"),
        ("sm80_xmma_fprop_implicit_gemm_i8i8_i8i32_f32_nchw_vect_c_32", "int8"),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n", "float8_e4m3fn"),
        ("sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "bfloat16"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n", "float32"),
        ("ampere_scudnn_128x32_relu_small_nn_v1", "float32"),
        ("0x00000000000003e8", ""),
        ("", ""),
    ],
)
def test_a_tactics_name_tells_its_type(tactic: str, dtype: str) -> None:
    assert ran_dtype(layer("n", tactic=tactic)) == dtype


def test_a_type_comes_from_the_weights_then_the_tactic_then_the_tensors() -> None:
    whole = layer("n", tactic="x_i8i8_x", weights_dtype="float16", inputs="ids:int64 a:float32")
    assert ran_dtype(whole) == "float16"
    assert ran_dtype(layer("n", tactic="x_i8i8_x", inputs="a:float32")) == "int8"
    assert ran_dtype(layer("n", inputs="ids:int64 a:float32")) == "float32"
    assert ran_dtype(layer("n", inputs="ids:int64", outputs="b:float16")) == "float16"
    assert ran_dtype(layer("n", inputs="ids:int64")) == "int64"
    assert ran_dtype(whole, is_opaque=True) == ""


def test_every_convolution_of_the_real_int8_resnet_ran_in_int8_and_the_classifier_did_not() -> None:
    layers = read_inspector(stored("r50_mo_int8"))
    types = [ran_dtype(one) for one in layers if one.weights_count]
    assert (types.count("int8"), types.count("float32") + types.count("float16")) == (53, 1)


# ── groups ──────────────────────────────────────────────────────────────────────────────────────────────


def test_layers_are_grouped_with_the_longest_group_first() -> None:
    layers, _ = join(LAYERS, times(**MS), GRAPH)
    assert [(one.key, one.layers, one.ms) for one in grouped(layers, kind_of)] == [
        ("CaskConvolution", 1, 4.0),
        ("Myelin", 1, 3.0),
        ("PointWiseV2", 1, 2.0),
        ("reformat", 1, 1.0),
    ]
    found = grouped(layers, lambda layer: layer.dtype or "unknown")
    assert [(one.key, one.share) for one in found] == [("float16", 0.7), ("unknown", 0.3)]


def test_a_module_is_the_path_that_a_layers_nodes_share() -> None:
    assert (
        module_of(["/encoder/layer.0/attention/MatMul", "/encoder/layer.0/dense/Add"]) == "/encoder/layer.0"
    )
    assert module_of(["/a/b/c/d/e/f/Relu"]) == "/a/b/c/d"
    assert module_of(["layer4.2.conv2/Conv", "layer4.2.relu/Relu_1"]) == "/layer4.2"
    assert module_of(["layer4.0.downsample.0/Conv"]) == "/layer4.0.downsample.0"
    assert module_of(["model.layers.11.self_attn.q_proj.in/MatMul"]) == "/model.layers.11.self_attn.q_proj"
    assert module_of(["Conv_0"]) == module_of(["Conv.1"]) == module_of(["/Conv", "a/Conv"]) == "/"
    assert module_of([]) == ""
    layers = [profiled("1", "/a/b/x"), profiled("2", "/a/b/y", 2.0), profiled("3", "", 4.0)]
    found = grouped(layers, lambda layer: module_of(layer.working_nodes))
    assert [(one.key, one.ms) for one in found] == [("", 4.0), ("/a/b", 3.0)]


def test_quantising_takes_no_layer_out_of_its_module() -> None:
    quantised = profiled("q + conv", "w_QuantizeLinear /a/b/Conv", onnx_ops=("QuantizeLinear", "Conv"))
    alone = profiled("q", "w_QuantizeLinear", onnx_ops=("QuantizeLinear",))
    assert {module_of(one.working_nodes) for one in (quantised, alone)} == {"/a/b", "/"}


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=20))
def test_groups_share_all_of_the_time(ms: list[float]) -> None:
    layers = [profiled(str(n), ms=value, kind=f"k{n % 3}") for n, value in enumerate(ms)]
    groups = grouped(layers, kind_of)
    assert sum(one.layers for one in groups) == len(ms)
    assert sum(one.ms for one in groups) == pytest.approx(sum(ms))
    assert sum(one.share for one in groups) == pytest.approx(1.0 if sum(ms) else 0.0)


def mapped(made: Graph, *layers: EngineLayer, by_tensors: bool = False) -> dict[str, Mapped]:
    return map_layers(layers, made, by_tensors=by_tensors)


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
    description = (
        EngineLayer(name=name, kind="Myelin", inputs=layer("", inputs="mask ids").inputs, outputs=_one(ours)),
        EngineLayer(name=reformat, kind="Reformat", inputs=_one(ours), outputs=_one("h")),
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
    known = dict.fromkeys(node for one in description for node in one.onnx_nodes)
    known |= dict.fromkeys(one.name for one in description if one.name.endswith("Linear"))
    steps = [node("Relu", f"t{i}", f"t{i + 1}", each) for i, each in enumerate(known)]
    found = map_layers(description, graph(*steps, inputs={"t0": (1,)}, outputs=(f"t{len(known)}",)))
    assert [name for name, one in found.items() if not one.nodes] == []
    assert {node.name for one in found.values() for node in one.nodes} == known.keys()
    reformats = [one for one in found.values() if one.is_reformat]
    assert len(reformats) == {"r50_fp16": 3, "r50_mo_int8": 1}[name]
