"""`trtopt build` with TensorRT-RTX and ONNX Runtime, for real."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import trtopt
from tests.support.command_line import DIGITS, HELDOUT, CommandLine
from trtopt.errors import BuildError, FixedBatchError, UsageError
from trtopt.files.manifests import read_manifest
from trtopt.onnxio.model_info import read_onnx
from trtopt.records import from_json
from trtopt.records.precision import CastReport


def test_the_build_folder_holds_one_engine_a_batch_the_model_and_a_manifest_of_their_hashes(
    rtx_build: Path,
) -> None:
    names = {path.name for path in rtx_build.iterdir()}
    assert names == {
        *(
            "batch1.engine",
            "batch8.engine",
            "batch1.log",
            "batch8.log",
            "model.onnx",
            "rewrite.json",
            "manifest.json",
        )
    }
    manifest = read_manifest(rtx_build)
    assert (rtx_build / "model.onnx").read_bytes() == DIGITS.read_bytes()
    for engine in manifest.engines:
        content = (rtx_build / engine.path).read_bytes()
        assert hashlib.sha256(content).hexdigest() == engine.sha256
        assert len(content) == engine.size_bytes
        assert engine.plan.backend.name == "tensorrt-rtx"
        assert engine.builder_config["builder_optimization_level"] == "3"
        assert [spec.name for spec in engine.inputs] == ["images"]


def test_a_batch_size_is_built_into_the_engine(rtx_build: Path) -> None:
    shapes = [engine.inputs[0].shape for engine in read_manifest(rtx_build).engines]
    assert shapes == [(1, 1, 8, 8), (8, 1, 8, 8)]


def test_the_engine_of_onnx_runtime_computes_what_the_model_computes(cpu_build: Path) -> None:
    images = np.load(HELDOUT)["images"][:8]
    expected = onnxruntime.InferenceSession(str(DIGITS)).run(None, {"images": images})[0]
    actual = onnxruntime.InferenceSession(str(cpu_build / "batch8.onnx")).run(None, {"images": images})[0]
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_one_batch_size_needs_no_list(tmp_path: Path) -> None:
    (engine,) = trtopt.build(DIGITS, tmp_path / "d", batch=4, backend="onnxruntime").engines
    assert engine.path == "batch4.onnx"
    (point,) = trtopt.bench(tmp_path / "d", batch=4, duration=0.05, warmup=0.01).points
    assert point.batch == 4


def test_one_dynamic_engine_takes_the_place_of_several(tmp_path: Path) -> None:
    manifest = trtopt.build(DIGITS, tmp_path / "d", batch=(1, 8, 32), dynamic=True, backend="tensorrt-rtx")
    assert [engine.path for engine in manifest.engines] == ["batch1-8-32.engine"]
    assert manifest.engines[0].inputs[0].shape == ("?", 1, 8, 8)


def test_a_dynamic_engine_takes_several_optimisation_profiles(trtopt_cli: CommandLine) -> None:
    ranges = ["--batch", "1,1,4", "--batch", "16,32,32", "--batch", "4,8,16"]
    done = trtopt_cli("build", DIGITS, "--dynamic", *ranges, "--backend", "tensorrt-rtx", "-o", "d")
    assert done.returncode == 0, done.stderr
    (engine,) = read_manifest(trtopt_cli.folder / "d").engines
    assert engine.path == "batch1-1-4+4-8-16+16-32-32.engine"
    assert engine.builder_config["optimization_profiles"] == "3"  # as the builder itself told
    assert engine.inputs[0].shape == ("?", 1, 8, 8)
    told = [profile.shapes["images"] for profile in engine.plan.multi_profile]
    assert [(one.min[0], one.opt[0], one.max[0]) for one in told] == [(1, 1, 4), (4, 8, 16), (16, 32, 32)]
    folder = trtopt_cli.folder / "one"
    (single,) = trtopt.build(DIGITS, folder, batch=(1, 32), dynamic=True, backend="tensorrt-rtx").engines
    assert "optimization_profiles" not in single.builder_config
    assert engine.size_bytes > single.size_bytes  # kernels of each profile are in it


def test_several_ranges_without_dynamic_are_refused_with_what_to_write(trtopt_cli: CommandLine) -> None:
    done = trtopt_cli("build", DIGITS, "--batch", "1,4", "--batch", "8", "--backend", "onnxruntime")
    assert done.returncode == 2
    assert "add --dynamic, or write all sizes after one --batch" in done.stderr


def test_settings_reach_the_builder_and_its_own_report_of_them_the_manifest(tmp_path: Path) -> None:
    manifest = trtopt.build(
        DIGITS,
        tmp_path / "d",
        backend="tensorrt-rtx",
        opt_level=1,
        workspace_mib=64,
        tactic_sources=("JIT_CONVOLUTIONS",),
        compute_capability=("8.9", "12.0"),
        avg_timing=3,
    )
    config = manifest.engines[0].builder_config
    assert config["avg_timing_iterations"] == "3"
    assert config["builder_optimization_level"] == "1"
    assert config["memory_pool.WORKSPACE"] == str(64 << 20)
    assert config["tactic_sources"] == "JIT_CONVOLUTIONS"
    assert config["compute_capabilities"] == "SM89 SM120"


def test_engines_built_at_once_are_those_built_one_by_one(tmp_path: Path) -> None:
    manifest = trtopt.build(DIGITS, tmp_path / "d", batch=(1, 2, 4, 8), backend="tensorrt-rtx", jobs=2)
    assert [engine.plan.batch.min for engine in manifest.engines] == [(1,), (2,), (4,), (8,)]


def test_a_profile_is_a_recipe_that_flags_override(tmp_path: Path) -> None:
    manifest = trtopt.build(DIGITS, tmp_path / "d", profile="quick", batch=(2,), backend="tensorrt-rtx")
    engine = manifest.engines[0]
    assert engine.plan.batch.min == (2,)
    assert engine.builder_config["builder_optimization_level"] == "1"


def test_a_later_build_replaces_an_earlier_one_as_a_whole(tmp_path: Path) -> None:
    trtopt.build(DIGITS, tmp_path / "d", batch=(1, 2), backend="onnxruntime")
    trtopt.build(DIGITS, tmp_path / "d", batch=(4,), backend="onnxruntime")
    assert sorted(path.name for path in (tmp_path / "d").glob("batch*")) == ["batch4.log", "batch4.onnx"]
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_the_command_line_says_what_it_builds_with_and_where_the_warnings_are(
    trtopt_cli: CommandLine,
) -> None:
    done = trtopt_cli("build", DIGITS, "--batch", "1,8", "--backend", "tensorrt-rtx")
    assert done.returncode == 0
    assert "building with tensorrt-rtx" in done.stderr
    assert "\x1b" not in done.stderr  # no bars off a terminal
    assert "batch8.engine" in done.stdout
    log = (trtopt_cli.folder / "digits.trtopt" / "batch1.log").read_text()
    assert "[I]" in log
    manifest = read_manifest(trtopt_cli.folder / "digits.trtopt")
    told = [line for line in log.splitlines() if line.startswith(("[W]", "[E]"))]
    assert manifest.engines[0].warnings == len(told)
    assert ("warnings from the builder are in" in done.stdout) == any(e.warnings for e in manifest.engines)


def test_a_fixed_batch_is_built_as_it_is_and_another_one_names_the_remedy(
    tmp_path: Path, fixed_batch_model: Path
) -> None:
    manifest = trtopt.build(fixed_batch_model, tmp_path / "d", backend="tensorrt-rtx")
    assert manifest.engines[0].plan.batch.min == (4,)
    with pytest.raises(FixedBatchError, match="fixed at 4") as caught:
        trtopt.build(fixed_batch_model, tmp_path / "e", batch=(8,), backend="tensorrt-rtx")
    assert "--dynamic-batch" in caught.value.remedy
    assert not (tmp_path / "e").exists()


def test_dynamic_axes_besides_the_batch_come_from_shape_flags(tmp_path: Path, sequence_model: Path) -> None:
    with pytest.raises(UsageError, match="'length'"):
        trtopt.build(sequence_model, tmp_path / "d", backend="tensorrt-rtx")
    manifest = trtopt.build(
        sequence_model,
        tmp_path / "d",
        batch=(2,),
        shapes={"x": "Nx4x8,Nx16x8,Nx32x8"},
        backend="tensorrt-rtx",
    )
    ranges = manifest.engines[0].plan.shapes["x"]
    assert (ranges.min, ranges.opt, ranges.max) == ((2, 4, 8), (2, 16, 8), (2, 32, 8))


def test_external_weights_travel_with_the_model(tmp_path: Path, external_model: Path) -> None:
    manifest = trtopt.build(external_model, tmp_path / "d", backend="tensorrt-rtx")
    assert (tmp_path / "d" / "weights.bin").read_bytes() == external_model.with_name(
        "weights.bin"
    ).read_bytes()
    assert manifest.engines[0].size_bytes > 0


def test_what_the_builder_cannot_do_is_reported_in_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="SM75") as caught:
        trtopt.build(DIGITS, tmp_path / "d", backend="tensorrt-rtx", compute_capability=("7.5",))
    assert "FP32 GEMM" in caught.value.problem
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_the_build_with_130_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trtopt", "build", str(DIGITS), "-o", str(tmp_path / "out")]
    command += ["--backend", "tensorrt-rtx", "--batch", ",".join(map(str, range(1, 60)))]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while not list(tmp_path.glob(".out.*/batch1.engine")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 130
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_dies_is_reported_with_its_signal_and_leaves_nothing(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "trtopt", "build", str(DIGITS), "-o", str(tmp_path / "out")]
    command += ["--backend", "tensorrt-rtx", "--batch", ",".join(map(str, range(1, 60)))]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    while not (workers := _workers(process.pid)):
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(workers[0], signal.SIGSEGV)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "was ended by SIGSEGV" in errors
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


def _workers(pid: int) -> list[int]:
    """The forks of its fork server."""
    return [worker for server in _children(pid) for worker in _children(server)]


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        return [int(child) for child in listed.read_text().split()]
    except FileNotFoundError:
        return []


@pytest.mark.parametrize(
    ("asked", "most"),
    [
        (("build", DIGITS, "--backend", "tensorrt-rtx"), 400_000),
        pytest.param(("build", "--locked", "EARLIER"), 100_000, marks=pytest.mark.long),
        pytest.param(("cast", DIGITS), 2_000, marks=pytest.mark.long),
    ],
    ids=["build", "locked", "cast"],
)
def test_a_full_disk_is_told_as_such_and_leaves_nothing(
    asked: tuple[str, ...], most: int, tmp_path: Path, cpu_build: Path
) -> None:
    """A bound on the size of files stands in for the disk: the system refuses the write just as well."""

    def bound_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    command = [sys.executable, "-m", "trtopt", *map(str, asked), "-o", str(tmp_path / "out")]
    done = subprocess.run(
        [str(cpu_build) if word == "EARLIER" else word for word in command],
        preexec_fn=bound_files,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},  # Python itself takes a file cut short for whole
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "no space left" in done.stderr or "no room" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("backend", ["tensorrt-rtx", "onnxruntime"])
def test_a_precision_is_written_into_the_graph_that_is_built_and_the_model_before_is_kept(
    backend: str, tmp_path: Path
) -> None:
    folder = tmp_path / "d"
    manifest = trtopt.build(
        DIGITS, folder, precision="fp16", data=str(HELDOUT), backend=backend, rewrite="none"
    )
    assert read_manifest(folder) == manifest
    assert (manifest.onnx.path, manifest.onnx.types) == ("model.fp16.onnx", ("float16", "float32"))
    (before,) = manifest.intermediates
    assert manifest.onnx.parent == before.sha256 == read_onnx(folder / before.path).sha256
    assert read_onnx(folder / "model.fp16.onnx").sha256 == manifest.onnx.sha256
    assert manifest.engines[0].plan.onnx_sha256 == manifest.onnx.sha256
    report = from_json((folder / "cast.json").read_bytes(), CastReport)
    assert (report.data, report.samples, report.kept) == ("heldout.npz", 540, ())
    assert any("cast to FP16: 22 nodes, 0 stay FP32" in note for note in manifest.notes)
    if backend == "onnxruntime":
        assert trtopt.bench(folder, duration=0.05, warmup=0.01).model_sha256 == manifest.onnx.sha256


def test_a_precision_that_makes_no_sense_is_refused(tmp_path: Path, trtopt_cli: CommandLine) -> None:
    trtopt_cli("cast", DIGITS, "-o", "half.onnx", "--no-compare")
    assert "has 16-bit types" in trtopt_cli.fails(2, "build", "half.onnx", "--precision", "fp32")
    assert "give --data DATA" in trtopt_cli.fails(2, "build", DIGITS, "--precision", "int8")
    needless = trtopt_cli.fails(2, "build", DIGITS, "--data", HELDOUT)
    assert "nothing here needs data" in needless
    assert "int8" in needless
    nothing = trtopt_cli.fails(2, "build", DIGITS, "--precision", "int4")
    assert "`trtopt quantize --include`" in nothing
    assert "--explain" not in nothing  # nothing is explained where nothing is quantised
    told = trtopt_cli.fails(2, "build", DIGITS, "--precision", "fp16", "--data", "nowhere.npz")
    assert "no such file" in told


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--precision", "int8"], "needs data to calibrate"),
        (["--precision", "int8", "--data", "nosuch.npz"], "nosuch.npz: no such file"),
        (["--exclude", "conv"], "nothing is quantised"),
    ],
)
def test_a_request_is_refused_before_anything_is_announced(
    more: list[str], reason: str, trtopt_cli: CommandLine, tmp_path: Path
) -> None:
    done = trtopt_cli("build", DIGITS, "-o", tmp_path / "b", *more)
    assert done.returncode == 2
    assert reason in done.stderr.splitlines()[0]
    assert "building with" not in done.stderr
