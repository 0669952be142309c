"""`trtopt bench` on ONNX Runtime, and what it refuses to do without a GPU."""

from __future__ import annotations

import json
import os
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest

import trtopt
from tests.support.command_line import DIGITS, HELDOUT, CommandLine, needs_no_gpu
from tests.support.long import few
from trtopt.errors import (
    ArtifactError,
    DataError,
    IncompatibleEngineError,
    ModelError,
    NoGpuError,
    UsageError,
)
from trtopt.measure.load.arrivals import keeps_up
from trtopt.measure.loop.sampling import MIN_TIMED, TIMED_SHARE
from trtopt.records import BenchReport, from_json, to_json


def test_every_engine_of_a_folder_is_measured_in_both_modes(cpu_build: Path) -> None:
    report = trtopt.bench(cpu_build, duration=0.2, warmup=0.05)
    assert [point.batch for point in report.points] == [1, 8]
    for point in report.points:
        assert point.throughput is not None
        for measurement in (point.latency, point.throughput):
            samples = measurement.samples
            count = len(samples.start_ms)
            assert count >= 10
            assert len(samples.end_ms) == count
            ahead = measurement.contract.queue_ahead  # these finish when the count is reached
            timed = max(MIN_TIMED, round((count - ahead) * TIMED_SHARE)) + ahead
            assert len(measurement.staged.gpu_compute_ms) == timed
            assert all(start < end for start, end in zip(samples.start_ms, samples.end_ms, strict=True))
            assert len(measurement.warmups.start_ms) >= 3
            assert measurement.contract.name == "trtexec-11+no-graph"
            assert measurement.notes == (
                "measured without a CUDA graph: ONNX Runtime on the CPU has no CUDA graphs",
            )


def test_a_recurrent_state_is_taken_along_its_own_axis(tmp_path: Path) -> None:
    step = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N,4] x, float[2,N,4] state) => (float[N,4] y, float[2,N,4] next) {
          axis = Constant<value_ints=[0]>()
          sum = ReduceSum<keepdims=0>(state, axis)
          y = Add(x, sum)
          next = Neg(state)
        }""")
    onnx.save(step, tmp_path / "step.onnx")
    np.savez(tmp_path / "d.npz", x=np.ones((16, 4), np.float32), state=np.ones((2, 16, 4), np.float32))
    folder, data = tmp_path / "engines", str(tmp_path / "d.npz")
    trtopt.build(tmp_path / "step.onnx", folder, batch=(1, 8), backend="onnxruntime")
    report = trtopt.bench(folder, data=data, duration=0.03, warmup=0.01)
    assert [point.latency.shapes["state"] for point in report.points] == [(2, 1, 4), (2, 8, 4)]
    compared = trtopt.compare(folder, folder, data=data, batch=(8,), duration=0.02)
    assert [run.batch for run in compared.report.runs] == [8]


def test_a_tensor_that_is_an_input_and_an_output_is_refused_with_what_to_do(tmp_path: Path) -> None:
    both = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N,4] x, float[N,2] p) => (float[N,4] y, float[N,2] p) { y = Relu(x) }""")
    onnx.save(both, tmp_path / "both.onnx")
    with pytest.raises(ModelError, match="'p' is an input and an output") as caught:
        trtopt.build(tmp_path / "both.onnx", tmp_path / "engines", backend="onnxruntime")
    assert "Identity" in caught.value.remedy
    assert not (tmp_path / "engines").exists()


def test_the_contract_decides_whether_copies_are_part_of_a_query(cpu_build: Path) -> None:
    report = trtopt.bench(cpu_build, batch=[8], contract="trtexec-10", duration=0.03, warmup=0.01)
    stages = report.points[0].latency.staged
    assert len(stages.h2d_ms) == len(stages.d2h_ms) == len(stages.start_ms)
    report = trtopt.bench(cpu_build, batch=[8], contract="isolated", duration=0.03, warmup=0.01)
    assert report.points[0].latency.staged.h2d_ms == []
    assert report.points[0].throughput is None


