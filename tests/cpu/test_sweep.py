"""Sweeps on ONNX Runtime: every combination, nothing twice, whatever ended the run before."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import onnx
import pytest

import trtopt
from tests.support.command_line import DIGITS, HELDOUT, CommandLine
from tests.support.long import few
from trtopt.builder.engine import BuildJob
from trtopt.errors import ArtifactError, BuildError, MeasurementError, OutputError
from trtopt.files.atomic import lock
from trtopt.files.manifests import read_manifest
from trtopt.records import SweepReport
from trtopt.workflows.compare.result_files import read_result
from trtopt.workflows.sweep.folder import read_sweep, save_sweep
from trtopt.workflows.workbench import Workbench

QUICK = {"duration": 0.03, "warmup": 0.01, "backend": "onnxruntime"}
QUICK_FLAGS = ("--duration", "0.03", "--warmup", "0.01", "--backend", "onnxruntime")


def written(folder: Path) -> dict[str, int]:
    """When every engine and result file was written, in nanoseconds."""
    files = (*folder.glob("results/*.json"), *folder.glob("builds/*/batch*.onnx"))
    return {file.relative_to(folder).as_posix(): file.stat().st_mtime_ns for file in files}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SweepReport]:
    """The digits model in two precisions, at two batch sizes, with one and two streams."""
    folder = tmp_path_factory.mktemp("sweep") / "digits"
    calib = {"precision": ("fp32", "int8"), "data": str(HELDOUT)}
    return folder, trtopt.sweep(DIGITS, folder, batch=(1, 8), streams=(1, 2), **QUICK, **calib)


@pytest.fixture(scope="module")
def swept_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SweepReport]:
    """The digits model as it is, at two batch sizes."""
    folder = tmp_path_factory.mktemp("sweep") / "pair"
    return folder, trtopt.sweep(DIGITS, folder, batch=(1, 2), **QUICK)


@pytest.fixture
def pair(swept_pair: tuple[Path, SweepReport], tmp_path: Path) -> tuple[Path, SweepReport]:
    """A copy of it, to be changed."""
    folder, report = swept_pair
    return Path(shutil.copytree(folder, tmp_path / "pair")), report


# ── what is measured ────────────────────────────────────────────────────────────────────────────────────


def test_every_combination_is_measured(swept: tuple[Path, SweepReport]) -> None:
    _, report = swept
    assert [point.label for point in report.points] == [
        f"{precision} batch{batch}{streams}"
        for precision in ("fp32", "int8")
        for streams in ("", " streams2")
        for batch in (1, 8)
    ]
    assert report.measured == report.points
    assert report.environment is not None
    assert report.environment.backend.name == "onnxruntime"


def test_a_point_s_figures_are_those_of_its_result_file(swept: tuple[Path, SweepReport]) -> None:
    folder, report = swept
    for point in report.points:
        assert point.result is not None
        assert point.latency is not None
        (measured,) = read_result(folder / point.result).points
        assert measured.batch == point.setting.batch
        assert measured.latency.shapes == point.shapes
        summary = trtopt.summarise(measured.latency.samples.latency_ms)
        assert (point.queries, point.latency.p50_ms) == (summary.count, summary.median)
        assert measured.throughput is not None
        assert measured.throughput.contract.streams == point.setting.streams
        rate = trtopt.throughput(measured.throughput.samples, measured.batch)
        assert (point.samples_per_s, point.queries_per_s) == (rate.samples_per_s, rate.queries_per_s)


def test_streams_share_an_engine_and_each_precision_has_a_build_folder(
    swept: tuple[Path, SweepReport],
) -> None:
    folder, report = swept
    assert sorted(path.name for path in (folder / "builds").iterdir()) == ["fp32", "int8"]
    for precision in ("fp32", "int8"):
        manifest = read_manifest(folder / "builds" / precision)
        assert [engine.plan.batch.opt for engine in manifest.engines] == [(1,), (8,)]
        known = {f"builds/{precision}/{engine.path}": engine.sha256 for engine in manifest.engines}
        mine = [point for point in report.points if point.setting.precision == precision]
        assert {point.engine.path: point.engine.sha256 for point in mine if point.engine} == known
    assert "int8" in read_manifest(folder / "builds" / "int8").onnx.types
    assert "int8" not in read_manifest(folder / "builds" / "fp32").onnx.types


def test_the_report_and_the_table_on_disk_hold_the_same(swept: tuple[Path, SweepReport]) -> None:
    folder, report = swept
    assert read_sweep(folder) == report
    with (folder / "sweep.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] for row in rows] == [point.label for point in report.points]
    assert [float(row["samples_per_s"]) for row in rows] == [p.samples_per_s for p in report.points]


def test_a_build_folder_of_a_sweep_can_be_measured_on_its_own(swept: tuple[Path, SweepReport]) -> None:
    folder, _ = swept
    report = trtopt.bench(folder / "builds" / "int8", duration=0.05, warmup=0.01)
    assert [point.batch for point in report.points] == [1, 8]


def test_an_axis_is_swept_by_its_name(sequence_model: Path, tmp_path: Path) -> None:
    axes = {"length": (8, 3)}
    report = trtopt.sweep(sequence_model, tmp_path / "s", batch=[8, 9, 16], axes=axes, **QUICK)
    shapes = {point.label: point.shapes["x"] for point in report.measured}
    assert shapes == {
        f"batch{batch} length={length}": (batch, length, 8) for batch in (8, 9, 16) for length in (3, 8)
    }


# ── resuming ────────────────────────────────────────────────────────────────────────────────────────────


LOADER = """
import os, time
import numpy as np

