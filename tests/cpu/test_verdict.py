"""The selection of precisions: graphs, engines and accuracy are real, times come from a script or a CPU."""

from __future__ import annotations

import json
import threading
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from rich.console import Console

import trtopt
from tests.support.command_line import DIGITS, CommandLine, needs_no_gpu
from tests.support.selection_builds import PAIRS, TRANSFORMER, build, quantised, script
from trtopt.cli.main import cli
from trtopt.errors import BuildError, TrtoptError, UsageError
from trtopt.files.manifests import read_manifest
from trtopt.onnxio import model_file
from trtopt.onnxio.model_info import read_onnx
from trtopt.precision.compare import open_model
from trtopt.records import from_json
from trtopt.records.precision import CastReport
from trtopt.report.precision import verdict_view
from trtopt.requests.models import QuantizeOptions
from trtopt.workflows.build import precision_selection as select_precision
from trtopt.workflows.build.candidates import Candidates, Entry
from trtopt.workflows.listener import Listener
from trtopt.workflows.precision.checker import Checker
from trtopt.workflows.precision.quantize import quantize
from trtopt.workflows.workbench import Workbench

LOSERS = ("blocks.0.qkv/MatMul", "blocks.1.qkv/MatMul", "blocks.2.qkv/MatMul")


def layer_ms(candidate: str, batch: int, node: onnx.NodeProto) -> float:
    """INT8 halves every product, but for those of qkv at batch 1, where it takes twice as long."""
    if node.op_type in PAIRS:
        return 0.015625
    if node.op_type != "MatMul":
        return 0.0625
    if candidate == "fp16":
        return 1.0
    return 2.0 if batch == 1 and node.name in LOSERS else 0.5


# ── the whole loop, on scripted times ───────────────────────────────────────────────────────────────────


