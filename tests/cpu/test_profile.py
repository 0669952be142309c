"""`trtopt profile` on ONNX Runtime's profiler, on engines that cannot be run here, and on result files."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import trtopt
from tests.support.command_line import DIGITS, CommandLine, needs_no_gpu
from trtopt.api import profile
from trtopt.cli.main import cli
from trtopt.device.ort.runtime import OnnxRuntimeTarget
from trtopt.errors import ArtifactError, UsageError
from trtopt.inspect.inspector import read_inspector
from trtopt.records import BenchReport, LayerPass, ProfileReport, from_json, to_json
from trtopt.workflows.profile import peaks
from trtopt.workflows.profile.profile import read_profile

NODES = [node.name for node in onnx.load(str(DIGITS)).graph.node]

# ── layer times on the CPU ──────────────────────────────────────────────────────────────────────────────


def test_onnx_runtime_times_every_node_of_its_model_in_every_run(cpu_build: Path) -> None:
    target = OnnxRuntimeTarget()
    session = target.load((cpu_build / "batch8.onnx").read_bytes())
    images = np.zeros((8, 1, 8, 8), np.float32)
    found = session.layer_pass({"images": (8, 1, 8, 8)}, {"images": images}, 7)
    assert found is not None
    assert found.runs == 7
    assert all(len(layer.ms) == 7 for layer in found.layers)
    assert found.inspector is not None
    described = read_inspector(found.inspector)
    model = onnx.load(str(cpu_build / "batch8.onnx"))
    names = {node.name for node in model.graph.node}
    assert {layer.name for layer in found.layers} == {layer.name for layer in described} == names
    last = next(layer for layer in described if layer.kind == "Gemm")
    assert (last.outputs[0].name, last.outputs[0].shape, last.outputs[0].dtype) == (
        "logits",
        (8, 10),
        "float32",
    )


@pytest.fixture(scope="module")
def looked_into(cpu_build: Path) -> ProfileReport:
    return profile(cpu_build, duration=0.1)


def test_every_node_of_the_onnx_file_is_in_exactly_one_layer(looked_into: ProfileReport) -> None:
    for engine in looked_into.engines:
        covered = [name for layer in engine.layers for name in layer.onnx_nodes]
        assert sorted(covered) == sorted(NODES)
        assert engine.coverage.nodes_mapped == 1.0
        assert engine.coverage.unmatched_times == engine.coverage.unmatched_layers == ()


def test_the_layers_sum_stands_next_to_the_latency(looked_into: ProfileReport) -> None:
    assert [engine.batch for engine in looked_into.engines] == [1, 8]
    for engine in looked_into.engines:
        assert engine.sum_ms == pytest.approx(sum(layer.ms or 0 for layer in engine.layers))
        assert sum(group.ms for group in engine.by_kind) == pytest.approx(engine.sum_ms)
        assert engine.latency_ms is not None


def test_the_models_cost_is_that_of_its_products_and_grows_with_the_batch(looked_into: ProfileReport) -> None:
    one, eight = (engine.roofline for engine in looked_into.engines)
    assert eight.flops == 8 * one.flops
    assert one.floor_ms is None  # nobody knows this processor's peaks
    assert any("no floors" in text for text in looked_into.missing)


def test_probed_peaks_give_floors_and_are_reported_with_how_they_were_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(peaks._PROBES, "cpu", replace(peaks._PROBES["cpu"], size=256, copy_bytes=1 << 24))
    monkeypatch.setattr(peaks, "_BENCH_S", 0.05)
    options = ["--backend", "onnxruntime", "--duration", "0.05", "-o", str(tmp_path), "--probe-peaks"]
    done = CliRunner().invoke(cli, ["profile", str(DIGITS), *options], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    report = read_profile(tmp_path)
    assert report.peaks is not None
    assert report.peaks.bandwidth.value > 0
    (dtype,) = report.peaks.flops
    assert dtype == "float32"
    assert report.peaks.flops[dtype].source.startswith("measured: MatMul 256×256×256 in float32 by onnx")
    assert "copy of 0.015625 GiB within the device, bytes read and written" in " ".join(done.stdout.split())
    assert report.engines[0].roofline.floor_ms is not None
    assert not any("no floors" in text for text in report.missing)


def test_nodes_without_names_are_found_in_the_graph(tmp_path: Path) -> None:
    plain = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N,64] x) => (float[N,64] y) { a = MatMul(x, w) y = Relu(a) }""")
    plain.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(64, dtype=np.float32), "w"))
    onnx.save(plain, tmp_path / "plain.onnx")
    (found,) = profile(tmp_path / "plain.onnx", batch=[4], backend="onnxruntime", duration=0.1).engines
    assert found.roofline.flops >= 2 * 4 * 64 * 64
    assert {node for layer in found.layers for node in layer.onnx_nodes} == {"node_of_a", "node_of_y"}


