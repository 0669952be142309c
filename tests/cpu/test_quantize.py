"""`trtopt quantize` end to end: trained models, engines by TensorRT-RTX, tables, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import trtopt
from tests.support.cast_models import saved
from tests.support.command_line import DIGITS, HELDOUT, CommandLine
from tests.support.long import few
from trtopt.errors import ArtifactError, DataError, TrtoptError, UsageError
from trtopt.onnxio import model_file
from trtopt.onnxio.model_info import read_onnx
from trtopt.precision.calibrate import read_table
from trtopt.precision.compare import open_model
from trtopt.records import from_json
from trtopt.records.precision import QuantizeReport
from trtopt.report.precision import explain_quantization
from trtopt.requests.models import QuantizeOptions
from trtopt.workflows.precision.quantize import quantize

TRANSFORMER = DIGITS.parents[1] / "digits_transformer" / "digits_transformer.onnx"
CALIBRATION = 100
"""The first held-out images calibrate, the others judge."""


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    """Calibration files of the two trained models."""
    folder = tmp_path_factory.mktemp("calibration")
    made = {}
    for model, key in ((DIGITS, "images"), (TRANSFORMER, "tokens")):
        with np.load(model.with_name("heldout.npz")) as file:
            np.savez(folder / f"{key}.npz", **{key: file[key][:CALIBRATION]})
        made[model] = folder / f"{key}.npz"
    return made


def accuracy(model: Path) -> float:
    """Right answers in percent, over the held-out images that calibration has not seen."""
    file = model_file.load(model)
    name = file.proto.graph.input[0].name
    with np.load((DIGITS if name == "images" else TRANSFORMER).with_name("heldout.npz")) as heldout:
        inputs, labels = heldout[name][CALIBRATION:], heldout["labels"][CALIBRATION:]
    inputs = inputs.astype(np.int64) if name == "tokens" else inputs
    (logits,) = open_model(file).run({name: inputs}).values()
    return float((logits.argmax(axis=1) == labels).mean() * 100)


def is_half_around_pairs(model: onnx.ModelProto) -> bool:
    """Whether all scales are FP16, and casts touch Q and DQ at the graph's inputs and outputs only."""
    graph = model.graph
    kinds = {item.name: item.data_type for item in graph.initializer}
    pairs = [node for node in graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    ends = {value.name for value in (*graph.input, *graph.output)}
    touched = {name for node in pairs for name in (*node.input, *node.output)}
    inner = [
        node
        for node in graph.node
        if node.op_type == "Cast" and touched & {*node.input, *node.output} and not ends & set(node.input)
    ]
    return inner == [] and all(kinds[node.input[1]] == onnx.TensorProto.FLOAT16 for node in pairs)


# ── trained models ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("model", "precision", "target", "stored", "points"),
    [
        (DIGITS, "int8", "8.6", False, 0.5),
        (DIGITS, "int8", "rtx", True, 0.5),
        pytest.param(DIGITS, "fp8", "rtx", False, 1.0, marks=pytest.mark.long),
        pytest.param(TRANSFORMER, "int8", "8.6", False, 1.0, marks=pytest.mark.long),
        pytest.param(TRANSFORMER, "fp8", "rtx", True, 1.0, marks=pytest.mark.long),
        (TRANSFORMER, "int4", "rtx", True, 1.0),
    ],
)
def test_a_trained_model_stays_right_and_builds_with_tensorrt_rtx(
    model: Path,
    precision: str,
    target: str,
    stored: bool,
    points: float,
    samples: dict[Path, Path],
    tmp_path: Path,
) -> None:
    calib = None if precision == "int4" else str(samples[model])
    request = QuantizeOptions(precision=precision, target=target, data=calib, store_weights=stored)
    report = quantize(model, tmp_path / "q.onnx", request)
    assert accuracy(tmp_path / "q.onnx") >= accuracy(model) - points
    assert report.samples == (0 if precision == "int4" else CALIBRATION)
    if target != "8.6":
        assert is_half_around_pairs(onnx.load(tmp_path / "q.onnx"))
    trtopt.build(tmp_path / "q.onnx", tmp_path / "engines", batch=(4,), backend="tensorrt-rtx")


