"""`trtopt cast`: what becomes 16-bit, what stays FP32 and why, and that the result is the same function."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings, strategies as st
from onnx import TensorProto, helper

import trtopt
from tests.support.cast_models import CHAIN, saved
from tests.support.command_line import CommandLine
from tests.support.graphs import model_of, value
from tests.support.paths import ROOT
from trtopt.device.ort.reference import open_reference
from trtopt.errors import ModelError, OutputError, UsageError
from trtopt.onnxio.model_file import load
from trtopt.onnxio.shape_inference import types_of
from trtopt.precision.compare import open_model
from trtopt.records import from_json
from trtopt.records.precision import CastReport

MODELS = ROOT / "models"


def cast(source: Path, **options: Any) -> tuple[CastReport, onnx.ModelProto, dict[str, int]]:
    out = source.with_name("out.onnx")
    report = trtopt.cast(source, out, **{"precision": "fp16", **options})
    proto = onnx.load(out)
    onnx.checker.check_model(proto, full_check=True)
    open_model(load(out))
    return report, proto, types_of(proto)


def operators(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


def rules(report: CastReport) -> dict[str, str]:
    return {kept.node: kept.rule for kept in report.kept}


def data(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "data.npz", **arrays)
    return folder / "data.npz"


# ── trained models ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "precision"),
    [("digits", "fp16"), ("digits_transformer", "fp16"), ("digits_transformer", "bf16")],
)
def test_a_trained_model_keeps_its_accuracy(name: str, precision: str, tmp_path: Path) -> None:
    source, held = MODELS / name / f"{name}.onnx", MODELS / name / "heldout.npz"
    report = trtopt.cast(source, tmp_path / "out.onnx", precision=precision, data=held)  # type: ignore[arg-type]
    assert report.kept == ()
    assert report.samples == 540
    arrays = np.load(held)
    feed = {spec.name: arrays[spec.name] for spec in onnx.load(source).graph.input}
    feed = {key: value.astype(np.int64) if key == "tokens" else value for key, value in feed.items()}
    before = open_reference(source)(feed)["logits"].argmax(1)
    after = open_model(load(tmp_path / "out.onnx")).run(feed)["logits"].argmax(1)
    right, still = ((found == arrays["labels"]).sum() for found in (before, after))
    assert still >= right - (1 if precision == "bf16" else 0)
    assert report.differences[0].sqnr_db is not None
    assert report.differences[0].sqnr_db > (60 if precision == "fp16" else 40)


@pytest.mark.parametrize(
    ("step", "precision", "kept"),
    [
        ("b = Log(a)", "fp16", ["Add", "Log"]),
        ("b = Div(s, a)", "fp16", ["Add", "Div"]),
        ("b = Mul(a, h)", "fp16", ["Add"]),
        ("b = Log(a)", "bf16", []),
    ],
)
def test_what_must_not_read_0_stays_fp32_behind_a_constant_too_small_for_16_bits(
    step: str, precision: str, kept: list[str], tmp_path: Path
) -> None:
    text = f"""
        # w: float[8,8]
        g (float[N,8] x) => (float[N,8] y) <float tiny = {{1e-10}}>
        {{h = MatMul(x, w) s = Relu(h) a = Add(s, tiny) {step} r = Relu(b) y = MatMul(r, w)}}"""
    samples = data(tmp_path, x=np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32))
    report, _, _ = cast(saved(text, tmp_path), data=samples, precision=precision)
    assert [item.op for item in report.kept if item.rule == "weight"] == kept


# ── where casts go ──────────────────────────────────────────────────────────────────────────────────────


def test_inputs_and_outputs_keep_their_types_with_one_cast_each(tmp_path: Path) -> None:
    report, proto, types = cast(saved(CHAIN, tmp_path))
    assert operators(proto) == ["Cast", "MatMul", "Relu", "MatMul", "Cast"]
    assert (types["x"], types["y"], types["w"]) == (1, 1, TensorProto.FLOAT16)
    assert report.casts == 2


@pytest.mark.parametrize(("precision", "kind"), [("fp16", "FLOAT16"), ("bf16", "BFLOAT16")])
def test_inputs_and_outputs_change_when_asked(precision: str, kind: str, tmp_path: Path) -> None:
    report, proto, types = cast(saved(CHAIN, tmp_path), precision=precision, cast_io=True)
    assert operators(proto) == ["MatMul", "Relu", "MatMul"]
    assert {types["x"], types["y"]} == {TensorProto.DataType.Value(kind)}
    assert report.differences[0].cosine > 0.9999


@pytest.mark.parametrize("cast_io", [False, True])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_weight_that_is_an_output_has_the_outputs_type_and_other_readers_their_own(
    precision: str, cast_io: bool, tmp_path: Path
) -> None:
    text = """# w: float[8,8]