def test_every_flag_that_changes_a_term_is_reported_by_the_contracts_name(
    cpu_build: Path, trtopt_cli: CommandLine
) -> None:
    flags = ["--contract", "trtexec-11", "--no-graph", "--transfers", "--no-pinned", "--queue", "3"]
    flags += [
        "--sync",
        "blocking",
        "--streams",
        "2",
        "--batch",
        "1",
        "--duration",
        "0.03",
        "--warmup",
        "0.01",
    ]
    done = trtopt_cli("bench", cpu_build, *flags, "--json", "result.json")
    assert done.returncode == 0, done.stderr
    report = from_json((trtopt_cli.folder / "result.json").read_bytes(), BenchReport)
    throughput = report.points[0].throughput
    assert throughput is not None
    name = "trtexec-11+no-graph+transfers+no-pinned+queue=3+sync=blocking+streams=2"
    assert throughput.contract.name == name
    assert throughput.contract.queue_ahead == 3
    assert len(throughput.staged.h2d_ms) == len(throughput.staged.start_ms)
    assert set(throughput.samples.inference_stream) == {0, 1}


def test_serving_on_the_cpu_runs_every_stream_and_says_what_the_figures_are(cpu_build: Path) -> None:
    report = trtopt.bench(cpu_build, batch=[1], contract="serving", streams=2, duration=0.2, warmup=0.01)
    throughput = report.points[0].throughput
    assert throughput is not None
    assert set(throughput.samples.inference_stream) == {0, 1}
    assert throughput.samples.start_ms == sorted(throughput.samples.start_ms)
    assert any("copies overlap nothing" in note for note in throughput.notes)
    assert any("no CUDA graphs" in note for note in throughput.notes)


def test_the_report_says_where_the_host_threads_ran(cpu_build: Path) -> None:
    here = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, here[-1:])
    try:
        report = trtopt.bench(cpu_build, batch=[1], duration=0.03, warmup=0.01)
    finally:
        os.sched_setaffinity(0, here)
    assert report.environment.cpus == (here[-1],)


def test_one_engine_of_a_folder_can_be_named(cpu_build: Path) -> None:
    report = trtopt.bench(cpu_build / "batch8.onnx", duration=0.03, warmup=0.01)
    assert [point.latency.engine.label for point in report.points] == ["batch8"]


def test_an_onnx_file_is_built_for_the_measurement_only(tmp_path: Path) -> None:
    report = trtopt.bench(DIGITS, batch=[2, 4], backend="onnxruntime", duration=0.03, warmup=0.01)
    assert [point.batch for point in report.points] == [2, 4]
    assert "built for this measurement only" in report.notes[0]
    assert list(tmp_path.iterdir()) == []


@needs_no_gpu
def test_engines_that_are_to_run_here_and_cannot_are_refused(rtx_build: Path) -> None:
    with pytest.raises(NoGpuError) as caught:
        trtopt.bench(rtx_build, backend="tensorrt-rtx", duration=0.03, warmup=0.01)
    assert "backend='onnxruntime'" in caught.value.remedy
    with pytest.raises(UsageError):  # others keep no latency in their place
        trtopt.bench(rtx_build, max_latency="p50=1s", duration=0.03, warmup=0.01)


@needs_no_gpu
@pytest.mark.parametrize("backend", few("auto", of=[None, "auto"]))
def test_without_a_gpu_the_same_model_is_measured_on_the_cpu_and_reported(
    rtx_build: Path, backend: Literal["auto"] | None
) -> None:
    report = trtopt.bench(rtx_build, backend=backend, duration=0.03, warmup=0.01)
    assert report.environment.backend.name == "onnxruntime"
    assert report.environment.device.kind == "cpu"
    assert "the engines (of tensorrt-rtx) are not run" in report.notes[0]


def test_a_dynamic_engine_is_measured_at_any_batch_in_its_range(tmp_path: Path) -> None:
    trtopt.build(DIGITS, tmp_path / "d", batch=(1, 4, 8), dynamic=True, backend="onnxruntime")
    assert [p.batch for p in trtopt.bench(tmp_path / "d", duration=0.03, warmup=0.01).points] == [1, 4, 8]
    assert [p.batch for p in trtopt.bench(tmp_path / "d", batch=[3], duration=0.03, warmup=0.01).points] == [
        3
    ]
    with pytest.raises(UsageError, match="batch=9"):
        trtopt.bench(tmp_path / "d", batch=[9], duration=0.03, warmup=0.01)


