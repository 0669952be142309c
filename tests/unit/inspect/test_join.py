import pytest
from hypothesis import given, strategies as st

from tests.support.inspected import graph, layer, node, profiled, stored, times, zeros
from trtopt.inspect.inspector import read_inspector
from trtopt.inspect.join import join, ran_dtype
from trtopt.inspect.profile import by_dtype, by_kind, by_module, by_node, module_of
from trtopt.records import EngineDescription, LayerPass, LayerTime

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
DESCRIPTION = EngineDescription(layers=LAYERS)
MS = dict(zip((one.name for one in LAYERS), (1.0, 4.0, 2.0, 3.0), strict=True))

# ── times and layers ────────────────────────────────────────────────────────────────────────────────────


def test_times_are_joined_by_name_and_never_by_position() -> None:
    backwards = dict(reversed(MS.items()))
    layers, coverage = join(DESCRIPTION, times(**backwards), GRAPH)
    assert {one.name: one.ms for one in layers} == MS
    assert [one.name for one in layers] == [one.name for one in LAYERS]
    assert (coverage.unmatched_times, coverage.unmatched_layers) == ((), ())


def test_a_layer_carries_its_nodes_types_cost_and_spread() -> None:
    runs = LayerPass(runs=11, layers=(LayerTime(name="conv + relu", ms=[float(n) for n in range(11)]),))
    found = {one.name: one for one in join(DESCRIPTION, runs, GRAPH)[0]}
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
    _, coverage = join(DESCRIPTION, times(**MS), GRAPH)
    assert coverage.time_mapped == 1.0
    assert coverage.nodes_mapped == 1.0
    assert coverage.time_opaque == pytest.approx(0.3)
    stranger = {"__mye12": 10.0}
    _, coverage = join(DESCRIPTION, times(**MS, **stranger), GRAPH)
    assert coverage.time_mapped == pytest.approx(0.5)


def test_layers_of_one_name_share_one_time() -> None:
    twice = EngineDescription(layers=(layer("exp"), layer("exp"), layer("log")))
    layers, coverage = join(twice, times(exp=2.0, log=1.0), GRAPH)
    assert [one.ms for one in layers] == [2.0, None, 1.0]
    assert coverage.unmatched_layers == ()


def test_weights_count_at_one_layer_though_several_name_their_node() -> None:
    cast = layer("__myl_Cast", "kgen", onnx="conv", inputs="a:float32")
    gemm = layer("__myl_Fc", "gemm", onnx="conv relu", tactic="sm80_xmma_gemm_f16f16_f16f32_f32_tn_n")
    hidden = layer("{ForeignNode[conv...relu]}", "Myelin", onnx="conv")
    layers, _ = join(EngineDescription(layers=(cast, hidden, gemm)), None, GRAPH)
    assert {one.name: one.weights_count for one in layers} == {cast.name: 0, hidden.name: 0, gemm.name: 12}


def test_what_only_one_of_the_two_knows_is_reported() -> None:
    layers, coverage = join(DESCRIPTION, times(**{"conv + relu": 4.0, "log": 1.0}), GRAPH)
    assert coverage.unmatched_times == ("log",)
    assert coverage.unmatched_layers == (LAYERS[0].name, "exp", LAYERS[3].name)
    assert layers[-1].name == "log"
    assert layers[-1].onnx_nodes == ("log",)


def test_without_a_description_names_alone_are_mapped() -> None:
    layers, coverage = join(None, times(**MS), GRAPH)
    assert {one.name: one.ms for one in layers} == MS
    assert coverage.nodes_mapped == 1.0
    assert coverage.unmatched_layers == ()


def test_without_times_the_layers_are_reported_all_the_same() -> None:
    layers, coverage = join(DESCRIPTION, None, GRAPH)
    assert [one.ms for one in layers] == [None] * 4
    assert (coverage.time_mapped, coverage.unmatched_layers) == (0.0, ())


@given(st.lists(st.text(min_size=1), unique=True, max_size=8))
def test_names_of_any_characters_are_kept(names: list[str]) -> None:
    layers, _ = join(None, times(**dict.fromkeys(names, 1.0)), GRAPH)
    assert [one.name for one in layers] == names


def test_thousands_of_layers_are_joined() -> None:
    many = 5000
    steps = [node("Relu", f"t{i}", f"t{i + 1}", f"/block{i % 10}/relu{i}") for i in range(many)]
    made = graph(*steps, inputs={"t0": (4,)}, outputs=(f"t{many}",))
    described = EngineDescription(layers=tuple(layer(step.name, "PointWise") for step in steps))
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
    layers = read_inspector(stored("r50_mo_int8")).layers
    types = [ran_dtype(one) for one in layers if one.weights_count]
    assert (types.count("int8"), types.count("float32") + types.count("float16")) == (53, 1)


# ── groups ──────────────────────────────────────────────────────────────────────────────────────────────


def test_layers_are_grouped_with_the_longest_group_first() -> None:
    layers, _ = join(DESCRIPTION, times(**MS), GRAPH)
    assert [(one.key, one.layers, one.ms) for one in by_kind(layers)] == [
        ("CaskConvolution", 1, 4.0),
        ("Myelin", 1, 3.0),
        ("PointWiseV2", 1, 2.0),
        ("reformat", 1, 1.0),
    ]
    assert [(one.key, one.share) for one in by_dtype(layers)] == [("float16", 0.7), ("unknown", 0.3)]


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
    assert [(one.key, one.ms) for one in by_module(layers)] == [("unknown", 4.0), ("/a/b", 3.0)]


def test_quantising_takes_no_layer_out_of_its_module() -> None:
    quantised = profiled("q + conv", "w_QuantizeLinear /a/b/Conv", onnx_ops=("QuantizeLinear", "Conv"))
    alone = profiled("q", "w_QuantizeLinear", onnx_ops=("QuantizeLinear",))
    assert {one.key for one in by_module([quantised, alone])} == {"/a/b", "/"}


def test_a_node_has_the_time_of_its_layer_and_of_the_reformats_that_serve_it() -> None:
    layers, _ = join(DESCRIPTION, times(**MS, stranger=0.5), GRAPH)
    assert [(one.key, one.layers, one.ms) for one in by_node(layers)] == [
        ("conv", 2, 5.0),
        ("log", 1, 3.0),
        ("exp", 1, 2.0),
        ("unknown", 1, 0.5),
    ]
    hidden = profiled("{ForeignNode}", "a b c", is_opaque=True)
    follows = profiled("bias + product", "Add MatMul")
    assert {one.key for one in by_node([hidden, follows])} == {"a … c (3 nodes)", "MatMul"}


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=20))
def test_groups_share_all_of_the_time(ms: list[float]) -> None:
    layers = [profiled(str(n), ms=value, kind=f"k{n % 3}") for n, value in enumerate(ms)]
    groups = by_kind(layers)
    assert sum(one.layers for one in groups) == len(ms)
    assert sum(one.ms for one in groups) == pytest.approx(sum(ms))
    assert sum(one.share for one in groups) == pytest.approx(1.0 if sum(ms) else 0.0)