# k: int64[]
g (float[N,8] x) => (float[N,8] y, float[8,8] w, float[8,8] z) {y = MatMul(x, w) z = CumSum(w, k)}"""
    _, proto, types = cast(saved(text, tmp_path, k=np.int64(1)), precision=precision, cast_io=cast_io)
    low = TensorProto.FLOAT16 if precision == "fp16" else TensorProto.BFLOAT16
    assert {types[name] for name in "ywz"} == {low if cast_io else TensorProto.FLOAT}
    weights = {item.name: item.data_type for item in proto.graph.initializer}
    (read,) = [node.input[0] for node in proto.graph.node if node.op_type == "CumSum"]
    assert weights[read] == TensorProto.FLOAT


@pytest.mark.parametrize("reduction", ["none", "add", "max"])
def test_a_scatter_that_reduces_stays_as_onnx_runtime_runs_no_other(reduction: str, tmp_path: Path) -> None:
    body = f'ScatterND<reduction="{reduction}">(a, i, a)'
    source = saved(
        CHAIN.replace("N", "2").replace("Relu(a)", body), tmp_path, opset=18, i=np.array([[1], [1]])
    )
    report, _, _ = cast(source)
    assert ("ScatterND" in {kept.op for kept in report.kept}) == (reduction != "none")
    onnxruntime.InferenceSession(tmp_path / "out.onnx", providers=["CPUExecutionProvider"]).run(
        None, {"x": np.ones((2, 8), np.float32)}
    )


def test_a_node_kept_in_the_middle_costs_two_casts_and_shares_no_weight_type(tmp_path: Path) -> None:
    text = CHAIN.replace("N", "8").replace("Relu(a)", "Mul(a, w)")
    report, proto, types = cast(saved(text, tmp_path), exclude=("Mul:*",))
    assert operators(proto) == ["Cast", "MatMul", "Cast", "Mul", "Cast", "MatMul", "Cast"]
    assert rules(report) == {"Mul:b": "pattern"}
    assert (types["w"], types["w:fp16"]) == (1, TensorProto.FLOAT16)


def test_one_cast_serves_all_readers(tmp_path: Path) -> None:
    text = """# w: float[8,8]
g (float[N,8] x) => (float[N,8] y, float[N,8] z)
    {a = Exp(x) b = MatMul(a, w) c = MatMul(a, w) d = Add(b, c) y = MatMul(d, w) z = Identity(a)}"""
    _, proto, _ = cast(saved(text, tmp_path), exclude=("Exp",))
    assert operators(proto).count("Cast") == 2  # of a, for both, and of y


def test_an_output_that_is_read_inside_too_keeps_its_name_and_type(tmp_path: Path) -> None:
    text = """# w: float[8,8]
g (float[N,8] x) => (float[N,8] y, float[N,8] z) {y = MatMul(x, w) z = MatMul(y, w)}"""
    _, proto, types = cast(saved(text, tmp_path))
    assert operators(proto) == ["Cast", "MatMul", "Cast", "MatMul", "Cast"]
    assert (types["y"], types["z"]) == (1, 1)
    report, _, _ = cast(saved(text, tmp_path), exclude=("MatMul",), cast_io=True)
    assert len(report.kept) == 2


def test_outputs_of_one_node_are_cast_in_its_order(tmp_path: Path) -> None:
    text = """# w: float[8,8]
        g (float[N,8] x) => (float[N,1] c, float[N,1] h, float[N,2] a, float[N,2] f, float[N,2] b) {
            y = MatMul(x, w) parts = Constant <value = int64[5] {1, 1, 2, 2, 2}> ()
            c, h, a, f, b = Split <axis = 1> (y, parts) }"""
    _, proto, _ = cast(saved(text, tmp_path))
    assert [node.output[0] for node in proto.graph.node][-5:] == ["c", "h", "a", "f", "b"]


def test_what_lies_between_fp32_nodes_stays_with_them(tmp_path: Path) -> None:
    text = """# w: float[8,8]