def test_the_result_file_reads_back_as_it_was_written(cpu_build: Path, trtopt_cli: CommandLine) -> None:
    done = trtopt_cli("bench", cpu_build, "--duration", "0.03", "--warmup", "0.01", "--json", "result.json")
    assert done.returncode == 0, done.stderr
    content = (trtopt_cli.folder / "result.json").read_bytes()
    report = from_json(content, BenchReport)
    assert to_json(report, indent=None) == content
    assert report.argv[1:] == (
        "bench",
        str(cpu_build),
        "--duration",
        "0.03",
        "--warmup",
        "0.01",
        "--json",
        "result.json",
    )
    assert "samples/s" in done.stdout


def test_json_on_standard_output_leaves_the_table_on_standard_error(
    cpu_build: Path, trtopt_cli: CommandLine
) -> None:
    done = trtopt_cli(
        "bench", cpu_build, "--duration", "0.03", "--warmup", "0.01", "--json", "-", "--batch", "1"
    )
    assert json.loads(done.stdout)["schema"] == "trtopt.bench/6"
    assert "samples/s" in done.stderr


def test_a_load_on_the_cpu_serves_every_request_and_says_what_the_figures_are(
    cpu_build: Path, trtopt_cli: CommandLine
) -> None:
    options = ("--batch", "8", "--duration", "0.5", "--json", "result.json", "--load", "poisson:100", "-v")
    done = trtopt_cli("bench", cpu_build, *options)
    assert done.returncode == 0, done.stderr
    report = from_json((trtopt_cli.folder / "result.json").read_bytes(), BenchReport)
    load = report.points[0].load
    assert load is not None
    assert load.arrived == len(load.latency_ms) > 20
    assert all(first < second for first, second in pairwise(load.arrival_ms))
    assert min(load.waiting_ms) >= 0
    shown = " ".join(done.stdout.split())
    assert "under load: one request is one query of the whole batch" in shown
    assert "on ONNX Runtime" in shown
    assert f"batch 8: {load.arrived} requests, poisson arrivals at 100/s for 0.5 s, seed 0" in shown


def test_a_latency_that_no_rate_keeps_is_said_to_be_out_of_reach(
    cpu_build: Path, trtopt_cli: CommandLine
) -> None:
    options = ("--batch", "8", "--duration", "0.03", "--warmup", "0.01", "--max-latency", "p50=1us")
    done = trtopt_cli("bench", cpu_build, *options)
    assert done.returncode == 3, done.stderr
    assert "batch 8: p50=0.001ms is out of reach: p50 is " in " ".join(done.stdout.split())


def test_a_rate_that_the_cpu_cannot_reach_is_said_to_be_too_much(cpu_build: Path) -> None:
    load = trtopt.bench(cpu_build, batch=[8], duration=0.03, warmup=0.01, load="3e6").points[0].load
    assert load is not None
    assert not keeps_up(load)
    assert len(load.latency_ms) < load.arrived


def test_times_are_exported_in_trtexecs_layout_with_a_file_for_each_batch_size(
    cpu_build: Path, trtopt_cli: CommandLine
) -> None:
    options = (
        "--duration",
        "0.03",
        "--warmup",
        "0.01",
        "--json",
        "result.json",
        "--export-times",
        "times.json",
    )
    done = trtopt_cli("bench", cpu_build, *options)
    assert done.returncode == 0, done.stderr
    report = from_json((trtopt_cli.folder / "result.json").read_bytes(), BenchReport)
    assert sorted(file.name for file in trtopt_cli.folder.glob("times*")) == [
        "times.batch1.json",
        "times.batch8.json",
    ]
    for point in report.points:
        rows = json.loads((trtopt_cli.folder / f"times.batch{point.batch}.json").read_text())
        assert [row["computeMs"] for row in rows] == point.latency.staged.gpu_compute_ms


