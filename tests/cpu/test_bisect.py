"""`trtopt bisect`: models with one sensitive place, judged on ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import trtopt
from tests.support.cast_models import saved
from tests.support.command_line import DIGITS, HELDOUT, CommandLine, needs_no_gpu
from tests.support.long import few
from tests.support.outlier import SENSITIVE, save_with_outlier
from trtopt.api import check
from trtopt.device.backends import open_builder
from trtopt.errors import TrtoptError, UsageError
from trtopt.onnxio import model_file
from trtopt.onnxio.model_info import read_onnx
from trtopt.precision.bounds import Bounds
from trtopt.precision.calibrate import read_table
from trtopt.records import from_json
from trtopt.records.precision import BisectReport
from trtopt.requests.models import BisectRequest, QuantizeOptions
from trtopt.workflows.precision.bisect import bisect, judge_engines
from trtopt.workflows.precision.checker import Checker
from trtopt.workflows.precision.quantize import quantize

SAMPLES = 100
CONV2 = 2 * 32 * 4 * 4 * 32 * 9
"""Operations of the sensitive node: 32 channels of 4 x 4, each of 32 channels by 3 x 3."""
OPERATIONS = 4 * CONV2 + 2 * CONV2 // 2 + 2 * CONV2 // 18 + CONV2 // 16 + 16 * 64 + 32 * 16 + 2 * 64 * 4
"""Of all candidates: convolutions, those that halve, projections, the input layer, three Adds, the pool."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "images.npz"
    with np.load(HELDOUT) as file:
        np.savez(path, images=file["images"][:SAMPLES])
    return str(path)


@pytest.fixture(scope="module")
def outlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("outlier") / "outlier.onnx"
    save_with_outlier(DIGITS, path)
    return path


