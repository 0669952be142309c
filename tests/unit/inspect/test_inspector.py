import json

import pytest
from hypothesis import given, strategies as st

from tests.support.inspected import stored
from trtopt.errors import ArtifactError
from trtopt.inspect.inspector import dtype_in, onnx_names_in, read_inspector
from trtopt.records import EngineTensor

# ── real files of 8.6 ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "layers"), [("r50_fp16", 60), ("r50_mo_int8", 59), ("bert_fp16", 2), ("bert_mo_int8", 1)]
)
def test_the_files_of_8_6_are_read_control_characters_and_all(name: str, layers: int) -> None:
    found = read_inspector(stored(name))
    assert len(found) == layers
    assert len({layer.name for layer in found}) == layers


def test_a_convolution_of_8_6_is_reported_in_full() -> None:
    found = {layer.name: layer for layer in read_inspector(stored("r50_fp16"))}
    stem = "/m/resnet/embedder/embedder/convolution/Conv + /m/resnet/embedder/embedder/activation/Relu"
    conv = found[stem]
    assert (conv.kind, conv.weights_dtype, conv.weights_count) == ("CaskConvolution", "float16", 9408)
    assert conv.onnx_nodes == tuple(stem.split(" + "))
    assert conv.tactic.startswith("sm90_xmma_fprop_image_first_layer")
    assert conv.outputs[0].shape is None  # the inspector had no context
    assert conv.outputs[0].dtype == ""
    assert found[f"Reformatting CopyNode for Input Tensor 0 to {stem}"].kind == "Reformat"


def test_a_fused_pool_keeps_its_convolutions_weights() -> None:
    first = read_inspector(stored("r50_mo_int8"))[1]
    assert (first.kind, first.weights_dtype, first.weights_count) == ("CaskConvActPool", "int8", 9408)


# ── layouts ─────────────────────────────────────────────────────────────────────────────────────────────

KGEN = {
    "Name": "__myl_AddRelu_myl0_3",
    "LayerType": "kgen",
    "Inputs": [{"Name": "a", "Dimensions": [8, 4], "Format/Datatype": "Half"}],
    "Outputs": [{"Name": "b", "Dimensions": [-1, 4], "Format/Datatype": "Int8"}],
    "TacticName": "__myl_AddRelu_0x1",
    "StreamId": 0,
    "Metadata": "[ONNX Layer: /add]\x1f[ONNX Layer: /relu]",
}


def test_the_layout_of_10_has_format_and_type_in_one() -> None:
    found = read_inspector(json.dumps({"Layers": [KGEN], "Bindings": ["a", "b"]}))
    layer = found[0]
    assert layer.onnx_nodes == ("/add", "/relu")
    assert layer.inputs == (EngineTensor(name="a", dtype="float16", shape=(8, 4), format="Half"),)
    assert layer.outputs == (EngineTensor(name="b", dtype="int8", shape=None, format="Int8"),)


def test_the_layout_of_11_has_format_and_type_apart() -> None:
    tensor = {"Name": "a", "Dimensions": [8, 4], "Format": "LINEAR", "Datatype": "BF16"}
    text = json.dumps(
        {
            "ProfilingVerbosity": "DETAILED",
            "Layers": [KGEN | {"Inputs": [tensor]}],
            "I/O Tensors": [{"Name": "a", "IOMode": "INPUT"}, {"Name": "b", "IOMode": "OUTPUT"}],
            "Engine Metadata": {"of": "the future"},
        }
    )
    found = read_inspector(text)
    assert found[0].inputs[0].dtype == "bfloat16"
    assert found[0].inputs[0].format == "LINEAR BF16"


def test_what_a_layer_lacks_or_has_of_another_kind_is_left_empty() -> None:
    odd = {"Name": "n", "LayerType": 7, "Inputs": None, "Outputs": ["t", 5], "Weights": "?", "Metadata": None}
    layer = read_inspector(json.dumps({"Layers": [odd]}))[0]
    assert (layer.kind, layer.inputs, layer.weights_count, layer.onnx_nodes) == ("", (), 0, ())
    assert [tensor.name for tensor in layer.outputs] == ["t", ""]


@pytest.mark.parametrize(
    ("format_", "dtype"),
    [
        ("Row major linear FP32", "float32"),
        ("Row major linear FP16 format", "float16"),
        ("Channel major FP16 format where channel % 8 == 0", "float16"),
        ("Thirty-two wide channel vectorized row major Int8 format.", "int8"),
        ("Row major linear BFloat16", "bfloat16"),
        ("FP8", "float8_e4m3fn"),
        ("UInt8", "uint8"),
        ("Int64", "int64"),
        ("Bool", "bool"),
        ("Double", "float64"),
        ("N/A due to dynamic shapes", ""),
        ("", ""),
    ],
)
def test_a_formats_words_name_its_type(format_: str, dtype: str) -> None:
    assert dtype_in(format_) == dtype


# ── metadata ────────────────────────────────────────────────────────────────────────────────────────────

NAMES = st.text(st.characters(blacklist_characters="\x1e\x1f\n ,;["), min_size=1)


@given(st.lists(NAMES, unique=True, max_size=5), st.sampled_from(["\x1e", "\x1f", "", "\n", ", "]))
def test_names_are_read_off_metadata_whatever_parts_them(names: list[str], separator: str) -> None:
    metadata = separator.join(f"[ONNX Layer: {name}]" for name in names)
    assert onnx_names_in(metadata) == tuple(names)


def test_names_with_brackets_and_twice_the_same_name() -> None:
    assert onnx_names_in("[ONNX Layer: a[0]]\x1e[ONNX Layer: b]\x1e[ONNX Layer: a[0]]") == ("a[0]", "b")
    assert onnx_names_in("something else") == ()


# ── what is no description ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is no JSON"),
        ("engine", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("{}", "comes from another tool"),
        ('{"nodes": []}', "comes from another tool"),
        ("5", "comes from another tool"),
        ('{"Layers": {}}', "comes from another tool"),
        ('[{"count": 100}, {"name": "conv", "averageMs": 0.5}]', "a profile with times"),
        ('[{"name": "conv"}]', "a list of something else"),
        ('{"Layers": [{"Name": "a"}, 5]}', "a list of something else"),
    ],
)
def test_files_of_other_tools_are_told_what_they_look_like(text: str, told: str) -> None:
    with pytest.raises(ArtifactError, match=told) as caught:
        read_inspector(text, "layers.json")
    assert caught.value.problem.startswith("layers.json: ")
    assert "exportLayerInfo" in caught.value.remedy


@pytest.mark.parametrize("layers", [["conv + relu", "pool"], []])
def test_an_engine_without_detailed_verbosity_says_what_to_rebuild_with(layers: list[str]) -> None:
    with pytest.raises(ArtifactError, match="verbosity") as caught:
        read_inspector(json.dumps({"Layers": layers, "Bindings": ["x"]}))
    assert "trtopt build" in caught.value.remedy