def images():
    with open("asked", "a") as asked:
        asked.write("x")
    if os.path.getsize("asked") == 3:
        time.sleep(3600)
    yield {"images": np.zeros((8, 1, 8, 8), np.float32)}
"""
"""The third to ask waits."""


@pytest.mark.parametrize("how", few(signal.SIGINT, of=[signal.SIGKILL, signal.SIGINT]))
def test_what_was_measured_before_the_sweep_was_ended_is_not_measured_again(
    tmp_path: Path, how: signal.Signals
) -> None:
    (tmp_path / "loader.py").write_text(LOADER)
    folder, asked = tmp_path / "ended", tmp_path / "asked"
    command = [sys.executable, "-m", "trtopt", "sweep", str(DIGITS), "-o", str(folder), *QUICK_FLAGS]
    command += ["--batch", "1,2,4,8", "--data", "loader.py:images"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        while not asked.exists() or asked.stat().st_size < 3:
            assert process.poll() is None, "it ended before it could be interrupted"
            time.sleep(0.01)
        process.send_signal(how)
    before = written(folder)
    measured = {name for name in before if name.startswith("results/")}
    assert len(measured) == 2
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    after = written(folder)
    assert {name: after[name] for name in measured} == {name: before[name] for name in measured}
    assert asked.stat().st_size == 5
    resumed = read_sweep(folder)
    assert [point.shapes["images"][0] for point in resumed.points] == [1, 2, 4, 8]
    assert resumed.measured == resumed.points
    assert not [path for path in folder.rglob("*") if path.name.endswith(("tmp", ".lock"))]


def test_a_folder_that_is_moved_meanwhile_is_not_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, real = tmp_path / "s", Workbench.build_each

    def moving(self: Workbench, wanted: Sequence[BuildJob]) -> Iterator[tuple[int, Any]]:
        yield from real(self, wanted)
        folder.rename(tmp_path / "moved")

    monkeypatch.setattr(Workbench, "build_each", moving)
    with pytest.raises(OutputError):
        trtopt.sweep(DIGITS, folder, batch=(1, 2), **QUICK)
    assert [path.name for path in tmp_path.iterdir()] == ["moved"]


def test_engines_of_another_model_that_were_copied_in_are_not_measured(
    pair: tuple[Path, SweepReport], tmp_path: Path
) -> None:
    folder, _ = pair
    other = onnx.load(DIGITS)
    other.producer_name = "another"
    onnx.save(other, tmp_path / "other.onnx")
    trtopt.build(
        tmp_path / "other.onnx", folder / "builds" / "model", batch=(1, 2), backend="onnxruntime", force=True
    )
    for _ in ("of another model", "damaged"):
        with pytest.raises(MeasurementError) as caught:
            trtopt.sweep(DIGITS, folder, batch=(1, 2), **QUICK)
        assert str(folder / "builds" / "model") in caught.value.remedy
        (folder / "builds" / "model" / "manifest.json").write_text("{")


def test_an_engine_that_cannot_be_written_ends_the_sweep(pair: tuple[Path, SweepReport]) -> None:
    folder, _ = pair
    (folder / "builds" / "model" / "batch4.onnx").mkdir()
    with pytest.raises(OutputError):
        trtopt.sweep(DIGITS, folder, batch=(1, 4), **QUICK)


def test_a_point_whose_report_was_lost_is_drawn_from_its_result_file(pair: tuple[Path, SweepReport]) -> None:
    folder, report = pair
    save_sweep(folder, msgspec.structs.replace(report, points=()))
    before = written(folder)
    assert trtopt.sweep(DIGITS, folder, batch=(1, 2), **QUICK).points == report.points
    assert written(folder) == before


def test_more_batch_sizes_join_those_that_are_there(pair: tuple[Path, SweepReport]) -> None:
    folder, _ = pair
    before = written(folder)
    report = trtopt.sweep(DIGITS, folder, batch=(4,), **QUICK)
    assert [point.setting.batch for point in report.points] == [1, 2, 4]
    assert {name: written(folder)[name] for name in before} == before


def test_an_engine_that_is_no_longer_what_was_measured_is_built_and_measured_again(
    pair: tuple[Path, SweepReport],
) -> None:
    folder, _ = pair
    before = written(folder)
    (folder / "builds" / "model" / "batch2.onnx").write_bytes(b"edited")
    report = trtopt.sweep(DIGITS, folder, batch=(1, 2), **QUICK)
    assert report.measured == report.points
    changed = {name for name, when in written(folder).items() if when != before.get(name)}
    assert "builds/model/batch2.onnx" in changed
    assert not any("batch1" in name for name in changed)


def test_points_whose_graph_is_no_longer_what_their_engines_were_built_of_are_not_measured(
    pair: tuple[Path, SweepReport],
) -> None:
    folder, _ = pair
    shutil.copy(folder / "builds" / "model" / "batch1.onnx", folder / "builds" / "model" / "model.onnx")
    with pytest.raises(MeasurementError):
        trtopt.sweep(DIGITS, folder, batch=(1, 2), **QUICK)
    assert read_sweep(folder).measured == ()


def test_a_result_of_another_engine_is_no_point_s(pair: tuple[Path, SweepReport]) -> None:
    folder, report = pair
    point = report.points[1]
    assert point.result is not None
    assert point.engine is not None
    file = folder / point.result
    file.write_text(file.read_text().replace(point.engine.sha256, "0" * 64))
    save_sweep(folder, msgspec.structs.replace(report, points=()))
    before = written(folder)
    again = trtopt.sweep(DIGITS, folder, batch=(1, 2), **QUICK)
    assert [one.engine for one in again.points] == [one.engine for one in report.points]
    assert {name for name, when in written(folder).items() if when != before[name]} == {point.result}


# ── what fails ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_point_that_fails_is_recorded_with_its_reason_and_the_sweep_goes_on(tmp_path: Path) -> None:
    report = trtopt.sweep(DIGITS, tmp_path / "s", batch=(1, 2**30), **QUICK)
    good, bad = report.points
    assert good.failure is None
    assert bad.failure is not None
    assert bad.label in ("batch1073741824",)
    assert read_sweep(tmp_path / "s").measured == (good,)


def test_engines_built_ahead_are_those_that_are_measured(
    swept: tuple[Path, SweepReport], tmp_path: Path
) -> None:
    _, one_by_one = swept
    calib = {"precision": ("fp32", "int8"), "data": str(HELDOUT)}
    report = trtopt.sweep(DIGITS, tmp_path / "s", batch=(1, 8), jobs=3, **QUICK, **calib)
    assert [(point.key, point.failure) for point in report.points] == [
        (point.key, None) for point in one_by_one.points if point.setting.streams == 1
    ]
    built = {name: when for name, when in written(tmp_path / "s").items() if name.startswith("builds")}
    measured = {name: when for name, when in written(tmp_path / "s").items() if name.startswith("results")}
    assert len(built) == 4
    assert max(built.values()) < min(measured.values())


def test_one_that_cannot_be_built_ahead_fails_when_its_turn_comes_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    real = Workbench.build_each

    def without_the_second(self: Workbench, wanted: Sequence[BuildJob]) -> Iterator[tuple[int, Any]]:
        asked.append(len(wanted))
        for index, outcome in real(self, wanted):
            yield index, BuildError("no kernel", "try another") if index == 1 else outcome

    monkeypatch.setattr(Workbench, "build_each", without_the_second)
    report = trtopt.sweep(DIGITS, tmp_path / "s", batch=(1, 2, 4), jobs=2, **QUICK)
    assert asked == [3]  # all ahead, and none of them again
    assert [point.failure for point in report.points] == [None, "no kernel", None]
    monkeypatch.undo()
    again = trtopt.sweep(DIGITS, tmp_path / "s", batch=(1, 2, 4), jobs=2, **QUICK)
    assert again.measured == again.points


def test_a_precision_that_the_model_cannot_be_given_fails_its_points_only(tmp_path: Path) -> None:
    report = trtopt.sweep(DIGITS, tmp_path / "s", batch=(1, 2), precision=("int4", "fp32"), **QUICK)
    assert [(point.label, (point.failure or "").partition(":")[0]) for point in report.points] == [
        ("fp32 batch1", ""),
        ("fp32 batch2", ""),
        ("int4 batch1", "no node is to be quantised"),
        ("int4 batch2", "no node is to be quantised"),
    ]
    assert sorted(path.name for path in (tmp_path / "s" / "graphs").iterdir()) == ["fp32"]


def test_a_sweep_in_which_nothing_could_be_measured_says_the_first_reason(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match=r"none of 1 points could be measured; batch1073741824: "):
        trtopt.sweep(DIGITS, tmp_path / "s", batch=(2**30,), **QUICK)
    assert read_sweep(tmp_path / "s").points[0].failure is not None


def test_what_an_earlier_run_measured_does_not_hide_that_this_one_measured_nothing(
    pair: tuple[Path, SweepReport],
) -> None:
    folder, _ = pair
    with pytest.raises(MeasurementError, match=r"none of 1 points could be measured; int4 batch1: "):
        trtopt.sweep(DIGITS, folder, batch=(1,), precision=("int4",), **QUICK)
    assert len(read_sweep(folder).measured) == 2


def test_a_sweep_of_another_model_is_refused(sequence_model: Path, swept: tuple[Path, SweepReport]) -> None:
    folder, _ = swept
    with pytest.raises(ArtifactError, match="is a sweep for another model"):
        trtopt.sweep(sequence_model, folder, batch=(1,), axes={"length": (3,)}, **QUICK)


def test_a_sweep_of_another_machine_is_refused_with_what_differs(pair: tuple[Path, SweepReport]) -> None:
    folder, report = pair
    device = msgspec.structs.replace(report.terms.device, name="Another CPU")
    terms = msgspec.structs.replace(report.terms, device=device)
    save_sweep(folder, msgspec.structs.replace(report, terms=terms))
    with pytest.raises(ArtifactError, match="is a sweep on another machine: name Another CPU, here "):
        trtopt.sweep(DIGITS, folder, batch=(1,), **QUICK)


def test_a_sweep_on_other_terms_is_refused_with_what_differs(swept: tuple[Path, SweepReport]) -> None:
    folder, _ = swept
    other = QUICK | {"duration": 0.2}
    calib = {"precision": ("int8",), "data": str(HELDOUT)}
    with pytest.raises(ArtifactError, match=r"on other terms: duration 0.03, now 0.2"):
        trtopt.sweep(DIGITS, folder, batch=(1,), **other, **calib)
    with pytest.raises(ArtifactError, match=r"contract trtexec-11, now serving"):
        trtopt.sweep(DIGITS, folder, batch=(1,), contract="serving", **QUICK, **calib)


def test_a_sweep_with_data_goes_on_with_a_precision_that_needs_none(
    swept: tuple[Path, SweepReport], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(swept[0], tmp_path / "digits"))
    before = written(folder)
    report = trtopt.sweep(DIGITS, folder, batch=(1, 2), precision=("fp32",), data=str(HELDOUT), **QUICK)
    assert len(report.measured) == len(swept[1].measured) + 1
    assert {name: at for name, at in written(folder).items() if name in before} == before


def test_two_sweeps_into_one_folder_do_not_mix(pair: tuple[Path, SweepReport]) -> None:
    folder, _ = pair
    with lock(folder / "sweep.json"), pytest.raises(OutputError, match="another process holds its lock"):
        trtopt.sweep(DIGITS, folder, batch=(1,), **QUICK)


def test_a_report_that_was_cut_short_is_refused(pair: tuple[Path, SweepReport]) -> None:
    folder, _ = pair
    text = (folder / "sweep.json").read_bytes()
    (folder / "sweep.json").write_bytes(text[: len(text) // 2])
    with pytest.raises(ArtifactError, match="cannot be read as the report of a sweep"):
        trtopt.sweep(DIGITS, folder, batch=(1,), **QUICK)


# ── the command ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_command_shows_the_points_and_the_best_under_each_bound(trtopt_cli: CommandLine) -> None:
    done = trtopt_cli(
        "sweep", DIGITS, "-o", "s", "--batch", "1,8", *QUICK_FLAGS, "-v"
    )  # a busy machine has notes
    assert done.returncode == 0, done.stderr
    assert "digits.onnx: onnxruntime" in done.stdout
    assert "Best under a bound on p99" in done.stdout
    assert "samples/J: this machine has no counter of energy" in done.stdout
    assert "trtopt: digits.onnx (2 of 2): batch8: p50 " in done.stderr
    assert json.loads((trtopt_cli.folder / "s" / "sweep.json").read_text())["schema"] == "trtopt.sweep/4"


def test_the_report_of_a_sweep_is_a_page(swept: tuple[Path, SweepReport], trtopt_cli: CommandLine) -> None:
    done = trtopt_cli("report", swept[0], "-o", "sweep.html")
    assert done.returncode == 0, done.stderr
    text = (trtopt_cli.folder / "sweep.html").read_text("utf-8")
    assert "digits: sweep" in text
    assert all(point.label in text for point in swept[1].points)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--batch", "0"), "--batch '0': batch sizes are whole numbers from 1 on"),
        (("--axis", "S=0,4"), "--axis S='0,4': lengths of an axis are whole numbers from 1 on"),
        (("--streams", "two"), "--streams 'two': numbers of streams are whole numbers"),
        (("--streams", "4000"), "--streams 4000: out of range"),
        (("--precision", "best"), "--precision best: cannot be swept"),
        (("--precision", "int8"), "--precision int8 needs data"),
        (("--axis", "seq=1,2"), "--axis seq: the model has no such open axis"),
        (("--axis", "seq"), "--axis 'seq': expected NAME="),
        (("--axis", "seq=1", "--axis", "seq=2"), "--axis seq: given twice"),
        (("--duration", "0"), "--duration 0: out of range"),
        (("--warmup", "7200"), "--warmup 7200: out of range"),
        (("--contract", "none"), "--contract none: no such contract"),
    ],
)
def test_wrong_or_contradictory_options_are_refused_before_anything_is_made(
    trtopt_cli: CommandLine, flags: tuple[str, ...], message: str
) -> None:
    arguments = ("sweep", DIGITS, "-o", "s", "--backend", "onnxruntime", *flags)
    assert message in trtopt_cli.fails(2, *arguments)


def test_a_folder_of_something_else_is_left_alone(trtopt_cli: CommandLine) -> None:
    (trtopt_cli.folder / "mine").mkdir()
    (trtopt_cli.folder / "mine" / "file").write_text("text")
    message = trtopt_cli.fails(1, "sweep", DIGITS, "-o", "mine", "--backend", "onnxruntime")
    assert "mine: exists and is not a sweep folder" in message