@pytest.fixture(scope="module")
def offset(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A product, two that read it, and in between 1000 is added and taken away again; with data for it."""
    folder = tmp_path_factory.mktemp("offset")
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.standard_normal((16, 16)).astype(np.float32), name)
        for name in ("w1", "w2", "w3")
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], "first"),
        helper.make_node("Add", ["a", "thousand"], ["b"], "away"),
        helper.make_node("Sub", ["b", "thousand"], ["c"], "back"),
        helper.make_node("MatMul", ["c", "w2"], ["y"], "second"),
        helper.make_node("MatMul", ["c", "w3"], ["z"], "third"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 16]) for name in "xyz"]
    weights.append(numpy_helper.from_array(np.float32(1000), "thousand"))
    graph = helper.make_graph(nodes, "offset", ends[:1], ends[1:], weights)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        folder / "offset.onnx",
    )
    np.savez(folder / "x.npz", x=random.standard_normal((64, 16)).astype(np.float32))
    return folder / "offset.onnx", str(folder / "x.npz")


def request(data: str | None, precision: str = "int8", **terms: Any) -> BisectRequest:
    terms = {"min_sqnr": 30, "backend": "onnxruntime", **terms}
    return BisectRequest("unnamed", precision=precision, data=data, **terms)  # type: ignore[arg-type]


def bisected(model: Path, asked: BisectRequest, out: Path | None = None) -> BisectReport:
    return bisect(replace(asked, model=model, output=out))


# ── what is found ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def found(outlier: Path, data: str, tmp_path_factory: pytest.TempPathFactory) -> BisectReport:
    """What is kept for TensorRT 8.6."""
    out = tmp_path_factory.mktemp("found") / "found.onnx"
    return bisected(outlier, request(data, target="8.6", method="max"), out)


def test_the_one_node_that_int8_spoils_is_found(outlier: Path, data: str, found: BisectReport) -> None:
    is_it(found, outlier, data)


@pytest.mark.long
def test_it_is_found_for_another_target_too(outlier: Path, data: str, tmp_path: Path) -> None:
    is_it(bisected(outlier, request(data, target="10", method="max"), tmp_path / "f.onnx"), outlier, data)


def is_it(report: BisectReport, outlier: Path, data: str) -> None:
    assert (report.verdict, report.best.nodes, report.patterns) == ("found", (SENSITIVE,), (SENSITIVE,))
    assert report.minimal
    assert (report.sensitivities[0].nodes, report.sensitivities[0].error > 1) == ((SENSITIVE,), True)
    assert report.sensitivities[1].error < 1
    assert report.out is not None
    written = check(report.out, outlier, data=data, min_sqnr=30)
    assert written.passed
    assert written.subjects[0].outputs == report.subjects[0].outputs
    assert report.table_file is not None
    table = read_table(Path(report.table_file))
    assert table.samples == SAMPLES
    beside = SENSITIVE + "_output_0"  # with its maker in float, the other branch is the main one
    assert beside in table.tensors


def test_what_was_found_serves_quantize_as_its_exclude(
    outlier: Path, data: str, found: BisectReport, tmp_path: Path
) -> None:
    common = {"precision": "int8", "target": "8.6", "data": data, "method": "max"}
    spoiled = quantize(outlier, tmp_path / "all.onnx", QuantizeOptions(**common))  # type: ignore[arg-type]
    mended = quantize(
        outlier,
        tmp_path / "some.onnx",
        QuantizeOptions(**common, exclude=found.patterns),  # type: ignore[arg-type]
    )
    assert spoiled.sqnr_db["logits"] < 30 < mended.sqnr_db["logits"]


def test_the_front_goes_from_nothing_kept_to_no_error(found: BisectReport) -> None:
    first, *_, last = found.front
    assert (first.nodes, first.cost, last.error) == ((), 0.0, 0.0)
    (best,) = [item for item in found.front if item.nodes == (SENSITIVE,)]
    assert best == found.best
    assert best.cost == pytest.approx(CONV2 / OPERATIONS)


@pytest.mark.parametrize("precision", few("fp16", of=["fp16", "bf16"]))
def test_two_nodes_that_help_only_together_are_found_among_casts(
    offset: tuple[Path, str], precision: str, tmp_path: Path
) -> None:
    model, data = offset
    report = bisected(model, request(data, precision, min_sqnr=40))
    assert report.best.nodes == ("away", "back")
    assert report.minimal
    trtopt.cast(
        model,
        tmp_path / "cast.onnx",
        precision=precision,
        data=data,
        exclude=report.patterns,  # type: ignore[arg-type]
    )
    assert check(tmp_path / "cast.onnx", model, data=data, min_sqnr=40).passed


def test_all_is_kept_next_to_a_convolution_that_no_bf16_takes(tmp_path: Path) -> None:
    text = """# k: float[2,3,3,3]
# w: float[2,5]
g (float[N,3,3,3] x) => (float[N,5] y)
{a = Conv(x, k) b = GlobalAveragePool(a) c = Flatten(b) y = MatMul(c, w)}"""
    model = saved(text, tmp_path)
    np.savez(tmp_path / "d.npz", x=np.ones((2, 3, 3, 3), np.float32))
    report = bisected(model, request(str(tmp_path / "d.npz"), "bf16", min_sqnr=200))
    assert "MatMul:y" in report.best.nodes


def test_patterns_fit_one_node_even_if_it_is_called_as_an_operator(
    offset: tuple[Path, str], tmp_path: Path
) -> None:
    model, data = offset
    proto = onnx.load(model)
    for node, name in zip(proto.graph.node, ("Relu", "MatMul", "odd[0]*", "4", "5"), strict=True):
        node.name = name
    onnx.save(proto, tmp_path / "named.onnx")
    report = bisected(tmp_path / "named.onnx", request(data, "fp16", min_sqnr=40))
    assert report.best.nodes == ("MatMul", "odd[0]*")
    assert report.patterns == ("[M]atMul", "odd[[]0][*]")


def test_nodes_that_the_user_keeps_anyway_are_no_candidates(outlier: Path, data: str) -> None:
    report = bisected(outlier, request(data, target="8.6", method="max", exclude=("/block2/*",)))
    assert report.verdict == "nothing to keep"
    assert not any(name.startswith("/block2/") for name in report.candidates)


@pytest.mark.long
def test_a_table_takes_the_place_of_calibration_and_its_values_are_used(data: str, tmp_path: Path) -> None:
    quantize(
        DIGITS, tmp_path / "q.onnx", QuantizeOptions(precision="int8", target="8.6", data=data, method="max")
    )
    path = tmp_path / "q.onnx.calibration.json"
    table = read_table(path)
    tensor = "/block3/relu1/Relu_output_0"
    row = msgspec.structs.replace(table.tensors[tensor], chosen=1e4)
    path.write_bytes(
        msgspec.json.encode(msgspec.structs.replace(table, tensors={**table.tensors, tensor: row}))
    )
    report = bisected(DIGITS, request(data, target="8.6", table=path))
    assert report.best.nodes == ("/block3/conv2/conv/Conv",)


# ── engines ─────────────────────────────────────────────────────────────────────────────────────────────


def test_engines_are_built_of_the_model_as_it_is_and_evaluated_at_each_batch(
    data: str, outlier: Path, tmp_path: Path
) -> None:
    """With ONNX Runtime's own engines; TensorRT's are in tests/gpu."""
    checker = Checker(read_onnx(DIGITS), None, Bounds(min_sqnr=30))
    request = BisectRequest(DIGITS, precision="fp16", data=data, batch=(4, 8))
    builder, model = open_builder("onnxruntime"), model_file.load(outlier)
    subjects = judge_engines(checker, builder, request, model, tmp_path)
    assert [(item.batch, item.samples) for item in subjects] == [(4, SAMPLES), (8, SAMPLES)]
    assert all(item.outputs[0].cosine > 0.99999 for item in subjects)


# ── the command ─────────────────────────────────────────────────────────────────────────────────────────


@needs_no_gpu
def test_the_command_tells_what_to_exclude_and_gives_json(
    trtopt_cli: CommandLine, outlier: Path, data: str
) -> None:
    line = ["bisect", outlier, "--precision", "int8", "--target", "8.6", "--method", "max", "--data", data]
    told = trtopt_cli(*line, "--min-sqnr", "30", "-o", "out.onnx", "--json", "found.json")
    assert told.returncode == 0, told.stderr
    assert "--min-sqnr 30 is met with 1 of 13 nodes kept in FP32" in told.stdout
    assert f"\n  --exclude {SENSITIVE}\n" in told.stdout
    assert "written: out.onnx, out.onnx.calibration.json" in told.stdout
    assert "evaluating with onnxruntime: no GPU found" in told.stderr
    report = from_json((trtopt_cli.folder / "found.json").read_bytes(), BisectReport)
    assert report.best.nodes == (SENSITIVE,)
    assert (report.out, report.bounds) == ("out.onnx", {"min_sqnr": 30.0})


def test_a_bound_that_is_met_already_and_one_that_never_is(trtopt_cli: CommandLine, data: str) -> None:
    line = ["bisect", DIGITS, "--precision", "int8", "--data", data, "--backend", "onnxruntime"]
    told = trtopt_cli(*line, "--min-top1", "0.9", "-o", "met.onnx")
    assert told.returncode == 0, told.stderr
    assert "is met without keeping any node: 13 nodes in INT8; 1 of at most 200 evaluations" in told.stdout
    assert (trtopt_cli.folder / "met.onnx").is_file()
    told = trtopt_cli(*line, "--min-sqnr", "150", "-o", "unmet.onnx")
    assert told.returncode == 3
    assert "NOT MET: --min-sqnr 150, even with all 13 nodes in FP16" in told.stdout
    assert not (trtopt_cli.folder / "unmet.onnx").exists()


def test_spent_evaluations_are_reported(trtopt_cli: CommandLine, data: str) -> None:
    line = ["bisect", DIGITS, "--precision", "int8", "--data", data, "--backend", "onnxruntime"]
    told = trtopt_cli(*line, "--min-sqnr", "45", "--max-evaluations", "5")
    assert told.returncode == 0, told.stderr
    assert "5 of at most 5 evaluations" in told.stdout
    assert "fewer may suffice" in told.stdout


# ── bad input ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("terms", "error", "message"),
    [
        ({"min_sqnr": None}, UsageError, "no accuracy bound is given"),
        ({"data": None}, UsageError, "needs data to measure accuracy"),
        ({"data": "nowhere.npz"}, UsageError, "no such file"),
        ({"precision": "fp16", "method": "max"}, UsageError, "--method is for int8 and fp8"),
        ({"precision": "bf16", "table": Path("t.json")}, UsageError, "--table is for int8 and fp8"),
        ({"precision": "fp8", "method": "mse"}, UsageError, "--method mse is for INT8"),
        ({"precision": "fp8", "target": "8.6"}, UsageError, "8.6 has no FP8"),
        ({"batch": (1,)}, UsageError, "--batch, --recipe and --timeout are for engines"),
        ({"exclude": ("Gone",)}, UsageError, "--exclude Gone"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(
    terms: dict[str, Any], error: type[TrtoptError], message: str, offset: tuple[Path, str], tmp_path: Path
) -> None:
    model, data = offset
    terms = {"data": data, "precision": "int8", **terms}
    with pytest.raises(error, match=message):
        bisected(model, request(**terms), tmp_path / "out.onnx")
    assert list(tmp_path.iterdir()) == []


def test_the_model_is_not_overwritten(data: str, tmp_path: Path) -> None:
    copy = tmp_path / "model.onnx"
    copy.write_bytes(DIGITS.read_bytes())
    with pytest.raises(UsageError, match="would replace the model itself"):
        bisected(copy, request(data), copy)


def test_a_16_bit_model_is_refused(data: str, tmp_path: Path) -> None:
    trtopt.cast(DIGITS, tmp_path / "half.onnx", precision="fp16", data=data, compare=False)
    with pytest.raises(UsageError, match=r"half.onnx already has 16-bit types"):
        bisected(tmp_path / "half.onnx", request(data, precision="bf16"))


def test_a_pattern_that_fits_nothing_is_refused(data: str) -> None:
    with pytest.raises(UsageError, match="Blah: no node has such a name or operator"):
        bisected(DIGITS, request(data, precision="fp16", exclude=("Blah",)))


def test_a_model_that_is_quantised_already_is_refused(data: str, tmp_path: Path) -> None:
    quantize(
        DIGITS, tmp_path / "q.onnx", QuantizeOptions(precision="int8", target="8.6", data=data, method="max")
    )
    with pytest.raises(UsageError, match=r"q.onnx already contains Q/DQ, so it has no error against itself"):
        bisected(tmp_path / "q.onnx", request(data))


def test_engines_of_another_target_and_recipes_with_a_precision_are_refused(
    data: str, tmp_path: Path
) -> None:
    profile = tmp_path / "p.toml"
    profile.write_text('precision = "fp16"\n')
    for terms, message in (
        ({"target": "8.6"}, "--target 8.6: the engines are built by tensorrt-rtx .*, whose target is rtx"),
        ({"profile": str(profile)}, "names a precision"),
    ):
        with pytest.raises(UsageError, match=message):
            bisected(DIGITS, request(data, backend="tensorrt-rtx", **terms))