g (float[N,8] x) => (float[N,8] y) {a = MatMul(x, w) b = Exp(a) c = Relu(b) d = Exp(c) y = MatMul(d, w)}"""
    report, _, _ = cast(saved(text, tmp_path, w=np.eye(8, dtype=np.float32)), exclude=("Exp",), threshold=1e9)
    assert rules(report) == {"Exp:b": "pattern", "Relu:c": "island", "Exp:d": "pattern"}


def test_casts_that_were_there_are_not_doubled(tmp_path: Path) -> None:
    text = """# w: float16[8,8]
g (float[N,8] x) => (float[N,8] y)
    {h = Cast<to=10>(x) a = MatMul(h, w) f = Cast<to=1>(a) r = Relu(f) k = Cast<to=10>(r) b = MatMul(k, w)
     y = Cast<to=1>(b)}"""
    report, proto, _ = cast(saved(text, tmp_path))
    assert operators(proto) == ["Cast", "MatMul", "Relu", "MatMul", "Cast"]
    assert report.casts == -2


def test_an_output_that_was_16_bit_keeps_its_name_though_its_cast_became_needless(tmp_path: Path) -> None:
    text = "# w: float[8,8]\ng (float[N,8] x) => (float16[N,8] y) {a = MatMul(x, w) y = Cast<to=10>(a)}"
    _, proto, types = cast(saved(text, tmp_path))
    assert [item.name for item in proto.graph.output] == ["y"]
    assert types["y"] == TensorProto.FLOAT16


IF = """g (float[N,8] x, bool c) => (float[N,8] y) {
    a = MatMul(x, w)
    b = If(c) <then_branch = t () => (float[N,8] p) {q = MatMul(a, w) p = Relu(q)},
               else_branch = e () => (float[N,8] r) {s = Neg(a) r = MatMul(s, w)}>
    y = Add(b, a)
}"""


def test_subgraphs_are_cast_inside_and_keep_the_types_of_what_enters_and_leaves(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    source = saved(IF, tmp_path, w=rng.standard_normal((8, 8), np.float32))
    report, _, types = cast(source, include=("MatMul:*", "Relu:p"))  # one of the branches is not run
    assert {"MatMul:q", "MatMul:r"} <= set(report.lowered)
    assert rules(report)["If:b"] == "operator"
    assert (types["q"], types["p"], types["b"]) == (TensorProto.FLOAT16, 1, 1)
    x = rng.standard_normal((4, 8), np.float32)
    for flag in (True, False):
        feed = {"x": x, "c": np.array(flag)}
        wanted = open_reference(source)(feed)["y"]
        for run in (open_reference(tmp_path / "out.onnx"), open_model(load(tmp_path / "out.onnx")).run):
            np.testing.assert_allclose(run(feed)["y"], wanted, rtol=0, atol=2e-2 * np.abs(wanted).max())


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_whatever_is_kept_the_result_is_valid_and_close(tmp_path_factory: Any, choice: st.DataObject) -> None:
    names = ["x"]
    nodes = []
    for index in range(choice.draw(st.integers(1, 8))):
        op = choice.draw(st.sampled_from(["Relu", "Add", "MatMul", "Tanh", "Identity", "Cast"]))
        inputs = [choice.draw(st.sampled_from(names)) for _ in range(2 if op in ("Add", "MatMul") else 1)]
        extra = {"to": 1} if op == "Cast" else {}
        nodes.append(helper.make_node(op, inputs, [f"t{index}"], f"n{index}", **extra))
        names.append(f"t{index}")
    outputs = {names[-1], *choice.draw(st.lists(st.sampled_from(names[1:]), max_size=2))}
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, [4, 4])],
        [helper.make_tensor_value_info(name, 1, [4, 4]) for name in sorted(outputs)])  # fmt: skip
    folder = tmp_path_factory.mktemp("any")
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, folder / "in.onnx")
    x = (np.random.default_rng(1).standard_normal((4, 4)) / 4).astype(np.float32)
    keep = choice.draw(st.lists(st.sampled_from([node.name for node in nodes])))
    with_io = choice.draw(st.booleans())
    report, found, types = cast(
        folder / "in.onnx", data=data(folder, x=x), exclude=tuple(keep), cast_io=with_io
    )
    assert set(keep) <= set(rules(report))
    assert {types[name] for name in outputs} == {TensorProto.FLOAT16 if with_io else 1}
    assert [item.name for item in found.graph.output] == sorted(outputs)
    assert all(item.sqnr_db is None or item.sqnr_db > 40 for item in report.differences)


# ── what stays FP32 ─────────────────────────────────────────────────────────────────────────────────────


def test_a_node_whose_values_are_too_large_in_real_data_stays(tmp_path: Path) -> None:
    text = CHAIN.replace("b = Relu(a)", "b = Exp(a)")
    source = saved(text, tmp_path, w=np.eye(8, dtype=np.float32))
    given = data(tmp_path, x=np.full((3, 8), 10, np.float32))  # e^10 = 22026
    report, _, _ = cast(source, data=given)
    assert rules(report) == {"Exp:b": "range", "MatMul:y": "range"}
    assert "'b' reaches 2.203e+04, beyond 16376" in report.kept[0].reason
    assert rules(cast(source, data=given, threshold=3e4)[0]) == {}
    assert rules(cast(source, data=given, include=("*",))[0]) == {}
    assert rules(cast(source, data=given, precision="bf16")[0]) == {}


def test_random_data_is_marked_and_keeps_only_what_overflows(tmp_path: Path) -> None:
    report, _, _ = cast(saved(CHAIN, tmp_path, w=30 * np.ones((8, 8), np.float32)))
    assert report.data_is_random
    assert rules(report) == {}
    report, _, _ = cast(saved(CHAIN, tmp_path, w=3e4 * np.eye(8, dtype=np.float32)))
    assert set(rules(report).values()) == {"range"}


@pytest.mark.parametrize(
    ("value", "words"), [(1e5, "reaches 1e+05, beyond 65504"), (-3.4e38, "beyond 65504"), (1e-12, "become 0")]
)
def test_a_weight_that_fp16_cannot_hold_keeps_its_node(value: float, words: str, tmp_path: Path) -> None:
    text = CHAIN.replace("Relu(a)", "Add(a, c)")
    source = saved(text, tmp_path, c=np.float32(value))
    report, _, _ = cast(source, threshold=1e39)
    assert rules(report) == {"Add:b": "weight"}
    assert words in report.kept[0].reason
    if value != -3.4e38:
        assert rules(cast(source, precision="bf16", threshold=1e39)[0]) == {}


CANCELS = """# w: float[8,8]
g (float[N,8] x) => (float[N,8] y) <float big = {3000.0}>
{a = MatMul(x, w) b = Tanh(a) c = MatMul(b, w) up = Add(c, big) down = Sub(up, big) d = MatMul(down, w)
y = MatMul(d, w)}"""


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_what_makes_the_outputs_inaccurate_on_real_data_is_searched_and_kept(
    precision: str, tmp_path: Path
) -> None:
    x = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
    source = saved(CANCELS, tmp_path)
    report, _, _ = cast(source, precision=precision, data=data(tmp_path, x=x))
    assert rules(report) == {"Add:up": "accuracy", "Sub:down": "accuracy"}
    assert not report.alarms
    assert any(note.startswith("2 nodes stay FP32 for the outputs' accuracy") for note in report.notes)
    report, _, _ = cast(source, precision=precision, data=data(tmp_path, x=x), include=["Add:up", "Sub:*"])
    assert "Add:up" in report.lowered
    assert report.alarms
    assert rules(cast(source, precision=precision)[0]) == {}  # random samples decide nothing


def test_values_that_vanish_are_counted(tmp_path: Path) -> None:
    weight = np.ones((8, 8), np.float32)
    weight[0, :3] = 1e-9
    report, _, _ = cast(saved(CHAIN, tmp_path, w=weight))
    assert [(item.weight, item.values, item.of) for item in report.vanishing] == [("w", 3, 64)]


def test_operators_that_lose_their_meaning_stay(tmp_path: Path) -> None:
    text = CHAIN.replace("Relu(a)", "CumSum(a, k)")
    report, _, _ = cast(saved(text, tmp_path, k=np.int64(1)))
    assert [(kept.op, kept.rule) for kept in report.kept] == [("CumSum", "operator")]


@pytest.mark.parametrize("opset", [9, 13, 17])
def test_a_cast_file_with_a_normalisation_of_onnx_runtimes_own_making_opens_as_it_is(
    opset: int, tmp_path: Path
) -> None:
    text = CHAIN.replace("Relu(a)", "MeanVarianceNormalization<axes=[0]>(a)")
    source = saved(text, tmp_path)
    proto = onnx.load(source)
    proto.opset_import[0].version = opset
    onnx.save(proto, source)
    report, _, _ = cast(source)
    assert [(kept.op, kept.rule) for kept in report.kept] == [("MeanVarianceNormalization", "operator")]
    open_reference(tmp_path / "out.onnx")


def test_large_whole_numbers_stay_exact(tmp_path: Path) -> None:
    text = """# w: float[8,8]
