"""--trust and --timeout mean the same to every command that measures."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.command_line import DIGITS, HELDOUT, CommandLine
from tests.support.long import few
from trtopt.device.backends import open_builder
from trtopt.device.ort.host import cpu_info
from trtopt.device.ort.runtime import backend
from trtopt.errors import DeviceError
from trtopt.files.manifests import read_plan
from trtopt.onnxio import model_file
from trtopt.onnxio.model_info import read_onnx
from trtopt.precision.bounds import Bounds
from trtopt.requests.models import BisectRequest
from trtopt.workflows.precision.bisect import judge_engines
from trtopt.workflows.precision.checker import Checker
from trtopt.workflows.profile.peaks import probe_peaks

MEASURING: dict[str, tuple[str | Path, ...]] = {
    "bench": ("--duration", "0.05", "--warmup", "0.01"),
    "profile": ("--duration", "0.05"),
    "check": ("--against", DIGITS),
    "compare": ("--control", "1", "--duration", "0.5"),
}
SHORT = ("--timeout", "0.01")


@pytest.fixture
def folder(trtopt_cli: CommandLine, cpu_build: Path) -> Path:
    """A build for batches 1 and 8; both engines are others than were built."""
    made = trtopt_cli.folder / "e"
    shutil.copytree(cpu_build, made)
    for name in ("batch1.onnx", "batch8.onnx"):
        shutil.copyfile(made / "model.onnx", made / name)
    return made


@pytest.mark.parametrize("command", few("bench", "check", of=MEASURING))
def test_an_engine_that_has_changed_is_loaded_if_it_is_trusted_this_once(
    command: str, trtopt_cli: CommandLine, folder: Path
) -> None:
    asked = (command, folder, "--batch", "8", *MEASURING[command])
    vouched = (folder / "manifest.json").read_bytes()
    assert "it was not loaded" in trtopt_cli.fails(1, *asked)
    assert "it was not loaded" in trtopt_cli.fails(1, *asked, "--trust", "batch1.onnx")
    for name in ("batch8.onnx", str(folder / "batch8.onnx"))[command != "bench" :]:
        done = trtopt_cli(*asked, "--trust", name, "-v")
        assert done.returncode == 0, done.stderr
        assert "batch8.onnx has changed since the build: loaded because of --trust" in done.stdout
    assert (folder / "manifest.json").read_bytes() == vouched


def test_what_is_trusted_must_be_an_engine(trtopt_cli: CommandLine, folder: Path) -> None:
    asked = ("bench", folder, "--batch", "8", "--duration", "0.05", "--warmup", "0.01")
    told = trtopt_cli.fails(2, *asked, "--trust", "batch9.onnx")
    assert "--trust batch9.onnx: no engine of" in told
    assert "batch1.onnx, batch8.onnx" in told
    for name in ("model.onnx", "manifest.json"):
        assert "no engine of" in trtopt_cli.fails(2, *asked, "--trust", str(folder / name))
    (folder / "batch8.onnx").unlink()
    assert "is not there" in trtopt_cli.fails(1, *asked, "--trust", "batch8.onnx")


@pytest.mark.long
def test_a_comparison_may_trust_an_engine_that_only_one_side_has(
    trtopt_cli: CommandLine, cpu_build: Path, folder: Path
) -> None:
    other = trtopt_cli.folder / "other"
    trtopt_cli("build", DIGITS, "-o", other, "--backend", "onnxruntime", "--batch", "8,2")
    (other / "batch2.onnx").write_bytes((folder / "batch1.onnx").read_bytes())
    shutil.copyfile(cpu_build / "batch8.onnx", folder / "batch8.onnx")
    asked = ("compare", folder, other, "--batch", "8", "--duration", "0.5")
    done = trtopt_cli(*asked, "--trust", "batch2.onnx", "--trust", "batch1.onnx")
    assert done.returncode in (0, 3, 5), done.stderr  # as busy as the machine is
    told = trtopt_cli.fails(2, *asked, "--trust", "batch2.onnx", "--trust", "batch9.onnx")
    assert f"--trust batch9.onnx: no engine of {folder} or {other}" in told
    assert "batch1.onnx, batch2.onnx, batch8.onnx" in told


@pytest.mark.parametrize("command", MEASURING)
def test_a_measurement_that_takes_longer_than_it_may_is_a_failure(
    command: str, trtopt_cli: CommandLine, cpu_build: Path
) -> None:
    told = trtopt_cli.fails(1, command, cpu_build, "--batch", "8", *MEASURING[command], *SHORT)
    assert "not done after 0.01 s" in told
    assert "--timeout" in told
    assert "out of range" in trtopt_cli.fails(2, command, cpu_build, *MEASURING[command], "--timeout", "-1")


@pytest.mark.long
def test_putting_a_plan_to_the_test_has_a_time_limit(trtopt_cli: CommandLine, cpu_build: Path) -> None:
    shutil.copytree(cpu_build, trtopt_cli.folder / "e")
    measured = trtopt_cli("bench", "e", "--duration", "0.2", "--warmup", "0.01", "--json", "e/bench.json")
    assert measured.returncode == 0, measured.stderr
    asked = ("plan", "e", "-o", "plan.json", "--slo", "p50=500ms", "--rate", "20")
    late = trtopt_cli(*asked, *SHORT, "-v")  # a busy machine has more notes than are shown without
    assert late.returncode == 0
    told = " ".join(late.stdout.split())
    assert "the serving overhead is unknown and taken as zero" in told
    assert "last words" not in told
    assert "not done after 0.01 s" in told
    assert "plan.json: not done after 0.01 s" in trtopt_cli.fails(1, *asked, "--verify", *SHORT)
    assert read_plan(trtopt_cli.folder / "plan.json").verification is None


def test_probing_peaks_has_a_time_limit() -> None:
    with pytest.raises(DeviceError, match=r"a copy of 256 MiB: not done after 0\.01 s"):
        probe_peaks(cpu_info(), backend(), timeout=0.01)


def test_a_bisections_engines_have_a_time_limit(
    trtopt_cli: CommandLine, cpu_build: Path, tmp_path: Path
) -> None:
    checker = Checker(read_onnx(DIGITS), None, Bounds(min_sqnr=30))
    request = BisectRequest(DIGITS, precision="fp16", data=HELDOUT, batch=(1,), timeout=0.01)
    with pytest.raises(DeviceError, match=r"batch1\.onnx: not done after 0\.01 s"):
        judge_engines(checker, open_builder("onnxruntime"), request, model_file.load(DIGITS), tmp_path)
    asked = ("bisect", DIGITS, "--precision", "fp16", "--min-sqnr", "30", "--data", HELDOUT)
    told = trtopt_cli.fails(2, *asked, "--backend", "onnxruntime", *SHORT)
    assert "--batch, --recipe and --timeout are for engines, and none are built" in told
    assert "out of range" in trtopt_cli.fails(2, *asked, "--timeout", "-1")


def test_a_sweep_goes_on_after_a_point_that_took_too_long(trtopt_cli: CommandLine) -> None:
    asked = (
        "sweep",
        DIGITS,
        "-o",
        "s",
        "--backend",
        "onnxruntime",
        "--batch",
        "1,2",
        "--duration",
        "0.05",
        "--warmup",
        "0.01",
    )
    done = trtopt_cli(*asked, *SHORT)
    assert done.returncode == 1
    assert "none of 2 points could be measured" in done.stderr
    assert done.stderr.count("not done after 0.01 s") >= 2
    assert trtopt_cli(*asked, "--timeout", "100").returncode == 0  # a time limit is no term of the sweep


@pytest.mark.long
def test_there_is_nothing_to_guard_where_nothing_is_measured(
    trtopt_cli: CommandLine, cpu_build: Path
) -> None:
    assert (
        trtopt_cli(
            "bench", cpu_build, "--layers", "--duration", "0.05", "--warmup", "0.01", "--json", "r.json"
        ).returncode
        == 0
    )
    for flags in (("--timeout", "9"), ("--trust", "batch8.onnx")):
        told = trtopt_cli.fails(2, "profile", cpu_build, "--result", "r.json", *flags)
        assert f"{flags[0]}: has no effect" in told
        assert f"{flags[0]}: has no effect" in trtopt_cli.fails(2, "compare", "r.json", "r.json", *flags)