def test_convolutions_sums_and_activations_are_reported_as_fused(looked_into: ProfileReport) -> None:
    fused = {one.ops: one.count for one in looked_into.engines[1].fusions}
    assert fused == {("Conv", "Relu"): 4, ("Conv", "Add", "Relu"): 3}
    assert looked_into.engines[1].unfused == ()


# ── the command ─────────────────────────────────────────────────────────────────────────────────────────


def test_an_onnx_file_is_profiled_into_a_folder(trtopt_cli: CommandLine) -> None:
    options = ("--backend", "onnxruntime", "--duration", "0.1", "-o", "inside", "--trace")
    done = trtopt_cli("profile", DIGITS, *options, "-v")
    assert done.returncode == 0, done.stderr
    assert "/block1/conv2/conv/Conv + /block1/Add + /block1/relu2/Relu" in done.stdout
    assert "100.0% of the nodes" in done.stdout
    report = read_profile(trtopt_cli.folder / "inside")
    assert report.engines[0].batch == 1
    assert to_json(report, indent=None) == (trtopt_cli.folder / "inside" / "profile.json").read_bytes()
    events = json.loads((trtopt_cli.folder / "inside" / "trace.json").read_bytes())["traceEvents"]
    traced = [event["name"] for event in events if event["ph"] == "X"]
    assert traced == [layer.name for layer in report.engines[0].layers]


def test_one_engine_of_a_folder_is_profiled_alone(
    cpu_build: Path, tmp_path: Path, measured: BenchReport
) -> None:
    alone = profile(cpu_build / "batch8.onnx", result=written(measured, tmp_path))
    assert [engine.batch for engine in alone.engines] == [8]


# ── result files measured elsewhere ─────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def measured(cpu_build: Path) -> BenchReport:
    return trtopt.bench(cpu_build, duration=0.03, warmup=0.01, layers=True)


def written(report: BenchReport, folder: Path) -> Path:
    (folder / "result.json").write_bytes(to_json(report))
    return folder / "result.json"


def with_layers(report: BenchReport, **changes: object) -> BenchReport:
    points = []
    for point in report.points:
        assert point.layers is not None
        points.append(msgspec.structs.replace(point, layers=msgspec.structs.replace(point.layers, **changes)))
    return msgspec.structs.replace(report, points=tuple(points))


def test_a_result_file_is_looked_into_without_measuring(
    cpu_build: Path, tmp_path: Path, measured: BenchReport
) -> None:
    report = profile(cpu_build, result=written(measured, tmp_path), batch=[8])
    assert report.environment == measured.environment
    (engine,) = report.engines
    point = measured.points[1]
    assert point.layers is not None
    medians = {layer.name: float(np.median(layer.ms)) for layer in point.layers.layers}
    assert {layer.name: layer.ms for layer in engine.layers} == pytest.approx(medians)
    bare = profile(DIGITS, result=written(measured, tmp_path))
    assert [one.batch for one in bare.engines] == [1, 8]


def test_a_batch_size_that_a_result_file_lacks_is_refused(
    cpu_build: Path, tmp_path: Path, measured: BenchReport
) -> None:
    with pytest.raises(UsageError, match=r"has no measurement of batch 64") as caught:
        profile(cpu_build, result=written(measured, tmp_path), batch=[8, 64])
    assert caught.value.remedy == "choose among batch 1, 8"


