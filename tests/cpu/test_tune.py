"""Tuning with real engines of ONNX Runtime: what wins, what fails, and runs that were killed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import trtopt
from tests.rewrite_graphs.case import model
from tests.support.command_line import DIGITS, HELDOUT, CommandLine
from trtopt.errors import BoundError
from trtopt.files.manifests import read_manifest
from trtopt.requests.build import TuneRequest
from trtopt.workflows import workbench
from trtopt.workflows.build.folder import check_folder
from trtopt.workflows.listener import SILENT, Listener
from trtopt.workflows.tune.evaluation import Evaluation
from trtopt.workflows.tune.kinds import Change
from trtopt.workflows.tune.setup import set_up


def test_the_command_leaves_a_build_and_a_ledger_and_refuses_other_terms(
    trtopt_cli: CommandLine,
) -> None:
    given = ("--backend", "onnxruntime", "--include", "rewrite-rule", "--duration", "0.05")
    given = (*given, "--cache-dir", "cache", "-o", "out")
    done = trtopt_cli("tune", DIGITS, *given, "--data", HELDOUT, "--json", "tuned.json")
    assert done.returncode == 0, done.stderr
    assert "no candidate is better than the baseline" in done.stdout
    assert "no candidate is left to try" in done.stdout
    written = json.loads((trtopt_cli.folder / "tuned.json").read_bytes())
    assert written["ledger"]["entries"] == []  # no rule finds anything in it
    assert written["ledger"]["run_spread"] is None
    assert "this device's own is measured by `trtopt compare" in done.stdout
    assert check_folder(trtopt_cli.folder / "out").is_whole
    page = trtopt_cli("report", "out", "-o", "page.html")
    assert page.returncode == 0, page.stderr
    assert "no candidate is better than the baseline" in (trtopt_cli.folder / "page.html").read_text()
    assert "--resume" in trtopt_cli.fails(1, "tune", DIGITS, *given)
    manifest = trtopt_cli.folder / "out" / "manifest.json"
    whole = manifest.read_text()
    for edited, said in (
        (
            r'"{\"colour\":1}"',
            "manifest.json: cannot be read as a tuned build's: Object contains unknown field",
        ),
        (r'"{"', "manifest.json: cannot be read as a tuned build's"),
        (r'"{}"', "manifest.json: cannot be read as a tuned build's"),
    ):
        (place,) = re.finditer(r'"recipe": ?("(?:[^"\\]|\\.)*")', whole)
        manifest.write_text(whole[: place.start(1)] + edited + whole[place.end(1) :])
        assert said in trtopt_cli.fails(1, "tune", DIGITS, *given, "--data", HELDOUT, "--resume")
    manifest.write_text(re.sub(r'("tuning".*?"batch": ?)\d+', r"\g<1>77", whole, flags=re.DOTALL))
    said = trtopt_cli.fails(1, "tune", DIGITS, *given, "--data", HELDOUT, "--resume")
    assert "not of batch 77" in said
    manifest.write_text(whole)
    (trtopt_cli.folder / "out" / "model.onnx").write_bytes(b"cut off")
    damaged = trtopt_cli.fails(1, "tune", DIGITS, *given, "--data", HELDOUT, "--resume")
    assert "model.onnx: missing or changed since the last run" in damaged
    other = trtopt_cli.fails(1, "tune", DIGITS, *given, "--resume", "--objective", "throughput")
    assert "was tuned on other terms: objective latency, now throughput" in other


def test_a_baseline_that_misses_the_bound_or_the_budget_leaves_nothing(trtopt_cli: CommandLine) -> None:
    given = ("--backend", "onnxruntime", "--cache-dir", "cache", "-o", "out", "--duration", "0.05")
    missed = trtopt_cli.fails(3, "tune", DIGITS, *given, "--min-sqnr", "900")
    assert "the baseline misses the bound: SQNR in dB" in missed
    for command in missed.partition("see all outputs: ")[2].strip().split("; "):
        followed = trtopt_cli(*command.split()[1:])
        assert followed.returncode == 0, followed.stderr
    assert "logits" in followed.stdout
    given_one = trtopt_cli.fails(3, "tune", DIGITS, *given, "--max-error", "1e9", "--min-cosine", "1")
    assert "cosine of 'logits' is" in given_one
    short = trtopt_cli.fails(2, "tune", DIGITS, *given, "--budget", "0.1s")
    assert "--budget 0.1s: building, checking and measuring the baseline took" in short


def test_outputs_that_are_all_nan_are_no_accurate_baseline(tmp_path: Path) -> None:
    path = tmp_path / "nan.onnx"
    onnx.save(
        model(
            "g (float[N,4] x) => (float[N,4] y) <float minus = {-1.0}>"
            "{s = Mul(x, x) t = Mul(s, minus) y = Log(t)}"
        ),
        path,
    )
    with pytest.raises(BoundError, match="finite values of 'y' is 0"):
        trtopt.tune(
            path, tmp_path / "out", backend="onnxruntime", duration=0.05, cache_dir=tmp_path / "cache"
        )


def test_other_dynamic_axes_get_a_length_and_a_kind_without_candidates_is_named(tmp_path: Path) -> None:
    path = tmp_path / "open.onnx"
    onnx.save(model("g (float[N,S,4] x) => (float[N,S,4] y) {y = Relu(x)}"), path)
    tuned = trtopt.tune(
        path,
        tmp_path / "out",
        batch=np.int64(2),  # type: ignore[arg-type]
        axes={"S": 16},
        budget=600,
        include=["streams"],
        resume=True,
        backend="onnxruntime",
        duration=0.05,
        max_error=1.0,
        cache_dir=tmp_path / "cache",
        listener=Listener(note=(heard := list[str]()).append),
    )
    assert tuned.ledger.terms.bounds == {"min_cosine": 0.99, "max_error": 1.0}
    (engine,) = read_manifest(tmp_path / "out").engines
    assert engine.inputs[0].shape[1:] == (16, 4)
    assert "--include streams: nothing to try with this model, objective and backend" in tuned.notes
    assert any("nothing is there to continue" in text for text in heard)


@pytest.mark.parametrize(
    ("io", "precision"),
    [("uint8:nhwc", None), pytest.param("int8", "int8", marks=pytest.mark.long)],
)
def test_a_baseline_of_typed_inputs_is_checked_on_samples_of_them(
    io: str, precision: str | None, tmp_path: Path
) -> None:
    images = np.load(HELDOUT)["images"][:64]
    levels = np.rint(images * 16).clip(0, 255).astype(np.uint8).transpose(0, 2, 3, 1)
    np.savez(tmp_path / "data.npz", images=images if precision else levels)
    (tmp_path / "recipe.toml").write_text(f'precision = "{precision}"\nverdict = false' if precision else "")
    tuned = trtopt.tune(
        DIGITS,
        tmp_path / "out",
        io={"images": io},
        profile=str(tmp_path / "recipe.toml"),
        data=tmp_path / "data.npz",
        min_sqnr=20,
        include=["rewrite-rule"],
        duration=0.05,
        backend="onnxruntime",
        cache_dir=tmp_path / "cache",
    )
    assert tuned.ledger.baseline.accuracy > 0.99
    assert [one.dtype for one in read_manifest(tmp_path / "out").io] == [io.partition(":")[0]]


def test_changes_on_top_of_one_another_stay_builds_of_the_users_model(tmp_path: Path) -> None:
    text = """
        # w: float[8,16]
        # u: float[8,16]
        g (float[n,8] x) => (float[n,16] y) {
            a = MatMul(x, w)
            b = MatMul(x, u)
            c = Relu(a)
            y = Add(c, b)
        }"""
    onnx.save(model(text), tmp_path / "model.onnx")
    changes = (
        Change("add-rule=merge-matmuls", recipe={"add_rule": ("merge-matmuls",)}),
        Change("threads", recipe={"intra_op_threads": 1}),
        Change("batch=4", recipe={"batch": (4,)}),
        Change("build 2", fresh=True),
        Change("streams=2", streams=2),
    )
    request = TuneRequest(tmp_path / "model.onnx", tmp_path / "out", batch=2, backend="onnxruntime")
    with set_up(request) as setup:
        evaluation = Evaluation(setup)
        built = evaluation.build_baseline(tmp_path / "0", 60.0)
        source = built.manifest.source_sha256
        for number, change in enumerate(changes, 1):
            built = evaluation.build_candidate(built, change, tmp_path / str(number), 60.0, SILENT)
            assert check_folder(built.folder).is_whole
            assert read_manifest(built.folder) == built.manifest
            assert built.manifest.source_sha256 == source
    nodes = [node.op_type for node in onnx.load(tmp_path / "3" / built.manifest.onnx.path).graph.node]
    assert nodes.count("MatMul") == 1
    assert built.engine.plan.settings.intra_op_threads == 1
    assert built.engine.plan.batch.max == (4,)
    assert built.streams == 2
    assert built.engine == read_manifest(tmp_path / "4").engines[0]


def test_candidates_for_tensorrt_are_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By TensorRT-RTX, which builds without a GPU: settings, types and formats, and a batch size."""
    monkeypatch.setattr(workbench, "first_gpu", lambda: None)
    with set_up(TuneRequest(DIGITS, tmp_path / "out", batch=8, backend="tensorrt-rtx")) as setup:
        evaluation = Evaluation(setup)
        built = evaluation.build_baseline(tmp_path / "0", 300.0)
        image = built.engine.inputs[0]
        changes = (
            Change("aux_streams=1", recipe={"aux_streams": 1}),
            Change("io", recipe={"io": {image.name: "fp16"}}),
            Change("batch=4", recipe={"batch": (4,)}),
        )
        for number, change in enumerate(changes, 1):
            built = evaluation.build_candidate(built, change, tmp_path / str(number), 300.0, SILENT)
            assert check_folder(built.folder).is_whole
    assert built.engine.builder_config["max_aux_streams"] == "1"
    assert built.engine.inputs[0].dtype == "float16"
    assert built.engine.inputs[0].shape[0] == 4
    assert [one.dtype for one in built.manifest.io] == ["float16"]