@pytest.mark.long
def test_int4_with_data_errs_less_and_builds(samples: dict[Path, Path], tmp_path: Path) -> None:
    plain = quantize(TRANSFORMER, tmp_path / "plain.onnx", QuantizeOptions(precision="int4", target="rtx"))
    noise = quantize(
        TRANSFORMER,
        tmp_path / "noise.onnx",
        QuantizeOptions(precision="int4", target="rtx", random_data=True),
    )
    for report in (plain, noise):
        assert any("rounded to nearest; with --data" in note for note in report.notes)
    request = QuantizeOptions(precision="int4", target="rtx", data=str(samples[TRANSFORMER]))
    report = quantize(TRANSFORMER, tmp_path / "q.onnx", request)
    assert any(
        "weights are rounded to minimise" in note and "on 100 samples" in note for note in report.notes
    )
    quantize(TRANSFORMER, tmp_path / "again.onnx", request)
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "q.onnx").read_bytes()
    with np.load(TRANSFORMER.with_name("heldout.npz")) as heldout:
        feed = {"tokens": heldout["tokens"][CALIBRATION:].astype(np.int64)}
    right, near, got = (
        open_model(model_file.load(file)).run(feed)["logits"]
        for file in (TRANSFORMER, tmp_path / "plain.onnx", tmp_path / "q.onnx")
    )
    assert np.sum((got - right) ** 2) < 0.7 * np.sum((near - right) ** 2)
    assert accuracy(tmp_path / "q.onnx") >= accuracy(TRANSFORMER) - 1.0
    trtopt.build(tmp_path / "q.onnx", tmp_path / "engines", batch=(4,), backend="tensorrt-rtx")


@pytest.mark.long
@pytest.mark.parametrize("precision", few("bf16", of=["fp16", "bf16"]))
def test_a_16_bit_model_is_quantised_as_the_fp32_one(
    precision: str, samples: dict[Path, Path], tmp_path: Path
) -> None:
    half = tmp_path / "half.onnx"
    trtopt.cast(TRANSFORMER, half, precision=precision, cast_io=True, compare=False)  # type: ignore[arg-type]
    report = quantize(
        half,
        tmp_path / "q.onnx",
        QuantizeOptions(precision="fp8", target="rtx", data=str(samples[TRANSFORMER])),
    )
    wide = quantize(
        TRANSFORMER,
        tmp_path / "wide.onnx",
        QuantizeOptions(precision="fp8", target="rtx", data=str(samples[TRANSFORMER])),
    )
    assert {item.node for item in report.decisions if item.quantised} == {
        item.node for item in wide.decisions if item.quantised
    }
    assert accuracy(tmp_path / "q.onnx") >= accuracy(TRANSFORMER) - 1.0
    assert any("became FP32 first" in note for note in report.notes)
    trtopt.build(tmp_path / "q.onnx", tmp_path / "engines", batch=(4,), backend="tensorrt-rtx")


@pytest.mark.parametrize("is_half", [False, True])
def test_nodes_that_share_a_name_are_distinguished(
    is_half: bool, samples: dict[Path, Path], tmp_path: Path
) -> None:
    source, calib = tmp_path / "m.onnx", str(samples[DIGITS])
    trtopt.cast(DIGITS, source, precision="fp16", compare=False)
    model = onnx.load(source if is_half else DIGITS)
    for node in model.graph.node:
        node.name = "n"
    onnx.save(model, source)
    report = quantize(
        source, tmp_path / "q.onnx", QuantizeOptions(precision="int8", target="8.6", data=calib, method="max")
    )
    plain = quantize(
        DIGITS,
        tmp_path / "plain.onnx",
        QuantizeOptions(precision="int8", target="8.6", data=calib, method="max"),
    )
    assert (report.pairs, report.weights) == (plain.pairs, plain.weights)
    assert not any("not verified" in note for note in report.notes)
    assert accuracy(tmp_path / "q.onnx") >= accuracy(DIGITS) - 0.5


def test_auto_takes_the_method_with_the_least_error(samples: dict[Path, Path], tmp_path: Path) -> None:
    report = quantize(
        DIGITS,
        tmp_path / "q.onnx",
        QuantizeOptions(precision="int8", target="8.6", data=str(samples[DIGITS])),
    )
    assert {item.method for item in report.scores} >= {"max", "entropy", "mse", "percentile-99.9"}
    assert report.method == max(report.scores, key=lambda item: item.sqnr_db).method
    assert report.sqnr_db["logits"] == pytest.approx(report.scores[0].sqnr_db, abs=3)