def test_a_result_of_another_model_or_of_other_engines_is_refused(
    cpu_build: Path, tmp_path: Path, measured: BenchReport
) -> None:
    other = msgspec.structs.replace(measured, model_sha256="0" * 64)
    with pytest.raises(ArtifactError, match=r"another model .*hashes differ"):
        profile(cpu_build, result=written(other, tmp_path))
    with pytest.raises(ArtifactError, match=r"another model .*hashes differ"):
        profile(DIGITS, result=written(other, tmp_path))
    first = measured.points[0]
    engine = msgspec.structs.replace(first.latency.engine, sha256="0" * 64)
    point = msgspec.structs.replace(first, latency=msgspec.structs.replace(first.latency, engine=engine))
    rebuilt = msgspec.structs.replace(measured, points=(point,))
    with pytest.raises(ArtifactError, match=r"batch 1 is of another engine .*hashes differ"):
        profile(cpu_build, result=written(rebuilt, tmp_path))


def test_a_result_without_layers_says_with_which_flag_to_measure_again(
    cpu_build: Path, tmp_path: Path, measured: BenchReport
) -> None:
    points = tuple(msgspec.structs.replace(point, layers=None) for point in measured.points)
    with pytest.raises(ArtifactError, match="without a layer pass") as caught:
        profile(cpu_build, result=written(msgspec.structs.replace(measured, points=points), tmp_path))
    assert "--layers" in caught.value.remedy


@pytest.mark.parametrize(
    ("inspector", "told"),
    [
        (None, "there is no inspector's description"),
        ('{"Layers": ["conv", "relu"], "Bindings": []}', "detailed profiling verbosity"),
        ("{}", "comes from another tool"),
    ],
)
def test_without_a_useful_description_names_alone_are_joined_and_the_reason_is_reported(
    cpu_build: Path, tmp_path: Path, measured: BenchReport, inspector: str | None, told: str
) -> None:
    file = written(with_layers(measured, inspector=inspector), tmp_path)
    report = profile(cpu_build, result=file)
    assert any(told in text for text in report.missing)
    assert 0 < report.engines[0].coverage.nodes_mapped < 1
    assert report.engines[0].by_dtype[0].key == "unknown"


def test_names_of_any_characters_reach_the_terminal_and_the_file(
    cpu_build: Path, trtopt_cli: CommandLine, measured: BenchReport
) -> None:
    odd = '[bold]"</td>\x1b[31m\n{ForeignNode[a...b]}'
    layers = LayerPass(runs=1, layers=({"name": odd, "ms": [1.0]},))  # type: ignore[arg-type]
    report = with_layers(measured, layers=layers.layers, inspector=None)
    result = written(from_json(to_json(report), BenchReport), trtopt_cli.folder)
    done = trtopt_cli("profile", cpu_build, "--result", result, "-o", "inside")
    assert done.returncode == 0, done.stderr
    assert "[bold]" in done.stdout
    assert "\x1b" not in done.stdout
    assert read_profile(trtopt_cli.folder / "inside").engines[0].layers[0].name == odd


# ── bad input ───────────────────────────────────────────────────────────────────────────────────────────


@needs_no_gpu
def test_engines_that_cannot_run_here_name_the_gpu_and_not_cupti(
    rtx_build: Path, trtopt_cli: CommandLine
) -> None:
    told = trtopt_cli.fails(1, "profile", rtx_build, "--batch", "8", "--kernels")
    assert "no CUDA device found" in told
    assert "cupti" not in told


def test_what_cannot_be_profiled_is_an_error_with_a_remedy(cpu_build: Path, trtopt_cli: CommandLine) -> None:
    assert "does not exist" in trtopt_cli.fails(2, "profile", "nowhere.onnx")
    assert "name one with -o" in trtopt_cli.fails(2, "profile", cpu_build, "--trace")
    for flag in ("--probe-peaks", "--memory"):
        assert f"{flag}: has no effect with --result, which measures nothing" in trtopt_cli.fails(
            2, "profile", cpu_build, flag, "--result", cpu_build / "manifest.json"
        )
    assert "cannot be read as a result file" in trtopt_cli.fails(
        1, "profile", cpu_build, "--result", cpu_build / "manifest.json"
    )
    shutil.copytree(cpu_build, trtopt_cli.folder / "copy")
    (trtopt_cli.folder / "copy" / "batch1.onnx").write_bytes(b"something else")
    told = trtopt_cli.fails(1, "profile", "copy", "--batch", "1")
    assert "is not the file that the manifest vouches for" in told