def test_onnx_runtimes_nodes_are_exported_in_trtexecs_layout_for_profiles(
    cpu_build: Path, trtopt_cli: CommandLine
) -> None:
    options = ("--batch", "8", "--duration", "0.03", "--warmup", "0.01", "--export-profile", "profile.json")
    done = trtopt_cli("bench", cpu_build, *options)
    assert done.returncode == 0, done.stderr
    header, *rows = json.loads((trtopt_cli.folder / "profile.json").read_text())
    assert header["count"] == 50
    assert "/classifier/Gemm" in {row["name"] for row in rows}


def test_the_users_data_is_what_runs(tmp_path: Path, cpu_build: Path) -> None:
    np.savez(tmp_path / "few.npz", images=np.load(HELDOUT)["images"][:3])
    report = trtopt.bench(cpu_build, batch=[8], data=tmp_path / "few.npz", duration=0.03, warmup=0.01)
    assert report.points[0].batch == 8
    np.savez(tmp_path / "wrong.npz", images=np.zeros((3, 1, 9, 9), np.float32))
    with pytest.raises(DataError, match=r"'images'.*\(1, 9, 9\).*expected \(1, 8, 8\)"):
        trtopt.bench(cpu_build, batch=[8], data=tmp_path / "wrong.npz", duration=0.03, warmup=0.01)
    np.savez(tmp_path / "named.npz", pictures=np.zeros((3, 1, 8, 8), np.float32))
    with pytest.raises(DataError, match="no array named 'images'"):
        trtopt.bench(cpu_build, batch=[8], data=tmp_path / "named.npz", duration=0.03, warmup=0.01)
    np.savez(tmp_path / "pickled.npz", images=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="without pickles"):
        trtopt.bench(cpu_build, batch=[8], data=tmp_path / "pickled.npz", duration=0.03, warmup=0.01)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--memory"], "--memory: ONNX Runtime on the CPU has no device allocator"),
        (["--lock-clocks", "1500"], "a processor's clocks cannot be locked"),
    ],
)
def test_what_the_cpu_cannot_do_is_refused_before_anything_is_built(
    cpu_build: Path, trtopt_cli: CommandLine, flags: list[str], message: str
) -> None:
    assert message in trtopt_cli.fails(2, "bench", cpu_build, *flags)
    told = trtopt_cli.fails(2, "bench", DIGITS, "--backend", "onnxruntime", *flags)
    assert message in told
    assert "built" not in told


@needs_no_gpu
def test_no_one_is_said_to_have_requested_a_backend_that_was_chosen(trtopt_cli: CommandLine) -> None:
    quick = ("bench", DIGITS, "--duration", "0.05", "--warmup", "0.01", "-v")  # a busy machine has notes
    told = trtopt_cli(*quick).stdout
    assert "with onnxruntime: no GPU found" in told
    assert "requested" not in told
    assert "with onnxruntime: requested" in trtopt_cli(*quick, "--backend", "onnxruntime").stdout