g (float[N,8] x, int64[N,8] i) => (float[N,8] y) {f = Cast<to=1>(i) a = Add(f, x) y = MatMul(a, w)}"""
    source = saved(text, tmp_path)
    x = np.ones((2, 8), np.float32)
    assert rules(cast(source, data=data(tmp_path, x=x, i=np.full((2, 8), 2048)))[0]) == {}
    report, _, _ = cast(source, data=data(tmp_path, x=x, i=np.full((2, 8), 2049)))
    assert rules(report) == {"Cast:f": "range", "Add:a": "range"}  # which reads it


QUANTIZED = """g (float[N,8] x) => (float[N,8] y) {
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear(k, t, z)
    a = MatMul(d, v) b = Relu(a) y = MatMul(b, w)}"""


def quantised(folder: Path, opset: int, scale: float = 0.05) -> Path:
    rng = np.random.default_rng(0)
    return saved(QUANTIZED, folder, opset, s=np.float32(scale), t=np.float32(0.01), z=np.int8(0),
                 k=rng.integers(-127, 128, (8, 8)).astype(np.int8),
                 w=rng.standard_normal((8, 8), np.float32))  # fmt: skip


def test_scales_become_fp16_where_opset_and_target_take_them(tmp_path: Path) -> None:
    report, proto, types = cast(quantised(tmp_path, 19))
    assert rules(report) == {}
    assert {types[name] for name in "stda"} == {TensorProto.FLOAT16}
    assert operators(proto).count("Cast") == 2


@pytest.mark.parametrize(
    ("opset", "target", "scale", "words"),
    [(17, "10", 0.05, "at opset 17"), (19, "8.6", 0.05, "8.6 takes FP32"), (19, "10", 1e-7, "too small")],
)
def test_otherwise_qdq_and_the_nodes_next_to_them_stay(
    opset: int, target: str, scale: float, words: str, tmp_path: Path
) -> None:
    report, proto, types = cast(quantised(tmp_path, opset, scale), target=target)
    assert any(words in kept.reason for kept in report.kept)
    assert rules(report)["MatMul:a"] == "quantised"
    assert types["s"] == 1
    readers = {node.op_type for node in proto.graph.node if "d" in node.input}
    assert readers == {"MatMul"}  # no cast parts a DQ from its reader


# ── files and bad input ─────────────────────────────────────────────────────────────────────────────────


def test_external_weights_stay_external_and_are_converted(tmp_path: Path) -> None:
    source = saved(CHAIN.replace("8", "64"), tmp_path, w=np.full((64, 64), 0.1, np.float32))
    onnx.save(onnx.load(source), source, save_as_external_data=True, location="w.bin", size_threshold=0)
    report, _, types = cast(source)
    assert 0 <= (tmp_path / "out.onnx.data").stat().st_size - 64 * 64 * 2 < 64
    assert types["w"] == TensorProto.FLOAT16
    assert report.differences[0].cosine > 0.9999
    assert not list(tmp_path.glob(".*"))


def test_a_model_that_random_data_does_not_fit_says_how_to_give_some(tmp_path: Path) -> None:
    text = CHAIN.replace("b = Relu(a)", "b = Reshape(a, s)")
    source = saved(text, tmp_path, s=np.array([5, 8]))
    with pytest.raises(ModelError, match="on random data") as caught:
        cast(source)
    assert "data" in caught.value.remedy
    assert cast(source, data=data(tmp_path, x=np.ones((5, 8), np.float32)))[0].kept == ()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"target": "7"}, UsageError, "choose among"),
        ({"threshold": -1.0}, UsageError, "above 0"),
        ({"data": "nowhere.npz"}, UsageError, "no such file"),
    ],
)
def test_bad_options_are_named(
    options: dict[str, Any], error: type[Exception], words: str, tmp_path: Path
) -> None:
    source = saved(CHAIN, tmp_path)
    with pytest.raises(error, match=words):
        cast(source, **options)
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(("op", "kind"), [("CumSum", TensorProto.FLOAT), ("Add", TensorProto.INT64)])
def test_a_model_of_which_nothing_becomes_16_bit_raises_an_alarm(
    op: str, kind: int, tmp_path: Path, trtopt_cli: CommandLine
) -> None:
    second = ["x"] if op == "Add" else ["one"]
    model = model_of(
        helper.make_node(op, ["x", *second], ["y"], "node"),
        inputs=[value("x", ["N", 4], kind)],
        outputs=[value("y", ["N", 4], kind)],
        weights=[onnx.numpy_helper.from_array(np.array(1), "one")],
    )
    onnx.save(model, tmp_path / "m.onnx")
    (alarm,) = trtopt.cast(tmp_path / "m.onnx", tmp_path / "out.onnx").alarms
    assert "FP16" in alarm
    command = ["cast", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "out.onnx"), "--strict"]
    assert trtopt_cli(*command).returncode == 3


@pytest.mark.parametrize("flag", ["--no-run", "--no-compare"])
def test_what_was_not_compared_is_not_accurate_enough_for_strict(
    flag: str, tmp_path: Path, trtopt_cli: CommandLine
) -> None:
    command = ["cast", str(saved(CHAIN, tmp_path)), "-o", str(tmp_path / "out.onnx"), flag]
    assert trtopt_cli(*command).returncode == 0
    assert trtopt_cli(*command, "--strict").returncode == 3


def test_a_folder_to_write_to_is_named(tmp_path: Path) -> None:
    for folder in (tmp_path, Path()):
        with pytest.raises(OutputError, match="is a folder"):
            trtopt.cast(saved(CHAIN, tmp_path), folder, precision="fp16")


def test_bf16_where_the_opset_has_none_says_which_has(tmp_path: Path) -> None:
    text = "# w: float[4,3,3,3]\ng (float[1,3,8,8] x) => (float[1,4,6,6] y) {y = Conv(x, w)}"
    with pytest.raises(ModelError, match="Conv takes no BF16 at opset 17"):
        cast(saved(text, tmp_path), precision="bf16")


def test_the_command_reports_explains_and_refuses(tmp_path: Path, trtopt_cli: CommandLine) -> None:
    source = saved(CHAIN, tmp_path)
    out = tmp_path / "out.onnx"
    done = trtopt_cli("cast", source, "-o", out, "--exclude", "Relu")
    assert "2 nodes in FP16, 1 kept in FP32" in done.stdout
    assert "random data" in done.stdout
    explained = trtopt_cli("cast", source, "-o", out, "--exclude", "Relu", "--explain", "Relu:b")
    assert "--exclude Relu" in explained.stdout
    report = from_json(trtopt_cli("cast", source, "-o", out, "--json", "-").stdout.encode(), CastReport)
    assert json.loads(json.dumps(report.lowered)) == ["MatMul:a", "Relu:b", "MatMul:y"]
    assert "no floating-point node" in trtopt_cli.fails(2, "cast", source, "-o", "new", "--explain", "nobody")
    assert "is read by this command" in trtopt_cli.fails(2, "cast", source, "-o", source)
    (tmp_path / "bad.onnx").write_text("no")
    assert "not an ONNX file" in trtopt_cli.fails(1, "cast", tmp_path / "bad.onnx", "-o", out)


@pytest.mark.parametrize(("precision", "dtype"), [("fp16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_emulation_adds_up_in_fp32_and_rounds_what_every_node_makes(
    precision: str, dtype: Any, tmp_path: Path
) -> None:
    def rounded(array: Any) -> Any:
        return np.asarray(array, np.float32).astype(dtype).astype(np.float32)

    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((8, 8), np.float32) for _ in range(2))
    cast(saved(CHAIN, tmp_path, w=w), precision=precision)
    found = open_model(load(tmp_path / "out.onnx")).run({"x": x})["y"]
    middle = np.maximum(rounded(rounded(x) @ rounded(w)), 0)
    np.testing.assert_allclose(found, rounded(middle @ rounded(w)), rtol=float(ml_dtypes.finfo(dtype).eps))
    assert (found == rounded(found)).all()
