import hashlib
import os
import random
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.support import graphs
from tests.support.graphs import model_of, relu, save, value
from tests.support.paths import ROOT
from trtopt.errors import InvalidModelError, ModelError, UnsupportedOpError
from trtopt.onnxio.model_info import read_onnx
from trtopt.records import TensorSpec

DIGITS = ROOT / "models" / "digits" / "digits.onnx"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


def refused(model: onnx.ModelProto, file: Path, kind: type[ModelError] = InvalidModelError) -> ModelError:
    """The error that reading the model gives, which must be of exactly this kind."""
    with pytest.raises(ModelError) as caught:
        read_onnx(save(model, file))
    assert type(caught.value) is kind
    assert str(file) in caught.value.problem
    assert caught.value.remedy
    return caught.value


def test_a_missing_initializer_is_named_with_the_node_that_reads_it(file: Path) -> None:
    lost = model_of(helper.make_node("Add", ["x", "weight"], ["y"], "sum"))
    error = refused(lost, file)
    assert "node 'sum' (Add) reads 'weight', which is no input of the model, no initializer" in error.problem


# ── files that are not ONNX ─────────────────────────────────────────────────────────────────────────────


def test_a_file_that_is_not_there_is_an_invalid_model(file: Path) -> None:
    with pytest.raises(InvalidModelError, match="no such file"):
        read_onnx(file)


def test_a_folder_is_an_invalid_model(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError):
        read_onnx(tmp_path)


def test_an_empty_file_is_an_invalid_model(file: Path) -> None:
    file.touch()
    with pytest.raises(InvalidModelError, match="the file is empty"):
        read_onnx(file)


@pytest.mark.parametrize("content", [b"hello, this is text", b"\x00" * 64, b"\xff" * 64, b"PK\x03\x04" * 16])
def test_bytes_that_are_not_onnx_are_an_invalid_model(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(InvalidModelError):
        read_onnx(file)


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        (".md", b"hello, this is text"),
        (".json", b"hello, this is text"),
        (".json", b"\xff\xfe\x00"),
        (".onnxjson", b"{"),
        (".textproto", b"hello, this is text"),
        (".prototxt", b"\xff\xfe\x00"),
        (".pbtxt", b"{"),
        (".onnxtxt", b"hello, this is text"),
    ],
)
def test_a_file_that_is_not_onnx_is_an_invalid_model_whatever_its_name_ends_in(
    tmp_path: Path, suffix: str, content: bytes
) -> None:
    file = tmp_path / f"model{suffix}"
    file.write_bytes(content)
    with pytest.raises(InvalidModelError):
        read_onnx(file)


def test_a_model_is_read_whatever_its_name_ends_in(tmp_path: Path) -> None:
    read = read_onnx(save(graphs.relu_model(), tmp_path / "model.pbtxt"))
    assert [spec.name for spec in read.inputs] == ["x"]


def test_every_cut_of_a_real_file_is_a_typed_error(file: Path) -> None:
    whole = DIGITS.read_bytes()
    generator = random.Random(0)
    ends = [*range(200), *(len(whole) - n for n in range(1, 200)), *generator.sample(range(len(whole)), 100)]
    for end in ends:
        file.write_bytes(whole[:end])
        with pytest.raises(ModelError):
            read_onnx(file)


def test_every_cut_of_a_small_file_is_a_typed_error_or_a_smaller_model(file: Path) -> None:
    whole = graphs.quantised().SerializeToString()
    for end in range(len(whole)):
        file.write_bytes(whole[:end])
        with pytest.raises(ModelError):
            read_onnx(file)


@pytest.mark.parametrize("seed", range(4))
def test_a_file_with_flipped_bytes_is_a_typed_error_or_a_model(file: Path, seed: int) -> None:
    whole = graphs.half_precision().SerializeToString()
    generator = random.Random(seed)
    read = 0
    for _ in range(100):
        damaged = bytearray(whole)
        for _ in range(generator.randint(1, 3)):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        file.write_bytes(damaged)
        try:
            artifact = read_onnx(file)
        except ModelError:
            continue
        assert artifact.sha256 == hashlib.sha256(damaged).hexdigest()
        read += 1
    assert read < 100


NAMES = {"node": "AAAA", "input": "BBBB", "axis": "CCCC", "operator": "DDDD"}


@pytest.mark.parametrize("what", NAMES)
def test_a_name_that_is_not_text_is_an_invalid_model(file: Path, what: str) -> None:
    operator = NAMES["operator"] if what == "operator" else "Relu"
    node = helper.make_node(operator, [NAMES["input"]], ["y"], name=NAMES["node"])
    model = model_of(node, inputs=[value(NAMES["input"], (NAMES["axis"], 4))])
    file.write_bytes(model.SerializeToString().replace(NAMES[what].encode(), b"\xff\xfe\xfd\xfc"))
    with pytest.raises(InvalidModelError):
        read_onnx(file)