def test_an_engine_that_differs_from_its_manifest_is_never_loaded(cpu_build: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(cpu_build, folder)
    with (folder / "batch1.onnx").open("ab") as engine:
        engine.write(b"\0")
    with pytest.raises(ArtifactError, match="was not loaded"):
        trtopt.bench(folder, batch=[1], duration=0.03, warmup=0.01)


def test_an_engine_without_a_manifest_is_never_loaded(rtx_build: Path, tmp_path: Path) -> None:
    shutil.copy(rtx_build / "batch1.engine", tmp_path / "stray.engine")
    with pytest.raises(ArtifactError, match="no manifest lists"):
        trtopt.bench(tmp_path / "stray.engine")


def test_an_engine_of_another_version_is_refused(cpu_build: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(cpu_build, folder)
    text = (folder / "manifest.json").read_text()
    manifest = json.loads(text)
    for engine in manifest["engines"]:
        engine["plan"]["backend"]["version"] = "0.1"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(IncompatibleEngineError, match=r"built by onnxruntime 0\.1"):
        trtopt.bench(folder, duration=0.03, warmup=0.01)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["nowhere"], 2, "does not exist"),
        (["."], 2, "manifest.json"),
        ([DIGITS, "--batch", "0"], 2, "whole numbers from 1 on"),
        ([DIGITS, "--batch", "a"], 2, "whole numbers from 1 on"),
        ([DIGITS, "--contract", "mine"], 2, "choose among trtexec-10"),
        ([DIGITS, "--backend", "tensorflow"], 2, "'tensorflow' is not one of"),
        ([DIGITS, "--streams", "0"], 2, "--streams 0"),
        ([DIGITS, "--queue", "-1"], 2, "--queue -1"),
        ([DIGITS, "--sync", "sleep"], 2, "'sleep' is not one of"),
        ([DIGITS, "--sync", "two"], 2, "'two' is not one of"),
        ([DIGITS, "--no-pinned"], 2, "without transfers"),
        ([DIGITS, "--duration", "0"], 2, "out of range"),
        ([DIGITS, "--stop-early"], 2, "--stop-early"),
        ([DIGITS, "--data", "nowhere.npz"], 2, "no such file"),
        ([DIGITS, "--json", "/proc/nowhere/r.json"], 1, "there is no folder"),
        ([DIGITS, "--export-times", "/proc/nowhere/t.json"], 1, "there is no folder"),
        ([DIGITS, "--load", "often"], 2, "give requests per second as RATE or poisson:RATE"),
        ([DIGITS, "--load", "-5"], 2, "the rate must be positive and finite"),
        ([DIGITS, "--load", "poisson"], 2, "give requests per second as RATE or poisson:RATE"),
        ([DIGITS, "--max-latency", "5ms"], 2, "not of the form p99=5ms"),
        ([DIGITS, "--max-latency", "p99.9999=5ms"], 2, "no run has enough requests"),
        ([DIGITS, "--frobnicate"], 2, "No such option"),
    ],
)
def test_bad_input_to_bench_gets_a_message_and_a_status(
    trtopt_cli: CommandLine, arguments: list[str | Path], status: int, message: str
) -> None:
    assert message in trtopt_cli.fails(status, "bench", *arguments)


@pytest.mark.parametrize("elem_type", few("BFLOAT16", of=["UINT16", "DOUBLE", "BOOL", "BFLOAT16"]))
def test_inputs_of_any_numeric_type_can_be_measured(tmp_path: Path, elem_type: str) -> None:
    model = identity_of(getattr(onnx.TensorProto, elem_type), tmp_path / "model.onnx")
    report = trtopt.bench(model, backend="onnxruntime", duration=0.05, warmup=0.01, layers=True)
    assert len(report.points[0].latency.samples.start_ms) >= 10


def test_an_input_of_strings_is_refused(tmp_path: Path) -> None:
    model = identity_of(onnx.TensorProto.STRING, tmp_path / "model.onnx")
    with pytest.raises(DataError, match="element type that cannot be measured"):
        trtopt.bench(model, backend="onnxruntime", duration=0.05, warmup=0.01)


def identity_of(elem_type: int, path: Path) -> Path:
    """A model that hands its input back."""
    x, y = (onnx.helper.make_tensor_value_info(n, elem_type, ["batch", 4]) for n in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, str(path))
    return path


def test_an_engine_that_is_lost_or_damaged_leaves_the_others_to_be_measured(
    trtopt_cli: CommandLine, tmp_path: Path
) -> None:
    folder = tmp_path / "d"
    trtopt.build(DIGITS, folder, batch=(1, 2, 4), backend="onnxruntime")
    (folder / "batch1.onnx").unlink()
    (folder / "batch4.onnx").write_bytes(b"cut off")
    done = trtopt_cli(
        "bench", folder, "--duration", "0.05", "--warmup", "0.01", "--json", tmp_path / "r.json"
    )
    assert done.returncode == 1
    assert "batch1.onnx: cannot be read" in done.stderr
    report = from_json((tmp_path / "r.json").read_bytes(), BenchReport)
    assert [point.batch for point in report.points] == [2]
    lost = [note for note in report.notes if "could not be measured" in note]
    assert [note.split()[1] for note in lost] == ["1", "4"]
    assert f"`trtopt build --locked {folder}`" in done.stderr
    assert trtopt_cli("build", "--locked", folder).returncode == 0
    assert trtopt_cli("bench", "d.rebuilt", "--duration", "0.05", "--warmup", "0.01").returncode == 0