def test_a_table_tells_what_is_smoothed(samples: dict[Path, Path], tmp_path: Path) -> None:
    calib = str(samples[TRANSFORMER])
    first = QuantizeOptions(precision="int8", target="8.6", data=calib, method="max")
    quantize(TRANSFORMER, tmp_path / "a.onnx", first)
    table = tmp_path / "a.onnx.calibration.json"
    nodes = onnx.load(tmp_path / "a.onnx").graph.node
    norm = next(node for node in nodes if node.op_type == "LayerNormalization")
    found = json.loads(table.read_text())
    table.write_text(json.dumps(found | {"smoothed": {norm.output[0]: {"3": 2.0}}}))
    quantize(TRANSFORMER, tmp_path / "b.onnx", QuantizeOptions(precision="int8", target="8.6", table=table))
    weights = {item.name for item in onnx.load(tmp_path / "b.onnx").graph.initializer}
    assert any(f"_smoothed_{norm.name}" in name for name in weights)
    assert accuracy(tmp_path / "b.onnx") >= accuracy(TRANSFORMER) - 1.0
    with pytest.raises(ArtifactError, match="which this model cannot do"):
        quantize(DIGITS, tmp_path / "c.onnx", QuantizeOptions(precision="int8", target="8.6", table=table))


# ── tables ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def table(samples: dict[Path, Path], tmp_path: Path) -> Path:
    quantize(
        DIGITS,
        tmp_path / "first.onnx",
        QuantizeOptions(precision="int8", target="8.6", data=str(samples[DIGITS])),
    )
    return tmp_path / "first.onnx.calibration.json"


def scales(model: Path) -> dict[str, float]:
    graph = onnx.load(model).graph
    return {item.name: float(onnx.numpy_helper.to_array(item)) for item in graph.initializer
            if item.name.endswith("_scale") and not item.dims}  # fmt: skip


def test_a_table_gives_the_same_graph_again_without_data(table: Path, tmp_path: Path) -> None:
    quantize(DIGITS, tmp_path / "again.onnx", QuantizeOptions(precision="int8", target="8.6", table=table))
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "first.onnx").read_bytes()


def test_an_edited_value_and_another_method_are_taken(table: Path, tmp_path: Path) -> None:
    content = json.loads(table.read_bytes())
    content["tensors"]["images"]["chosen"] = 2.54
    table.write_text(json.dumps(content))
    told = quantize(
        DIGITS, tmp_path / "edited.onnx", QuantizeOptions(precision="int8", target="8.6", table=table)
    )
    assert any("1 ranges are not what" in note and "'images'" in note for note in told.notes)
    assert scales(tmp_path / "edited.onnx")["images_scale"] == pytest.approx(0.02)
    quantize(
        DIGITS,
        tmp_path / "other.onnx",
        QuantizeOptions(precision="int8", target="8.6", table=table, method="percentile-99.9"),
    )
    expected = {name: row["amax"]["percentile-99.9"] / 127 for name, row in content["tensors"].items()}
    found = scales(tmp_path / "other.onnx")
    assert found == {f"{name}_scale": pytest.approx(value) for name, value in expected.items()}


def test_an_int8_table_gives_fp8_its_largest_values_but_not_int8_s_scores(
    table: Path, tmp_path: Path
) -> None:
    assert read_table(table).scores
    report = quantize(
        DIGITS, tmp_path / "q.onnx", QuantizeOptions(precision="fp8", target="rtx", table=table)
    )
    assert (report.method, report.scores) == ("max", ())


def test_a_table_says_what_it_was_made_of(table: Path) -> None:
    made = read_table(table)
    assert made.samples == CALIBRATION
    assert not made.random_data
    assert made.model_sha256 == read_onnx(DIGITS).sha256


def test_random_data_marks_table_and_report(tmp_path: Path) -> None:
    report = quantize(
        DIGITS, tmp_path / "q.onnx", QuantizeOptions(precision="int8", target="8.6", random_data=True)
    )
    assert report.random_data
    assert any("random data" in note for note in report.notes)
    assert read_table(tmp_path / "q.onnx.calibration.json").random_data


def test_few_samples_are_counted_in_a_warning(tmp_path: Path) -> None:
    with np.load(HELDOUT) as file:
        np.savez(tmp_path / "few.npz", images=file["images"][:5])
    report = quantize(
        DIGITS,
        tmp_path / "q.onnx",
        QuantizeOptions(precision="int8", target="8.6", data=str(tmp_path / "few.npz")),
    )
    assert any(note.startswith("calibrated on 5 samples only") for note in report.notes)


