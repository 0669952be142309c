"""Engines that no manifest describes: native code that the user vouches for, this once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.command_line import DIGITS, CommandLine
from tests.support.long import few

MEASURING: dict[str, tuple[str | Path, ...]] = {
    "bench": ("--duration", "0.05", "--warmup", "0.01"),
    "check": ("--against", DIGITS),
    "compare": ("--control", "1", "--duration", "0.5"),
}
ON_CPU = ("--backend", "onnxruntime")
TRUSTED = (*ON_CPU, "--trust", "bare.engine")


@pytest.fixture
def bare(trtopt_cli: CommandLine, cpu_build: Path) -> Path:
    """ONNX Runtime's engine for batch 8, alone."""
    return Path(shutil.copyfile(cpu_build / "batch8.onnx", trtopt_cli.folder / "bare.engine"))


@pytest.mark.parametrize("command", few("bench", "check", of=MEASURING))
def test_it_is_loaded_only_if_it_is_trusted_by_name(
    command: str, trtopt_cli: CommandLine, bare: Path
) -> None:
    asked = (command, bare.name, *MEASURING[command], *ON_CPU)
    told = trtopt_cli.fails(1, *asked)
    assert "an engine is native code and was not loaded" in told
    assert "load it with --trust bare.engine" in told
    for name in ("bare.engine", str(bare))[command != "bench" :]:
        done = trtopt_cli(*asked, "--trust", name, "-v")
        assert done.returncode == 0, done.stderr
        assert "bare.engine: no manifest describes it, loaded because of --trust" in done.stdout
        assert "loaded with onnxruntime: requested" in done.stdout


def test_it_tells_its_batch_itself_and_the_result_tells_who_vouched(
    trtopt_cli: CommandLine, bare: Path
) -> None:
    done = trtopt_cli(
        "bench",
        "bare.engine",
        *TRUSTED,
        "--duration",
        "0.05",
        "--warmup",
        "0.01",
        "--layers",
        "--json",
        "r.json",
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((trtopt_cli.folder / "r.json").read_bytes())
    (point,) = result["points"]
    assert (point["batch"], point["latency"]["shapes"]) == (8, {"images": [8, 1, 8, 8]})
    assert point["latency"]["engine"]["path"] == str(bare)
    assert point["layers"] is not None
    assert result["model_sha256"] == ""
    assert any("loaded because of --trust" in note for note in result["notes"])
    told = trtopt_cli.fails(2, "bench", "bare.engine", *TRUSTED, "--batch", "4")
    assert "no engine here takes it (there are: batch8)" in told


@pytest.mark.long
def test_it_takes_turns_with_a_build(trtopt_cli: CommandLine, bare: Path, cpu_build: Path) -> None:
    done = trtopt_cli("compare", bare, cpu_build, "--batch", "8", "--duration", "0.5", *TRUSTED)
    assert done.returncode in (0, 3, 5), done.stderr  # as busy as the machine is


def test_it_may_lie_in_a_build_folder_that_does_not_name_it(
    trtopt_cli: CommandLine, bare: Path, cpu_build: Path
) -> None:
    shutil.copytree(cpu_build, trtopt_cli.folder / "e")
    shutil.copy(bare, trtopt_cli.folder / "e")
    asked = ("bench", "e/bare.engine", "--duration", "0.05", "--warmup", "0.01", *ON_CPU)
    assert "no manifest lists this file" in trtopt_cli.fails(1, *asked)
    assert trtopt_cli(*asked, "--trust", "e/bare.engine").returncode == 0


def test_what_cannot_be_loaded_or_does_not_tell_its_batch_is_refused(trtopt_cli: CommandLine) -> None:
    asked = ("bench", "bare.engine", *TRUSTED)
    (trtopt_cli.folder / "bare.engine").write_bytes(b"native code")
    assert "ONNX Runtime cannot open the engine" in trtopt_cli.fails(1, *asked)
    shutil.copyfile(DIGITS, trtopt_cli.folder / "bare.engine")
    assert "leaves an axis of input 'images' open" in trtopt_cli.fails(1, *asked)


def test_there_is_no_profile_of_it(trtopt_cli: CommandLine, bare: Path) -> None:
    told = trtopt_cli.fails(2, "profile", bare, *TRUSTED)
    assert "no manifest names its model" in told
    assert "`trtopt bench --layers`" in told