def test_a_model_whose_file_name_is_not_text_is_read(tmp_path: Path) -> None:
    file = save(graphs.relu_model(), tmp_path / os.fsdecode(b"model\xff.onnx"))
    assert read_onnx(file).path == str(file)


# ── graphs that are wrong ───────────────────────────────────────────────────────────────────────────────


def test_a_graph_without_nodes_is_an_invalid_model(file: Path) -> None:
    assert "no nodes" in refused(model_of(), file).problem


def test_a_graph_without_outputs_is_an_invalid_model(file: Path) -> None:
    assert "no outputs" in refused(model_of(relu(), outputs=[]), file).problem


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (model_of(relu(), relu(name="again")), "y"),
        (model_of(relu(target="x"), relu(name="again")), "x"),
        (model_of(relu(), inputs=[value("x"), value("x")]), "x"),
        (model_of(relu(target="w"), graphs.add("x", "w"), weights=[graphs.weight()]), "w"),
        (model_of(graphs.add("x", "w"), weights=[graphs.weight(), graphs.weight()]), "w"),
        (model_of(helper.make_node("Split", ["x"], ["y", "y"], axis=1), opset=13), "y"),
    ],
    ids=["two nodes", "node and input", "two inputs", "node and weight", "two weights", "one node"],
)
def test_a_name_given_to_two_tensors_is_an_invalid_model_that_names_it(
    file: Path, model: onnx.ModelProto, name: str
) -> None:
    assert name in refused(model, file).problem.removeprefix(str(file))


def test_two_outputs_of_one_name_are_an_invalid_model(file: Path) -> None:
    assert "'y'" in refused(model_of(relu(), outputs=[value("y"), value("y")]), file).problem


def test_a_branch_may_give_one_tensor_twice_and_read_a_sparse_weight_of_its_own(file: Path) -> None:
    weight = helper.make_sparse_tensor(
        helper.make_tensor("w", TensorProto.FLOAT, [1], [3]),
        helper.make_tensor("", TensorProto.INT64, [1], [1]),
        [4],
    )
    made = helper.make_graph(
        [graphs.add("x", "w", "a")], "branch", [], [value("a"), value("a")], sparse_initializer=[weight]
    )
    branch = helper.make_node("If", ["c"], ["y", "z"], "if", then_branch=made, else_branch=made)
    ends = [value("x"), value("c", (), TensorProto.BOOL)], [value("y"), value("z")]
    assert read_onnx(save(model_of(branch, inputs=ends[0], outputs=ends[1]), file)).opset == graphs.OPSET


def test_a_node_that_reads_a_tensor_no_one_makes_is_an_invalid_model_that_names_it(file: Path) -> None:
    assert "'nowhere'" in refused(model_of(relu("nowhere")), file).problem


def test_an_attribute_that_the_operator_does_not_have_is_an_invalid_model(file: Path) -> None:
    model = graphs.relu_model()
    model.graph.node[0].attribute.append(helper.make_attribute("bogus", 1))
    assert "bogus" in refused(model, file).problem


def test_an_input_that_is_not_a_tensor_is_a_typed_error(file: Path) -> None:
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    model = model_of(helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0), inputs=[sequence])
    with pytest.raises(ModelError, match="'s'"):
        read_onnx(save(model, file))


# ── operators ───────────────────────────────────────────────────────────────────────────────────────────


def test_an_unknown_operator_is_named_with_its_node(file: Path) -> None:
    model = model_of(helper.make_node("Frobnicate", ["x"], ["y"], name="frob_7"))
    problem = refused(model, file, UnsupportedOpError).problem
    assert "'Frobnicate'" in problem
    assert "'frob_7'" in problem


def test_an_unknown_operator_of_an_unnamed_node_is_named(file: Path) -> None:
    model = model_of(helper.make_node("Frobnicate", ["x"], ["y"]))
    assert "'Frobnicate'" in refused(model, file, UnsupportedOpError).problem


def test_an_operator_newer_than_the_models_opset_is_named_with_that_opset(file: Path) -> None:
    model = model_of(helper.make_node("Gelu", ["x"], ["y"], name="gelu"), opset=17)
    problem = refused(model, file, UnsupportedOpError).problem
    assert "'Gelu'" in problem
    assert "opset 17" in problem


def test_an_unknown_operator_inside_a_branch_is_named_with_its_node(file: Path) -> None:
    model = graphs.branching(helper.make_node("Frobnicate", ["x"], ["t"], name="inner"))
    problem = refused(model, file, UnsupportedOpError).problem
    assert "'Frobnicate'" in problem
    assert "'inner'" in problem


def test_an_unknown_operator_inside_a_function_is_a_typed_error_that_names_it(file: Path) -> None:
    model = graphs.calling(helper.make_node("Frobnicate", ["a"], ["b"], name="inner"))
    with pytest.raises(ModelError, match="Frobnicate"):
        read_onnx(save(model, file))