# ── the command ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_command_tells_explains_and_gives_json(
    trtopt_cli: CommandLine, samples: dict[Path, Path]
) -> None:
    common = ("quantize", DIGITS, "-o", "q.onnx", "--precision", "int8", "--target", "8.6", "--data")
    told = trtopt_cli(*common, samples[DIGITS], "--method", "max")
    assert "9 Conv, 3 Add, 1 GlobalAveragePool quantised" in told.stdout
    assert "kept in float: 1 Gemm because it is the head" in told.stdout
    as_json = trtopt_cli(*common, samples[DIGITS], "--exclude", "/block3/*", "--method", "max", "--json", "-")
    report = from_json(as_json.stdout.encode(), QuantizeReport)
    assert {item.rule for item in report.decisions if item.node.startswith("/block3/")} == {"excluded"}
    assert explain_quantization(report, "/block1/*Add*")[0].endswith("[residual]")
    with pytest.raises(UsageError, match="--explain nothing: no node of that name"):
        explain_quantization(report, "nothing")


# ── bad input ───────────────────────────────────────────────────────────────────────────────────────────


def npz(folder: Path, **arrays: Any) -> str:
    np.savez(folder / "bad.npz", **arrays)
    return str(folder / "bad.npz")


IMAGES = np.zeros((4, 1, 8, 8), np.float32)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"pictures": IMAGES}, "no array named 'images' \\(it has 'pictures'\\)"),
        ({"images": IMAGES.astype(np.complex64)}, "data of type complex64 does not fit float32"),
        ({"images": IMAGES[:, :, :4]}, "samples of shape \\(1, 4, 8\\), expected \\(1, 8, 8\\)"),
        ({"images": IMAGES + np.nan}, "value nan of sample 0 is not finite"),
        ({"images": IMAGES[:0]}, "too few samples"),
    ],
)
def test_data_that_does_not_fit_is_refused(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        quantize(
            DIGITS,
            tmp_path / "q.onnx",
            QuantizeOptions(precision="int8", target="8.6", data=npz(tmp_path, **arrays)),
        )
    assert not (tmp_path / "q.onnx").exists()


def test_data_on_which_the_model_overflows_is_refused_with_tensor_and_sample(tmp_path: Path) -> None:
    images = np.repeat(IMAGES, 2, axis=0)
    images[6] = 3e38
    with pytest.raises(DataError, match=r"tensor '.*' is not finite \(NaN or infinity\) with sample 6"):
        quantize(
            DIGITS,
            tmp_path / "q.onnx",
            QuantizeOptions(precision="int8", target="8.6", data=npz(tmp_path, images=images), method="max"),
        )


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (QuantizeOptions(precision="int8", target="8.6"), UsageError, "needs data"),
        (QuantizeOptions(precision="int8", target="8.6", data="nowhere.npz"), UsageError, "no such file"),
        (QuantizeOptions(precision="fp8", target="8.6", random_data=True), UsageError, "8.6 has no FP8"),
        (
            QuantizeOptions(precision="int8", random_data=True, method="best"),
            UsageError,
            "--method best: unknown",
        ),
        (
            QuantizeOptions(precision="fp8", random_data=True, method="mse"),
            UsageError,
            "--method mse is for INT8",
        ),
        (
            QuantizeOptions(precision="int8", data="a.npz", random_data=True),
            UsageError,
            "exclude one another",
        ),
        (
            QuantizeOptions(precision="int8", random_data=True, exclude=("Gone",)),
            UsageError,
            "--exclude Gone",
        ),
        (
            QuantizeOptions(precision="int8", random_data=True, exclude=("Conv",)),
            UsageError,
            "9 Conv because --exclude Conv",
        ),
        (
            QuantizeOptions(precision="int4"),
            UsageError,
            "no node is .* 9 Conv because INT4 weights are for MatMul",
        ),
        (QuantizeOptions(precision="int8", table=Path("nowhere.json")), ArtifactError, "cannot be read"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(
    request_: QuantizeOptions, error: type[TrtoptError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        quantize(DIGITS, tmp_path / "q.onnx", request_)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda table: table["tensors"].pop("images"),
            "tensor 'images' is to be quantised and not in the table",
        ),
        (lambda table: table.update(schema="trtopt.calibration/9"), "schema trtopt.calibration/9"),
        (lambda table: table["tensors"]["images"].update(chosen=-1.0), "tensor 'images' has amax -1.0"),
        (lambda table: table.update(extra=1), "cannot be read as a calibration table"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(change: Any, message: str, table: Path, tmp_path: Path) -> None:
    content = json.loads(table.read_bytes())
    change(content)
    table.write_text(json.dumps(content))
    with pytest.raises(ArtifactError, match=message):
        quantize(DIGITS, tmp_path / "q.onnx", QuantizeOptions(precision="int8", target="8.6", table=table))


def test_the_model_is_not_overwritten(tmp_path: Path) -> None:
    copy = tmp_path / "model.onnx"
    copy.write_bytes(DIGITS.read_bytes())
    with pytest.raises(UsageError, match="would replace the model itself"):
        quantize(copy, copy, QuantizeOptions(precision="int8", target="8.6", random_data=True))


def test_the_command_fails_without_a_traceback(trtopt_cli: CommandLine) -> None:
    common = ("quantize", DIGITS, "-o", "q.onnx", "--precision", "int8", "--target", "8.6")
    assert "give --data DATA" in trtopt_cli.fails(2, *common)
    unknown = trtopt_cli.fails(2, *common, "--random-data", "--explain", "nobody")
    assert "--explain nobody: no node of that name" in unknown


# ── as a step of a build ────────────────────────────────────────────────────────────────────────────────


def test_a_build_quantises_first_and_keeps_what_tells_of_it(
    samples: dict[Path, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "engines"
    calib = str(samples[DIGITS])
    manifest = trtopt.build(DIGITS, folder, precision="int8", data=calib, backend="tensorrt-rtx")
    assert manifest.onnx.path == "model.int8.onnx"
    assert manifest.onnx.parent == manifest.intermediates[0].sha256
    report = from_json((folder / "quantize.json").read_bytes(), QuantizeReport)
    assert (report.out, report.calibration_table, report.target) == (
        "model.int8.onnx", "model.int8.onnx.calibration.json", "rtx",
    )  # fmt: skip
    assert read_table(folder / "model.int8.onnx.calibration.json").samples == CALIBRATION


def test_a_build_without_data_is_refused(trtopt_cli: CommandLine) -> None:
    message = trtopt_cli.fails(2, "build", DIGITS, "--precision", "fp8", "--backend", "tensorrt-rtx")
    assert "--precision fp8 needs data" in message


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            """g (float[N,8] x, bool c) => (float[N,8] y)
            {y = If(c) <then_branch = t () => (float[N,8] p) {p = MatMul(x, w)},
                        else_branch = e () => (float[N,8] q) {q = Neg(x)}>}""",
            "layers with weights are inside If ",
        ),
        (
            """g (uint8[N,8] x, uint8[8,8] v) => (float[N,8] y)
            {i = MatMulInteger(x, v) f = Cast<to=1>(i) y = Add(f, f)}""",
            "the model has MatMulInteger, integer operators that TensorRT does not take",
        ),
    ],
)
def test_where_nothing_can_be_quantised_the_reason_is_named(text: str, problem: str, tmp_path: Path) -> None:
    source = saved(f"# w: float[8,8]\n{text}", tmp_path)
    with pytest.raises(UsageError, match=problem):
        quantize(
            source, tmp_path / "out.onnx", QuantizeOptions(precision="int8", target="10", random_data=True)
        )


EMPTY = """
# w: float[32,32]
# ones: float[32]
g (float[N,32] x, float[N] s) => (float[M,32] y, float[N,32] z)
<float zero = {0.0}>
{b = Greater(s, zero) i = NonZero(b) t = Transpose(i) e = GatherND(x, t)
 n = LayerNormalization(e, ones) y = MatMul(n, w) z = MatMul(x, w)}"""


def test_an_activation_that_is_empty_in_all_samples_is_calibrated_and_not_smoothed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    source = saved(EMPTY, tmp_path, w=rng.standard_normal((32, 32), np.float32))
    data = npz(tmp_path, x=rng.standard_normal((48, 32), np.float32), s=-np.ones(48, np.float32))
    report = quantize(
        source, tmp_path / "out.onnx", QuantizeOptions(precision="int8", target="10", data=data)
    )
    assert report.sqnr_db["z"] > 30


def test_a_weight_called_as_a_rounded_one_would_be_is_left_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    text = "g (float[N,128] x) => (float[N,128] y) {a = MatMul(x, w) y = MatMul(a, w_rounded)}"
    weights = {name: rng.standard_normal((128, 128), np.float32) / 11 for name in ("w", "w_rounded")}
    source = saved(text, tmp_path, opset=21, **weights)
    data = npz(tmp_path, x=rng.standard_normal((48, 128), np.float32))
    quantize(
        source,
        tmp_path / "out.onnx",
        QuantizeOptions(precision="int4", target="10", data=data, exclude=("MatMul:y",)),
    )
    kept = {item.name for item in onnx.load(tmp_path / "out.onnx").graph.initializer}
    assert "w_rounded" in kept
