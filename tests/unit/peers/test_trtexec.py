"""Command lines of trtexec as command lines of trtopt."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.peers import assert_is_read, dropped_without_a_word
from trtopt.errors import UsageError
from trtopt.peers.options import PeerOption
from trtopt.peers.trtexec import BY_NAME, OPTIONS, VERSIONS, translate

OF_TRTEXEC = dict(
    line.split(maxsplit=1)
    for line in (ROOT / "tests/data/trtexec/options.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
)
BASE = "--onnx=m.onnx"
BUILD = "trtopt build m.onnx"
BENCH = "trtopt bench m.trtopt --contract trtexec-10"


def test_every_option_of_the_three_versions_has_an_entry() -> None:
    assert {option.name: " ".join(option.found_in) for option in OPTIONS} == OF_TRTEXEC
    assert len(BY_NAME) == len(OPTIONS)


def test_an_engine_that_was_saved_is_found_in_its_build_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    measured = partial(translate, ["--loadEngine=m.plan"])
    assert measured().commands[0][1:4] == ("m.plan", "--trust", "m.plan")
    Path("m.trtopt").mkdir()
    assert measured().commands[0][1:3] == ("m.trtopt", "--contract")
    assert translate(["--loadEngine=m.trtopt"]).commands[0][1:3] == ("m.trtopt", "--contract")
    Path("m.plan").touch()
    assert measured().commands[0][1] == "m.plan"


def test_an_option_without_effect_or_refused_says_why() -> None:
    silent = [option.name for option in OPTIONS if option.kind != "translated" and not option.note]
    assert silent == []


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        ("", [BUILD, BENCH]),
        ("--fp16 --skipInference", [f"{BUILD} --precision fp16"]),
        ("--fp16 --int8 --buildOnly", [f"{BUILD} --precision int8"]),
        ("--saveEngine=out/m.plan --skipInference", [f"{BUILD} -o out/m.trtopt"]),
        ("--saveEngine out/m.plan --skipInference", [f"{BUILD} -o out/m.trtopt"]),
        ("--useCudaGraph", [BUILD, f"{BENCH} --graph"]),
        ("--noBuilderCache --timingCacheFile=c", [f"{BUILD} --timing-cache none", BENCH]),
        (
            "--useCudaGraph --noDataTransfers --useSpinWait",
            [BUILD, "trtopt bench m.trtopt --contract trtexec-11"],
        ),
        ("--noCudaGraph", [BUILD, "trtopt bench m.trtopt --contract trtexec-11 --no-graph"]),
        (
            "--noCudaGraph --includeDataTransfers --noSpinWait",
            [BUILD, "trtopt bench m.trtopt --contract trtexec-10"],
        ),
        (
            "--tilingOptimizationLevel=2 --l2LimitForTiling=33554432 --skipInference",
            [f"{BUILD} --tiling moderate --l2-limit 32"],
        ),
        ("--l2LimitForTiling=-1 --skipInference", [BUILD]),
        (
            "--shapes=state:2x1x8,x:1x8",  # a recurrent state has its batch second
            [
                f"{BUILD} --batch 1 --shape state:2x1x8 --shape x:Nx8",
                f"{BENCH.replace('bench m.trtopt', 'bench m.trtopt --batch 1')}",
            ],
        ),
        (
            "--shapes=a:3x1x8,b:4x8 --skipInference",  # as many have either: the first
            [f"{BUILD} --batch 3 --shape a:Nx1x8 --shape b:4x8"],
        ),
        ("--iterations=20 --duration=0", [BUILD, BENCH]),
        ("--duration=3 --duration=0", [BUILD, BENCH]),  # the last counts
        (
            "--warmUp=500 --duration=10 --infStreams=2",
            [BUILD, f"{BENCH} --warmup 0.5 --duration 10 --streams 2"],
        ),
        (
            "--dumpProfile --exportTimes=t.json --device=2",
            [
                f"CUDA_VISIBLE_DEVICES=2 {BUILD}",
                f"CUDA_VISIBLE_DEVICES=2 {BENCH} --layers --export-times t.json",
            ],
        ),
        ("--device=0 --duration=.5", [BUILD, f"{BENCH} --duration 0.5"]),
        ("--staticPlugins=./p.so", [f"{BUILD} --plugin ./p.so", f"{BENCH} --trust ./p.so"]),
        (
            "--shapes=x:4x3",
            [f"{BUILD} --batch 4 --shape x:Nx3", "trtopt bench m.trtopt --batch 4 --contract trtexec-10"],
        ),
        (
            "--minShapes=ids:1x8,mask:1x8 --optShapes=ids:8x64,mask:8x64 --maxShapes=ids:32x128,mask:32x128",
            [
                f"{BUILD} --dynamic --batch 1,8,32 --shape ids:Nx8,Nx64,Nx128 --shape mask:Nx8,Nx64,Nx128",
                "trtopt bench m.trtopt --batch 8 --contract trtexec-10",
            ],
        ),
        (
            "--profile=0 --minShapes=x:1x3 --optShapes=x:1x3 --maxShapes=x:4x3 "
            "--profile=1 --minShapes=x:8x3 --optShapes=x:16x3 --maxShapes=x:32x3 --skipInference",
            [f"{BUILD} --dynamic --batch 1,1,4 --batch 8,16,32 --shape x:Nx3"],
        ),
        (
            "--minShapes=x:1x8 --optShapes=x:1x8 --maxShapes=x:1x64 --shapes=x:1x9",
            [
                f"{BUILD} --batch 1 --shape x:Nx8,Nx8,Nx64",
                "trtopt bench m.trtopt --batch 1 --shape x:Nx9 --contract trtexec-10",
            ],
        ),
        (
            "--minShapes=state:2x1x8,x:1x3 --optShapes=state:2x4x8,x:4x3 --maxShapes=state:2x8x8,x:8x3 "
            "--shapes=state:2x5x8,x:5x3",
            [
                f"{BUILD} --dynamic --batch 1,4,8 --shape state:2x1x8,2x4x8,2x8x8 --shape x:Nx3",
                "trtopt bench m.trtopt --batch 5 --contract trtexec-10",
            ],
        ),
        (
            "--minShapes=state:2x1x8,x:1x3 --optShapes=state:2x4x8,x:4x3 --maxShapes=state:2x8x8,x:8x3 "
            "--shapes=state:2,x:5x3",  # fewer axes than the model's: bench refuses what it gets
            [
                f"{BUILD} --dynamic --batch 1,4,8 --shape state:2x1x8,2x4x8,2x8x8 --shape x:Nx3",
                "trtopt bench m.trtopt --batch 5 --contract trtexec-10",
            ],
        ),
        ("--memPoolSize=Workspace:1.5G --skipInference", [f"{BUILD} --workspace 1536"]),
        ("--workspace=512 --skipInference", [f"{BUILD} --workspace 512"]),
        ("--stronglyTyped --skipInference", [BUILD]),
        ("--sparsity=disable --hardwareCompatibilityLevel=none --skipInference", [BUILD]),
    ],
)
def test_a_command_line_is_translated(given: str, lines: list[str]) -> None:
    assert list(translate([BASE, *given.split()]).lines) == lines


@pytest.mark.parametrize(("device", "chosen"), [("0", {}), ("1", {"CUDA_VISIBLE_DEVICES": "GPU-5e"})])
def test_a_device_is_counted_among_the_visible_ones(device: str, chosen: dict[str, str]) -> None:
    found = translate(["--onnx=m.onnx", f"--device={device}"], visible="3, GPU-5e")
    assert found.environment == chosen


@pytest.mark.parametrize("visible", ["", "3,GPU-5e"])
@pytest.mark.parametrize("device", ["2", ""])  # of a variable of the shell that is not set
def test_a_device_that_is_not_visible_is_refused(device: str, visible: str) -> None:
    with pytest.raises(UsageError, match=rf"^--device={device}:"):
        translate(["--onnx=m.onnx", f"--device={device}"], visible=visible)


def test_an_engine_is_measured_and_trusted_by_name() -> None:
    (line,) = translate(["--loadEngine=m.plan", "--shapes=x:4x3"]).lines
    assert line == "trtopt bench m.plan --trust m.plan --batch 4 --shape x:Nx3 --contract trtexec-10"


def test_samples_go_to_calibration_and_to_the_measurement() -> None:
    found = translate([BASE, "--int8"], data="d.npz")
    assert found.notes == ()
    build, bench = found.commands
    assert build[-2:] == ("--data", "d.npz")
    assert bench[-2:] == ("--data", "d.npz")


@pytest.mark.parametrize(
    ("given", "version", "note"),
    [
        ("--timingCacheFile=c --noBuilderCache", None, "--timingCacheFile=c: no effect beside"),
        ("--duration=3", None, "read as trtexec 10"),
        ("--avgRuns=10 --fp16", None, "--avgRuns=10: no effect here"),
        ("--fp16", "11", "trtexec 11 has no --fp16"),
        ("--int8", None, "needs samples: trtopt trtexec --data DATA"),
    ],
)
def test_what_changes_its_meaning_is_noted(given: str, version: str | None, note: str) -> None:
    assert any(note in text for text in translate([BASE, *given.split()], written_for=version).notes)


def test_a_version_that_is_certain_needs_no_note() -> None:
    assert translate([BASE, "--noCudaGraph"]).notes == ()
    assert translate([BASE], written_for="10").notes == ()
    assert translate([BASE, "--skipInference"]).notes == ()  # versions differ in how they measure


@pytest.mark.parametrize(
    ("given", "problem", "remedy"),
    [
        ("--useDLACore=0 --refit", "--useDLACore=0, --refit: cannot be translated", "for DLA"),
        ("--best", "--best", "add --data DATA"),
        ("--fp16 --noCudaGraph", "no version of trtexec", "--from 10 or 11"),
        ("--optShape=x:1", "--optShape: no option of trtexec", "did you mean --optShapes?"),
        ("--minShapes=x:1x3", "do not name the same inputs", "--optShapes alone"),
        ("--shapes=x", "expected INPUT:1x3x224x224", "with all axes"),
        ("--fp16=yes", "--fp16", "write --fp16"),
        ("--saveEngine", "--saveEngine", "write --saveEngine=FILE"),
        ("m.plan", "m.plan", "write --onnx=FILE"),
        ("--loadEngine=e", "either", "omit"),
        ("--saveEngine=..", "names no file", "whole name"),
        ("--tilingOptimizationLevel=4", "no such level", "0 to 3"),
        ("--l2LimitForTiling=inf", "--l2LimitForTiling", "200"),
        ("--warmUp=nan", "--warmUp", "200"),
        ("--memPoolSize=workspace:1e9999", "workspace:1e9999", "--memPoolSize=workspace:MIB"),
        ("--shapes=x:" + "9" * 5000, "--shapes", "with all axes"),
        ("--l2LimitForTiling=4096", "less than 1 MiB", "1048576 or more"),
        ("--iterations=10 --workspace=x --memPoolSize=dlaSRAM:1", "dlaSRAM:1: cannot", "workspace:MIB"),
    ],
)
def test_what_cannot_be_translated_is_refused_with_a_remedy(given: str, problem: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        translate([BASE, *given.split()])
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy


EXAMPLES = {
    "BYTES": "1048576",
    "FILE": "f",
    "LIB.so": "p.so",
    "N": "2",
    "MIB": "64",
    "S": "1",
    "MS": "100",
    "SPEC": "x:1x3",
}
SPECS = {"--memPoolSize": "workspace:64"}


def example(option: PeerOption) -> str:
    return SPECS.get(option.name, EXAMPLES.get(option.value, ""))


BUILD_ONLY = {"--skipInference", "--buildOnly"}
"""One line may have both."""
ALONE = {"--onnx", "--loadEngine"}
TRANSLATED = [one for one in OPTIONS if one.kind == "translated" and one.name not in ("--profile", "--help")]


@pytest.mark.parametrize("version", VERSIONS[1:])
@pytest.mark.parametrize("base", [[BASE], [BASE, "--skipInference"], ["--loadEngine=e.plan"]], ids=" ".join)
def test_no_option_is_dropped_without_a_word(base: list[str], version: str) -> None:
    lines = [
        [f"{option.name}={example(option)}" if option.value else option.name]
        for option in OPTIONS
        if option.name not in BUILD_ONLY
    ]
    assert dropped_without_a_word(partial(translate, written_for=version), base, lines) == []


@pytest.mark.parametrize("option", TRANSLATED, ids=lambda option: option.name)
def test_the_words_for_an_option_are_options_of_the_command(
    option: PeerOption, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("m.onnx", "m.trtopt", "f", "f.trtopt", "p.so", "d.npz"):
        Path(name).touch()
    given = {
        name: "x:1x3" for name in ("--minShapes", "--optShapes", "--maxShapes") if "Shapes" in option.name
    }
    given[option.name] = example(option)
    words = [f"{name}={value}" if value else name for name, value in given.items()]
    for command in translate(words if option.name in ALONE else [BASE, *words], data="d.npz").commands:
        assert_is_read(command)
