"""`trtopt check`: models and engines against the model that is right."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import trtopt
from tests.rewrite_graphs import model
from tests.support.cast_models import saved
from tests.support.command_line import DIGITS, HELDOUT, CommandLine, needs_no_gpu
from trtopt.api import check
from trtopt.data import open_data
from trtopt.device.ort.runtime import _harmful_optimizers
from trtopt.errors import DataError, ModelError, UsageError
from trtopt.onnxio import model_file
from trtopt.onnxio.model_info import read_onnx
from trtopt.precision.bounds import Bounds
from trtopt.records import from_json
from trtopt.records.precision import CheckReport
from trtopt.workflows.precision.checker import Checker

FLOAT = onnx.TensorProto.FLOAT
TRANSFORMER = DIGITS.parents[1] / "digits_transformer"


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits CNN in FP16."""
    out = tmp_path_factory.mktemp("half") / "digits16.onnx"
    trtopt.cast(DIGITS, out, precision="fp16", data=HELDOUT, compare=False)
    return out


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits CNN with one weight of its second block disturbed."""
    model = onnx.load(DIGITS)
    node = next(node for node in model.graph.node if node.name == "/block2/conv1/conv/Conv")
    for tensor in model.graph.initializer:
        if tensor.name == node.input[1]:
            noise = 1 + 0.2 * np.random.default_rng(0).standard_normal(tuple(tensor.dims))
            values = numpy_helper.to_array(tensor) * noise.astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    path = tmp_path_factory.mktemp("spoiled") / "spoiled.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(("kind", "version"), [("bfloat16", 17), ("float8e5m2", 19)])
def test_an_engine_s_outputs_in_types_that_numpy_lacks_are_compared(
    kind: str, version: int, tmp_path: Path
) -> None:
    text = f"g ({kind}[N,4] x) => ({kind}[N,4] y, float[N,4] z) {{y = Identity(x) z = Cast<to=1>(x)}}"
    onnx.save(model(text, version), tmp_path / "m.onnx")
    trtopt.build(tmp_path / "m.onnx", tmp_path / "built", backend="onnxruntime")
    (subject,) = check(tmp_path / "built", tmp_path / "m.onnx", max_error=0.0).subjects
    assert ([item.output for item in subject.outputs], subject.violations) == (["y", "z"], ())


def test_a_model_with_an_input_in_fp8_is_compared(tmp_path: Path) -> None:
    text = "g (float8e4m3fn[N,4] x) => (float[N,4] y) {y = Cast<to=1>(x)}"
    onnx.save(model(text, 19), tmp_path / "m.onnx")
    assert check(tmp_path / "m.onnx", tmp_path / "m.onnx", max_error=0.0).passed


def test_texts_are_held_to_the_bounds_too(tmp_path: Path) -> None:
    texts = "g (float[N,4] x) => (float[N,4] y, string[2] s) {y = Relu(x) s = Identity(t)}"
    for name, second in (("a", b"one"), ("b", b"another")):
        made = model(texts)
        made.graph.initializer.append(
            helper.make_tensor("t", onnx.TensorProto.STRING, [2], [b"same", second])
        )
        onnx.save(made, tmp_path / f"{name}.onnx")
    (same,) = check(tmp_path / "a.onnx", tmp_path / "a.onnx", min_cosine=0.99).subjects
    assert not same.violations
    for bounds in ({"min_cosine": 0.99}, {"max_error": 1.0}):  # of texts there is no smaller error
        (other,) = check(tmp_path / "b.onnx", tmp_path / "a.onnx", **bounds).subjects
        assert [item.output for item in other.violations] == ["s"]


def test_texts_differ_from_numbers(tmp_path: Path) -> None:
    for name, kind, content in (("a", onnx.TensorProto.STRING, [b"x"]), ("b", onnx.TensorProto.INT64, [1])):
        made = model("g (float[N,4] x) => (float[N,4] y, string[1] s) {y = Relu(x) s = Identity(t)}")
        made.graph.initializer.append(helper.make_tensor("t", kind, [1], content))
        made.graph.output[1].type.tensor_type.elem_type = kind
        onnx.save(made, tmp_path / f"{name}.onnx")
    for one, other in ("ab", "ba"):
        (found,) = check(tmp_path / f"{one}.onnx", tmp_path / f"{other}.onnx", min_cosine=0.5).subjects
        assert [item.output for item in found.violations] == ["s"]


def test_a_later_call_may_find_other_data_behind_a_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("given.py").write_text("import numpy\n\ndef feeds():\n    yield {'x': numpy.load('x.npy')}\n")
    onnx.save(model("g (float[N,4] x) => (float[N,4] y) {y = Relu(x)}"), "m.onnx")
    for value in (1, 2):
        np.save("x.npy", np.full((2, 4), value, np.float32))
        assert check("m.onnx", "m.onnx", data="given.py:feeds", max_error=0.0).passed


@pytest.mark.parametrize("data", [HELDOUT, None], ids=["data", "data of the model file"])
def test_a_model_equals_itself(data: Path | None) -> None:
    report = check(DIGITS, DIGITS, data=data, task="digits", min_cosine=1.0, max_error=0.0)
    (subject,) = report.subjects
    (output,) = subject.outputs
    assert (subject.samples, output.sqnr_db, output.max_abs, output.top1) == (540, None, 0.0, 1.0)
    assert subject.task is not None
    assert subject.task.checked == subject.task.reference > 0.99
    assert report.passed


@pytest.mark.long
@pytest.mark.parametrize(("precision", "factor"), [("int8", 0.01), ("fp8", 1.0)])
def test_an_engine_of_onnx_runtime_errs_no_more_than_its_graph(
    precision: str, factor: float, tmp_path: Path
) -> None:
    """Where biases over both scales are too large for FP16, ONNX Runtime would make infinities of them."""
    model = onnx.load(DIGITS)
    for node in model.graph.node:
        for tensor in model.graph.initializer:
            if node.op_type == "Conv" and tensor.name == node.input[1]:
                values = numpy_helper.to_array(tensor) * np.float32(factor)
                tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    onnx.save(model, tmp_path / "m.onnx")
    trtopt.build(
        tmp_path / "m.onnx", tmp_path / "out", backend="onnxruntime", batch=(8,),
        precision=precision, data=str(HELDOUT), verdict=False,
    )  # fmt: skip
    engine = check(tmp_path / "out", tmp_path / "m.onnx", data=HELDOUT)
    graph = check(next((tmp_path / "out").glob("model.*.onnx")), tmp_path / "m.onnx", data=HELDOUT)
    one, other = (report.subjects[0].outputs[0].sqnr_db for report in (engine, graph))
    assert one is not None
    assert other is not None
    assert one > other - 1.0
    assert other > 20.0


@pytest.mark.parametrize("scale", [np.float16, np.float32])
def test_scales_are_found_wherever_they_are(scale: type[np.floating]) -> None:
    helper = onnx.helper
    nodes = [
        helper.make_node("Constant", [], ["s"], value=numpy_helper.from_array(np.array(0.5, scale))),
        helper.make_node("DequantizeLinear", ["x", "s"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "net", [], [])
    found = _harmful_optimizers(helper.make_model(graph).SerializeToString())
    assert found == (["WeightBiasQuantization"] if scale is np.float16 else [])


def test_the_reference_runs_once_for_the_same_data_and_again_for_other(half: Path, tmp_path: Path) -> None:
    checker = Checker(read_onnx(DIGITS), None, Bounds())
    other = model_file.load(half)
    sources = []
    for name, images in (("a", np.load(HELDOUT)["images"][:20]), ("b", np.load(HELDOUT)["images"][20:40])):
        np.savez(tmp_path / f"{name}.npz", images=images)
        sources.append(open_data(tmp_path / f"{name}.npz"))
    first = checker.model_file("half", other, sources[0])
    run, feeds = checker._reference.run, []
    checker._reference.run = lambda feed: feeds.append(feed) or run(feed)  # type: ignore[func-returns-value,method-assign]
    assert checker.model_file("half", other, sources[0]) == first
    assert feeds == []
    assert (
        checker.model_file("half", other, sources[1]).outputs
        == check(half, DIGITS, data=tmp_path / "b.npz").subjects[0].outputs
    )
    assert [len(feed["images"]) for feed in feeds] == [8, 8, 4]


def test_fp16_keeps_top1_and_sqnr_and_a_bound_beyond_is_not_met(half: Path) -> None:
    report = check(half, DIGITS, data=HELDOUT, min_top1=1.0, min_sqnr=60)
    assert report.passed
    report = check(half, DIGITS, data=HELDOUT, min_sqnr=90)
    assert [item.measure for item in report.subjects[0].violations] == ["SQNR in dB"]
    assert not report.passed


def test_layers_name_the_node_where_the_error_enters(spoiled: Path) -> None:
    report = check(spoiled, DIGITS, data=HELDOUT, layers=True)
    assert report.layers[0].node == "/block2/conv1/conv/Conv"
    before = [item for item in report.layers if "/block1/" in item.node or "stem" in item.node]
    assert before
    assert {item.sqnr_db for item in before} == {None}


def test_a_large_weight_that_nothing_reads_is_no_obstacle(tmp_path: Path) -> None:
    model = onnx.load(DIGITS)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((64, 64), np.float32), "unread"))
    onnx.save(model, tmp_path / "more.onnx")
    (subject,) = check(tmp_path / "more.onnx", DIGITS, data=HELDOUT).subjects
    assert subject.outputs[0].sqnr_db is None


def test_layers_of_a_reference_in_16_bits_are_compared_too(half: Path, tmp_path: Path) -> None:
    trtopt.cast(half, tmp_path / "again.onnx", precision="fp16", data=HELDOUT, compare=False)
    report = check(tmp_path / "again.onnx", half, data=HELDOUT, layers=True)
    assert {item.sqnr_db for item in report.layers} == {None}
    assert "/block2/conv1/conv/Conv" in {item.node for item in report.layers}


@pytest.mark.parametrize("batch", [(1,), (8,)])
def test_an_engine_is_run_by_a_process_of_its_own_and_a_last_batch_may_be_short(
    cpu_build: Path, batch: tuple[int, ...], tmp_path: Path
) -> None:
    images = np.load(HELDOUT)
    np.savez(tmp_path / "d.npz", images=images["images"][:13], labels=images["labels"][:13])
    report = check(cpu_build, DIGITS, data=tmp_path / "d.npz", batch=batch, task="digits")
    (subject,) = report.subjects
    assert (subject.samples, subject.batch) == (13, batch[0])
    assert subject.backend.startswith("onnxruntime")
    assert subject.outputs[0].values == 130
    assert subject.outputs[0].cosine > 0.999999
    assert subject.task is not None
    assert subject.task.checked == subject.task.reference


@needs_no_gpu
def test_engines_that_cannot_run_here_are_not_said_to_be_checked(rtx_build: Path) -> None:
    report = check(rtx_build, DIGITS, data=HELDOUT, batch=[8])
    assert any("are not run" in note for note in report.notes)
    assert report.subjects[0].backend.startswith("onnxruntime")
    with pytest.raises(UsageError, match="in their place"):
        check(rtx_build, DIGITS, data=HELDOUT, batch=[8], min_cosine=0.9)
    assert check(rtx_build, DIGITS, data=HELDOUT, batch=[8], min_cosine=0.9, backend="onnxruntime").passed


def test_without_data_the_report_says_that_it_knows_nothing_of_accuracy(cpu_build: Path, half: Path) -> None:
    for path in (cpu_build, half):
        report = check(path, DIGITS)
        assert report.data_is_random
        assert all(subject.outputs[0].cosine > 0.999 for subject in report.subjects)


def test_inputs_of_another_kind_than_the_reference_s_are_named(tmp_path: Path) -> None:
    files = {}
    for name, io in (("pixels", "uint8:nhwc"), ("planes", "uint8"), ("half", "fp16")):
        files[name] = tmp_path / f"{name}.onnx"
        trtopt.rewrite(DIGITS, files[name], target="10", io={"images": io}, check=False)
    for path in (DIGITS, files["half"], files["planes"]):
        with pytest.raises(ModelError, match=r"takes 'images' as .*, and the reference as uint8 .*, 1\)"):
            check(path, files["pixels"])
    assert check(DIGITS, files["half"]).subjects[0].outputs[0].cosine > 0.99


def test_what_cannot_be_compared_is_named(cpu_build: Path, tmp_path: Path) -> None:
    other = TRANSFORMER / "digits_transformer.onnx"
    with pytest.raises(ModelError, match="other inputs than the reference"):
        check(cpu_build, other, data=TRANSFORMER / "heldout.npz")
    with pytest.raises(ModelError, match="other inputs than the reference: images; that takes tokens"):
        check(DIGITS, other, data=HELDOUT)
    with pytest.raises(UsageError, match="batch: an ONNX file runs on the samples in their own shapes"):
        check(DIGITS, DIGITS, data=HELDOUT, batch=[4])
    with pytest.raises(UsageError, match="no inner tensors"):
        check(cpu_build, DIGITS, data=HELDOUT, layers=True)
    with pytest.raises(UsageError, match="no model is named"):
        check(DIGITS, DIGITS, data=HELDOUT, task="digts")
    np.savez(tmp_path / "d.npz", images=np.load(HELDOUT)["images"][:8])
    with pytest.raises(DataError, match=r"accuracy fails .*"):
        check(DIGITS, DIGITS, data=tmp_path / "d.npz", task="digits")


def with_outputs(path: Path, *names: str) -> Path:
    """y = x · w and z = relu(y), of which those are outputs."""
    x, *outputs = (helper.make_tensor_value_info(name, FLOAT, ["N", 8]) for name in ("x", *names))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Relu", ["y"], ["z"])]
    weight = numpy_helper.from_array(np.eye(8, dtype=np.float32), "w")
    graph = helper.make_graph(nodes, "g", [x], outputs, [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_missing_or_an_additional_output_is_a_failure_that_names_it(
    tmp_path: Path, trtopt_cli: CommandLine
) -> None:
    one, two = with_outputs(tmp_path / "one.onnx", "y"), with_outputs(tmp_path / "two.onnx", "y", "z")
    other = with_outputs(tmp_path / "other.onnx", "z")
    asked = ("--min-cosine", "0.99", "--json", "-")
    assert "it lacks 'z'" in trtopt_cli.fails(1, "check", one, "--against", two, *asked)
    assert "it also has 'z'" in trtopt_cli.fails(1, "check", two, "--against", one, *asked)
    assert "it lacks 'y' and also has 'z'" in trtopt_cli.fails(1, "check", other, "--against", one)
    trtopt.build(one, tmp_path / "built", batch=[4], backend="onnxruntime", rewrite="none")
    with pytest.raises(ModelError, match="it lacks 'z'"):
        check(tmp_path / "built", two)
    assert check(tmp_path / "built", one, max_error=0.0).passed


def test_the_command_tells_and_its_status_is_3_where_a_bound_is_not_met(
    half: Path, tmp_path: Path, trtopt_cli: CommandLine
) -> None:
    shutil.copy(half, tmp_path / "half.onnx")
    line = ["check", tmp_path / "half.onnx", "--against", DIGITS, "--data", HELDOUT]
    done = trtopt_cli(*line, "--min-top1", "1", "--model", "digits", "--layers")
    assert done.returncode == 0, done.stderr
    assert "top-1 agreement 100.00%" in done.stdout
    assert "classification.py:accuracy" in done.stdout
    assert "where the error enters" in done.stdout
    done = trtopt_cli(*line, "--min-sqnr", "200", "--json", "-")
    assert done.returncode == 3
    assert from_json(done.stdout.encode(), CheckReport).passed is False
    assert json.loads(done.stdout)["schema"] == "trtopt.check/1"
    assert "does not exist" in trtopt_cli.fails(2, "check", "gone.onnx", "--against", DIGITS)


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--min-cosine", "2"), ("--min-top1", "7"), ("--max-error", "-1"), ("--min-sqnr", "nan")],
)
def test_a_bound_that_is_none_is_refused(flag: str, value: str, trtopt_cli: CommandLine) -> None:
    told = trtopt_cli.fails(2, "check", DIGITS, "--against", DIGITS, flag, value)
    assert f"{flag} {value}: out of range" in told


def test_tensors_may_be_called_like_arguments_of_numpys(tmp_path: Path) -> None:
    node = onnx.helper.make_node("MatMul", ["allow_pickle", "w"], ["file"])
    x, y = (onnx.helper.make_tensor_value_info(name, 1, ["N", 8]) for name in ("allow_pickle", "file"))
    weight = numpy_helper.from_array(np.eye(8, dtype=np.float32), "w")
    graph = onnx.helper.make_graph([node], "g", [x], [y], [weight])
    path = tmp_path / "named.onnx"
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path
    )
    trtopt.build(path, tmp_path / "d", backend="onnxruntime", rewrite="none")
    report = check(tmp_path / "d", path)
    assert [output.output for output in report.subjects[0].outputs] == ["file"]
    assert report.subjects[0].outputs[0].max_abs < 1e-6


def test_engines_with_a_recurrent_state_are_checked_on_every_sample_at_their_batch(tmp_path: Path) -> None:
    text = """
        # w: float[8,8]
        g (float[batch,8] x, float[2,batch,8] state) => (float[batch,8] y, float[2,batch,8] next)
        {h = MatMul(x, w) next = Add(state, h) y = ReduceMean<axes=[0], keepdims=0>(next)}"""
    source = saved(text, tmp_path)
    rng = np.random.default_rng(0)
    arrays = {"x": rng.random((4, 8), np.float32), "state": rng.random((2, 4, 8), np.float32)}
    np.savez(tmp_path / "data.npz", **arrays)
    trtopt.build(source, tmp_path / "engines", batch=[1, 3], backend="onnxruntime")
    report = trtopt.check(tmp_path / "engines", against=source, data=tmp_path / "data.npz")
    assert [subject.samples for subject in report.subjects] == [4, 4]
    assert max(item.max_abs for one in report.subjects for item in one.outputs) < 1e-5