def test_regions_that_lose_stay_float_at_the_batch_size_where_they_do(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    times = script(monkeypatch, layer_ms, fp16_1=1.0, int8_1=1.05, int8_part1_1=0.9, fp16_8=1.0, int8_8=0.8)
    manifest = build(TRANSFORMER, tmp_path / "out", calib)
    assert times.in_turns == [
        (1, ("fp16", "int8")),
        (8, ("fp16", "int8")),
        (1, ("fp16", "int8", "int8.part1")),
    ]
    first, second = manifest.engines
    reduced, whole = manifest.graph_of(first), manifest.graph_of(second)
    assert (reduced.path, whole.path) == ("model.int8.part1.onnx", "model.int8.onnx")
    assert quantised(tmp_path / "out" / whole.path) - quantised(tmp_path / "out" / reduced.path) == set(
        LOSERS
    )
    for graph in (reduced, whole):
        assert read_onnx(tmp_path / "out" / graph.path).sha256 == graph.sha256
    assert manifest.verdict is not None
    assert [one.chosen for one in manifest.verdict.batches] == ["int8.part1", "int8"]
    losing = [one for one in manifest.verdict.batches[0].regions["int8"] if one.loses]
    assert tuple(name for one in losing for name in one.nodes) == LOSERS
    assert losing[0].change_ms == 1.0 + 4 * 0.015625
    assert not any(one.loses for one in manifest.verdict.batches[1].regions["int8"])
    assert read_manifest(tmp_path / "out") == manifest
    # engines of several graphs are measured and looked into as any; times are real from here on
    monkeypatch.undo()
    profile = trtopt.profile(tmp_path / "out", duration=0.1)
    requested = [
        {name for layer in engine.layers if layer.requested_dtype == "int8" for name in layer.onnx_nodes}
        for engine in profile.engines
    ]
    assert requested[1] - requested[0] >= set(LOSERS)
    assert requested[0] & set(LOSERS) == set()


def test_int8_that_is_slower_is_not_selected(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    script(monkeypatch, layer_ms, fp16_1=1.0, int8_1=1.2, fp16_8=1.0, int8_8=1.001)
    manifest = build(DIGITS, tmp_path / "out", calib)
    assert manifest.verdict is not None
    first, second = manifest.verdict.batches
    assert (first.chosen, second.chosen) == ("fp16", "int8")
    assert "int8 is slower than fp16: latency +20.0%" in first.reason
    assert "; int8 loses " in first.reason
    assert "loses" not in second.reason
    assert second.reason.startswith("not slower than fp16, and requested")
    assert [manifest.graph_of(engine).path for engine in manifest.engines] == [
        "model.fp16.onnx",
        "model.int8.onnx",
    ]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"cast.json", "quantize.json", "batch1.onnx", "batch8.onnx", "batch8.log"}
    assert "candidates" not in names


def test_times_are_reported_before_layers_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    """Who stops then, for layers and what is built after them take long, knows as much."""
    script(monkeypatch, layer_ms, fp16_8=1.0, int8_8=0.8)
    told: list[str] = []
    trtopt.build(
        DIGITS, tmp_path / "out", batch=(8,), backend="onnxruntime", precision="int8", data=calib[DIGITS],
        listener=Listener(note=told.append, plans=told.extend),
    )  # fmt: skip
    times = "batch8, before layers are profiled: fp16 1.000 ms, int8 0.800 ms (FASTER)"
    assert told.index(times) < told.index("batch8: layers of int8")


def test_where_no_build_is_left_layers_are_not_looked_at(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    times = script(monkeypatch, layer_ms, fp16_1=1.0, int8_1=1.05)
    manifest = build(TRANSFORMER, tmp_path / "out", calib, batch=(1,), selection_budget=1)
    assert times.in_turns == [(1, ("fp16", "int8"))]
    assert manifest.verdict is not None
    assert "trtopt explain A B shows why" in manifest.verdict.batches[0].reason
    assert manifest.verdict.batches[0].regions == {}


def test_a_cast_is_compared_once(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    script(monkeypatch, layer_ms, fp16_8=1.0, int8_8=1.2)
    compared, compare = list[str](), Checker.model_file

    def comparing(self: Checker, name: str, *rest: Any) -> object:
        compared.append(name)
        return compare(self, name, *rest)

    monkeypatch.setattr(Checker, "model_file", comparing)
    manifest = build(DIGITS, tmp_path / "out", calib, batch=(8,))
    report = from_json((tmp_path / "out" / "cast.json").read_bytes(), CastReport)
    assert manifest.verdict is not None
    assert manifest.verdict.candidates[0].differences == report.differences
    assert compared == ["int8"]


def test_int8_is_made_while_fp16_is_built(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    script(monkeypatch, layer_ms, fp16_8=1.0, int8_8=0.8)
    made, build_engines, make = threading.Event(), Workbench.build, Candidates.make_int8

    def making(self: Candidates, *request: Any) -> Entry:
        entry = make(self, *request)
        made.set()
        return entry

    def building(self: Workbench, *request: Any) -> Any:
        assert made.wait(300)
        return build_engines(self, *request)

    monkeypatch.setattr(Candidates, "make_int8", making)
    monkeypatch.setattr(Workbench, "build", building)
    build(DIGITS, tmp_path / "out", calib, batch=(8,))


@pytest.mark.parametrize(
    "ended", [KeyboardInterrupt(), SystemExit(143), BuildError("it cannot be built", "")]
)
def test_a_build_that_ends_does_not_wait_for_the_graph_that_is_being_made(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path, ended: BaseException
) -> None:
    began = threading.Event()

    def make_for_ever(*_: object) -> Entry:
        model = open_model(model_file.load(DIGITS))
        while True:
            model.run({"images": np.zeros((1, 1, 8, 8), np.float32)})
            began.set()

    def end(*_: object) -> Any:
        assert began.wait(300)
        raise ended

    monkeypatch.setattr(Candidates, "make_int8", make_for_ever)
    monkeypatch.setattr(Workbench, "build", end)
    with pytest.raises(type(ended)):
        build(DIGITS, tmp_path / "out", calib, batch=(8,))
    assert not list(tmp_path.iterdir())
    assert open_model(model_file.load(DIGITS)).run({"images": np.zeros((1, 1, 8, 8), np.float32)})


def test_where_int8_never_pays_nothing_of_it_is_left(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    script(monkeypatch, layer_ms, fp16_1=1.0, int8_1=1.2, fp16_8=1.0, int8_8=1.2)
    manifest = build(DIGITS, tmp_path / "out", calib)
    assert (manifest.onnx.path, manifest.graphs) == ("model.fp16.onnx", ())
    assert not list((tmp_path / "out").glob("*int8*"))


def test_the_best_precision_keeps_the_accuracy_that_is_requested(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    times = script(monkeypatch, layer_ms, fp32_8=1.0, fp16_8=0.7, int8_8=0.5)
    wanted: dict[str, Any] = {"precision": "best", "batch": (8,)}
    best = build(DIGITS, tmp_path / "best", calib, **wanted)
    assert best.onnx.path == "model.int8.onnx"
    kept = build(DIGITS, tmp_path / "kept", calib, **wanted, min_sqnr=60.0)
    assert kept.onnx.path == "model.fp16.onnx"
    assert times.in_turns[-1] == (8, ("fp32", "fp16"))  # what is not accurate enough is not even built
    assert kept.verdict is not None
    (broken,) = [one for one in kept.verdict.candidates if one.violations]
    assert (broken.name, broken.violations[0].measure) == ("int8", "SQNR in dB")
    strict = build(DIGITS, tmp_path / "strict", calib, **wanted, min_sqnr=200.0)
    assert strict.onnx.path == "model.onnx"
    assert strict.intermediates == ()


def test_where_nothing_could_stay_quantised_the_candidate_stays_whole(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    times = script(monkeypatch, layer_ms, fp16_1=1.0, int8_1=0.9)
    monkeypatch.setattr(select_precision, "losing", lambda *_: ("*",))  # escaped: no node has such a name
    manifest = build(DIGITS, tmp_path / "out", calib, batch=(1,))
    assert manifest.onnx.path == "model.int8.onnx"
    assert times.in_turns == [(1, ("fp16", "int8"))]


def test_data_of_another_length_calibrates_and_times_are_taken_on_random_input(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script(monkeypatch, layer_ms, fp16_2=1.0, int8_2=0.9)
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", "length", 64])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", "length", 64])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), str(tmp_path / "m.onnx"))
    np.savez(tmp_path / "x.npz", x=np.ones((4, 24, 64), np.float32))
    told: list[str] = []
    manifest = trtopt.build(
        tmp_path / "m.onnx", tmp_path / "out", listener=Listener(note=told.append),
        batch=(2,), shapes={"x": "Nx16x64,Nx32x64,Nx32x64"}, backend="onnxruntime",
        precision="int8", data=str(tmp_path / "x.npz"),
    )  # fmt: skip
    assert manifest.verdict is not None
    assert any(
        note.startswith("times are taken on random input: input 'x': samples of shape") for note in told
    )


@pytest.mark.long
def test_the_report_tells_times_choice_accuracy_and_regions(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    script(monkeypatch, layer_ms, fp16_1=1.0, int8_1=1.05, int8_part1_1=0.9)
    verdict = build(TRANSFORMER, tmp_path / "out", calib, batch=(1,)).verdict
    assert verdict is not None
    console = Console(width=200, record=True, file=StringIO())
    console.print(verdict_view(verdict))
    lines = [line.split() for line in console.export_text().splitlines()]
    (float_line,) = [line for line in lines if line[:2] == ["1", "fp16"]]
    assert float_line[3] in ("1.000", "1.001")
    assert float_line[4:] == ["–", "baseline"]
    assert float_line[2] == f"{verdict.batches[0].times[0].build_seconds:.1f}"
    assert any(line[:2] == ["1", "int8.part1"] and line[-2:] == ["FASTER", "selected"] for line in lines)
    assert any(line[:2] == ["1", "int8"] and line[-1] == "SLOWER" for line in lines)
    assert any(line[2:4] == ["+1.0625", LOSERS[0]] for line in lines)
    assert any(line[:6] == ["int8.part1", "(3", "nodes", "left", "in", "float):"] for line in lines)


# ── on a CPU's own times ────────────────────────────────────────────────────────────────────────────────


def test_the_command_measures_on_onnx_runtime_and_selects_what_it_says(
    calib: dict[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_DURATION_S", "_LAYERS_S"):
        monkeypatch.setattr(select_precision, name, 0.1)
    asked = ["--precision", "int8", "--data", calib[DIGITS], "--backend", "onnxruntime", "--batch", "8"]
    done = CliRunner().invoke(
        cli, ["build", str(DIGITS), "-o", str(tmp_path / "out"), *asked], catch_exceptions=False
    )
    assert done.exit_code == 0, done.stderr
    manifest = read_manifest(tmp_path / "out")
    assert manifest.verdict is not None
    (batch,) = manifest.verdict.batches
    assert manifest.onnx.path == f"model.{batch.chosen}.onnx"
    assert {one.candidate for one in batch.times} == {"fp16", "int8"}
    assert all(one.latency_ms > 0 for one in batch.times)
    (region, outside) = batch.regions["int8"]
    assert len(region.nodes) == 13  # nine convolutions, three skips and the last pool, all in one piece
    assert region.float_ms > 0
    assert outside.nodes == ()
    assert f"batch 8: {batch.chosen} is selected:" in done.stdout


# ── where nothing can be measured ───────────────────────────────────────────────────────────────────────


def test_without_a_verdict_int8_is_selected_and_the_manifest_says_that_it_was_not_measured(
    calib: dict[Path, str], tmp_path: Path
) -> None:
    manifest = build(DIGITS, tmp_path / "out", calib, batch=(8,), verdict=False)
    assert (manifest.onnx.path, manifest.verdict) == ("model.int8.onnx", None)
    assert "int8 was not measured against fp16: --no-verdict" in manifest.notes


@needs_no_gpu
def test_engines_that_cannot_run_here_are_selected_with_a_note(
    calib: dict[Path, str], tmp_path: Path
) -> None:
    manifest = trtopt.build(
        DIGITS, tmp_path / "out", precision="int8", data=calib[DIGITS], backend="tensorrt-rtx"
    )
    (note,) = [note for note in manifest.notes if "not measured" in note]
    assert "do not run here: no GPU found" in note


def test_a_model_with_q_dq_of_its_own_is_not_measured(calib: dict[Path, str], tmp_path: Path) -> None:
    quantize(
        DIGITS,
        tmp_path / "own.onnx",
        QuantizeOptions(precision="int8", target="8.6", data=calib[DIGITS], method="max"),
    )
    again = trtopt.build(
        tmp_path / "own.onnx", tmp_path / "out",
        precision="int8", data=calib[DIGITS], backend="onnxruntime",
    )  # fmt: skip
    assert any("brings its own Q/DQ" in note for note in again.notes)
    with pytest.raises(UsageError, match="brings its own Q/DQ") as refused:
        trtopt.build(
            tmp_path / "own.onnx",
            tmp_path / "best",
            precision="best",
            data=calib[DIGITS],
            backend="onnxruntime",
        )
    assert "give its float model" in refused.value.remedy


@pytest.mark.parametrize(
    ("recipe", "kind", "message"),
    [
        ({"precision": "best", "data": None}, UsageError, "precision='best' needs data"),
        ({"precision": "best", "verdict": False}, UsageError, "cannot be done here: verdict=False"),
        (
            {"precision": "fp16", "min_cosine": 0.9},
            UsageError,
            "min_cosine: has no effect",
        ),
        ({"precision": "fp16", "selection_budget": 2}, UsageError, "selection_budget=2: has no effect"),
    ],
)
def test_what_cannot_be_chosen_is_refused_before_anything_is_made(
    recipe: dict[str, Any], kind: type[TrtoptError], message: str, calib: dict[Path, str], tmp_path: Path
) -> None:
    with pytest.raises(kind) as caught:
        build(DIGITS, tmp_path / "out", calib, **recipe)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_bound_of_a_recipe_that_is_none_is_refused(calib: dict[Path, str], tmp_path: Path) -> None:
    (recipe := tmp_path / "faster.toml").write_text("bounds = {min_speed = 1.0}")
    with pytest.raises(UsageError, match="known bounds: min_cosine"):
        build(DIGITS, tmp_path / "out", calib, profile=str(recipe))
    assert list(tmp_path.iterdir()) == [recipe]


@needs_no_gpu
def test_the_best_precision_needs_a_machine_that_runs_the_engines(
    trtopt_cli: CommandLine, calib: dict[Path, str]
) -> None:
    data = ("--data", calib[DIGITS])
    rtx = ("--backend", "tensorrt-rtx")
    message = trtopt_cli.fails(2, "build", DIGITS, "--precision", "best", *data, *rtx)
    assert "chooses by measuring" in message
    assert "--backend onnxruntime" in message
    bound = ("--precision", "int8", "--min-cosine", "0.9", "-o", "out")
    assert "--min-cosine" in trtopt_cli.fails(2, "build", DIGITS, *bound, *data, *rtx)
    assert not (trtopt_cli.folder / "out").exists()


def test_the_manifest_of_a_verdict_is_plain_json(
    monkeypatch: pytest.MonkeyPatch, calib: dict[Path, str], tmp_path: Path
) -> None:
    script(monkeypatch, layer_ms, fp16_8=1.0, int8_8=0.8)
    build(DIGITS, tmp_path / "out", calib, batch=(8,))
    verdict = json.loads((tmp_path / "out" / "manifest.json").read_bytes())["verdict"]
    assert verdict["batches"][0]["times"][1]["against_baseline"]["verdict"] == "FASTER"
    assert verdict["candidates"][1]["differences"][0]["top1"] == 1.0