def test_a_function_of_the_models_own_is_no_unknown_operator(file: Path) -> None:
    assert read_onnx(save(graphs.calling(relu("a", "b")), file)).opset == 17


def test_an_operator_of_another_domain_may_be_a_plugin(file: Path) -> None:
    model = model_of(helper.make_node("Frobnicate", ["x"], ["y"], domain="acme"), domains=["acme"])
    assert read_onnx(save(model, file)).opset == 17


def test_a_plugin_of_tensorrts_own_may_be_in_onnx_domain(file: Path) -> None:
    model = model_of(helper.make_node("EfficientNMS_TRT", ["x"], ["y"], name="nms"))
    assert read_onnx(save(model, file)).opset == 17


def test_an_opset_that_no_one_knows_is_a_typed_error(file: Path) -> None:
    model = graphs.relu_model()
    model.opset_import[0].version = 9999
    with pytest.raises(ModelError, match="9999"):
        read_onnx(save(model, file))


# ── what a model is described as ────────────────────────────────────────────────────────────────────────


def test_the_digits_model_is_described_unchanged() -> None:
    read = read_onnx(DIGITS)
    assert read.path == str(DIGITS)
    assert read.sha256 == hashlib.sha256(DIGITS.read_bytes()).hexdigest()
    assert read.opset == 17
    assert read.inputs == (TensorSpec(name="images", dtype="float32", shape=("batch", 1, 8, 8)),)
    assert read.outputs == (TensorSpec(name="logits", dtype="float32", shape=("batch", 10)),)
    assert read.types == ("float32",)
    assert read.parent is None


@pytest.mark.parametrize("opset", [11, 13, 17, 19])
def test_the_opset_is_that_of_onnx_own_domain(file: Path, opset: int) -> None:
    model = model_of(relu(), opset=opset, domains=["acme"])
    assert read_onnx(save(model, file)).opset == opset


def test_symbolic_axes_keep_their_names_and_anonymous_ones_are_question_marks(file: Path) -> None:
    axes = ("batch", 3, None, "width")
    model = model_of(relu(), inputs=[value("x", axes)], outputs=[value("y", (None, None, None, None))])
    read = read_onnx(save(model, file))
    assert read.inputs[0].shape == ("batch", 3, "?", "width")
    assert read.outputs[0].shape == ("?", "?", "?", "?")


def test_a_scalar_input_has_no_axes(file: Path) -> None:
    model = model_of(graphs.add("x", "s"), inputs=[value("x"), value("s", ())])
    assert read_onnx(save(model, file)).inputs[1].shape == ()


def test_a_negative_axis_is_never_taken_for_a_fixed_length(file: Path) -> None:
    model = model_of(relu(), inputs=[value("x", (-1, 4))], outputs=[value("y", (-1, 4))])
    assert read_onnx(save(model, file)).inputs[0].shape == ("?", 4)


def test_initializers_listed_among_the_inputs_are_no_inputs(file: Path) -> None:
    model = model_of(graphs.add("x", "w"), inputs=[value("w", (4,)), value("x")], weights=[graphs.weight()])
    assert [spec.name for spec in read_onnx(save(model, file)).inputs] == ["x"]


@pytest.mark.parametrize(
    ("model", "types"),
    [
        (graphs.relu_model(), ("float32",)),
        (graphs.half_precision(), ("float16", "float32")),
        (graphs.quantised(), ("float32", "int8")),
        (
            graphs.branching(helper.make_node("Identity", ["x"], ["t"], name="same")),
            ("bool", "float32"),
        ),
    ],
    ids=["float32", "float16", "int8", "bool"],
)
def test_the_element_types_in_the_graph_are_found(
    file: Path, model: onnx.ModelProto, types: tuple[str, ...]
) -> None:
    assert read_onnx(save(model, file)).types == types


def test_a_quantisation_without_a_zero_point_has_the_operators_default_type(file: Path) -> None:
    model = graphs.quantised()
    del model.graph.initializer[1]
    for node in model.graph.node:
        del node.input[2]
    assert read_onnx(save(model, file)).types == ("float32", "uint8")


@pytest.mark.parametrize("where", ["branch", "function"])
def test_element_types_inside_branches_and_functions_are_found(file: Path, where: str) -> None:
    cast = {"branch": ("x", "t"), "function": ("a", "b")}[where]
    to_half = helper.make_node("Cast", [cast[0]], ["half"], to=TensorProto.FLOAT16)
    to_float = helper.make_node("Cast", ["half"], [cast[1]], to=TensorProto.FLOAT)
    if where == "function":
        model = graphs.calling(to_half, to_float)
    else:
        model = graphs.branching(to_half)
        branches = {attribute.name: attribute.g for attribute in model.graph.node[0].attribute}
        branches["then_branch"].node.append(to_float)
    assert "float16" in read_onnx(save(model, file)).types
