"""Plans for what was measured elsewhere, or for longer requests than were measured, on ONNX Runtime."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

import trtopt
from tests.support.brief_plans import few_simulated  # noqa: F401  (a fixture of every test here)
from tests.support.command_line import DIGITS, CommandLine
from trtopt.api import plan as make_plan
from trtopt.errors import ArtifactError, DeviceError
from trtopt.files.atomic import write_atomically
from trtopt.records import BenchReport, from_json, to_json
from trtopt.workflows.plan import plan as planning
from trtopt.workflows.plan.sources import read_measured

SLO = "p50=500ms"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build folder with its measurements."""
    folder = tmp_path_factory.mktemp("measured") / "fixed"
    trtopt.build(DIGITS, folder, batch=(1, 8), backend="onnxruntime")
    report = trtopt.bench(folder, duration=0.1, warmup=0.01)
    write_atomically(folder / "bench.json", to_json(report))
    return folder


@pytest.fixture
def swept_lengths(sequence_model: Path, tmp_path: Path) -> Path:
    """A sweep at one length, of 32."""
    swept = tmp_path / "lengths"
    axes = {"length": (32,)}
    trtopt.sweep(
        sequence_model, swept, batch=(4,), axes=axes, backend="onnxruntime", duration=0.1, warmup=0.01
    )
    return swept


def elsewhere(measured: Path, folder: Path) -> Path:
    """A copy of a build folder that says that it was measured on another machine."""
    copy = Path(shutil.copytree(measured, folder / "fixed"))
    report = from_json((copy / "bench.json").read_bytes(), BenchReport)
    environment = report.environment
    device = structs.replace(environment.device, name="Another CPU")
    environment = structs.replace(environment, device=device, cpu="Another CPU")
    write_atomically(copy / "bench.json", to_json(structs.replace(report, environment=environment)))
    return copy


def test_what_was_measured_on_another_machine_is_not_planned_with_this_ones_overhead(
    measured: Path, trtopt_cli: CommandLine
) -> None:
    folder = elsewhere(measured, trtopt_cli.folder)
    told = trtopt_cli.fails(2, "plan", folder, "-o", "plan.json", "--slo", SLO, "--rate", "50")
    assert "measured on Another CPU, and this machine has " in told
    assert "→ sweep here again" in told
    assert not (trtopt_cli.folder / "plan.json").exists()


def test_where_nothing_can_be_run_what_was_measured_elsewhere_is_planned_with_without_overhead(
    measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: object) -> None:
        raise DeviceError("no such device")

    monkeypatch.setattr(planning, "serving_costs", cannot)
    folder = elsewhere(measured, tmp_path)
    plan = make_plan([folder], tmp_path / "plan.json", slo=SLO, rate=50.0, max_engines=1)
    assert any("taken as zero: no such device" in note for note in plan.notes)


@pytest.mark.parametrize(("slow", "told"), [(False, 0), (True, 1)])
def test_a_measurement_that_saw_too_few_of_its_slow_spells_is_named(
    slow: bool, told: int, measured: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(measured, tmp_path / "fixed"))
    report = from_json((folder / "bench.json").read_bytes(), BenchReport)
    quiet = np.exp(0.01 * np.random.RandomState(0).standard_normal(3000))
    spell = np.where((np.arange(3000) > 1000) & (np.arange(3000) < 1100), 3.0, 1.0)
    points = []
    for place, point in enumerate(report.points):
        taken = quiet * spell if slow and place == 0 else quiet
        ends = np.cumsum(taken)
        samples = structs.replace(
            point.latency.samples,
            start_ms=(ends - taken).tolist(),
            end_ms=ends.tolist(),
            inference_stream=[0] * 3000,
            group=[],
        )
        points.append(structs.replace(point, latency=structs.replace(point.latency, samples=samples)))
    write_atomically(folder / "bench.json", to_json(structs.replace(report, points=tuple(points))))
    notes = read_measured([folder]).notes
    short = [note for note in notes if "too short for their slow spells" in note]
    assert [note.split(" are ")[0] for note in short] == ["1 of 2 measurements"] * told
    assert [note.split(" (")[0] for note in notes if "unsteady" in note] == [
        "1 measurements are unsteady"
    ] * told


def test_a_request_that_is_longer_than_what_was_swept_is_named(
    swept_lengths: Path, trtopt_cli: CommandLine
) -> None:
    flags = ("plan", swept_lengths, "-o", "plan.json", "--slo", SLO)
    told = trtopt_cli.fails(2, *flags, "--lengths", "16:0.5,300:0.3")
    assert "length 300 is longer than any that was swept (32)" in told
    assert "→ sweep with --axis length=32,300, or" in told
    (trtopt_cli.folder / "arrivals.txt").write_text("0,16\n0.1,40\n0.2,32\n")
    told = trtopt_cli.fails(2, *flags, "--arrivals", "arrivals.txt")
    assert "length 40 is longer than any that was swept (32)" in told


def test_a_result_without_samples_is_refused(measured: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(measured, tmp_path / "fixed"))
    report = from_json((folder / "bench.json").read_bytes(), BenchReport)
    first, *others = report.points
    none = structs.replace(
        first.latency.samples, start_ms=[], end_ms=[], inference_stream=[], group=[], enqueue_ms=[]
    )
    first = structs.replace(first, latency=structs.replace(first.latency, samples=none))
    write_atomically(folder / "bench.json", to_json(structs.replace(report, points=(first, *others))))
    with pytest.raises(ArtifactError, match=r"bench\.json"):
        read_measured([folder])
