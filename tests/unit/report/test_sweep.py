"""A sweep's points as text and as a page."""

import io
import re

import msgspec
import pytest
from rich.console import Console

from tests.support import examples
from tests.support.sweeps import REPORT, point, report_of
from trtopt.cli.console import listening
from trtopt.records import SweepReport
from trtopt.report.sweep import point_line, sweep_notes, sweep_view
from trtopt.report.view import grouped


def shown(report: SweepReport) -> list[str]:
    console = Console(file=io.StringIO(), width=200)
    console.print(sweep_view(report))
    assert isinstance(console.file, io.StringIO)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def test_the_table_has_all_figures_and_marks_the_front_its_knee_and_what_is_not_to_be_trusted() -> None:
    lines = shown(REPORT)
    assert "fp16 batch1 0.500 1.000 100 2.00 3.0 *" in lines
    assert "fp16 batch2 0.500 1.250 190 3.80 3.0 * knee" in lines
    assert "fp16 batch8 0.500 4.000 200 4.00 3.0 *" in lines
    assert "fp16 batch16 0.500 4.500 210 4.20 3.0 !" in lines
    assert "fp16 batch64 – – – – – failed" in lines


def test_below_stand_the_bests_and_what_the_figures_mean() -> None:
    lines = shown(REPORT)
    bests = lines[lines.index("Best under a bound on p99") + 2 :][:3]
    assert bests == ["1 1 fp16 batch1 100", "2 2 fp16 batch2 190", "5 8 fp16 batch8 200"]
    assert lines[0] == "best 200 samples/s at fp16 batch8"
    assert grouped(sweep_notes(REPORT)) == [
        "fp16 batch64 failed: out of memory\nlast words",
        "fp16 batch16! is not trustworthy: too hot",
        "samples/J: throughput over mean power, from the energy counter",
    ]


def test_the_best_is_said_to_be_doubtful_where_nothing_else_was_measured() -> None:
    lines = shown(report_of(point(8, 4.0, 200.0, untrustworthy=("too hot",))))
    assert lines[0] == "best 200 samples/s at fp16 batch8, which is not trustworthy"


def test_unsteady_points_are_one_line_but_with_their_reasons_where_no_option_shows_them() -> None:
    report = report_of(*(point(batch, 4.0, 200.0, unsteady=("two modes",)) for batch in (1, 8)))
    assert grouped(sweep_notes(report))[0] == "unsteady (~): fp16 batch1, fp16 batch8; -v shows why"
    assert "fp16 batch8~ is unsteady: two modes" in sweep_view(report).html()


def test_what_is_unknown_is_reported() -> None:
    lines = grouped(sweep_notes(report_of(point(1, 1.0, 100.0))))
    assert "samples/J: this machine has no counter of energy" in lines
    assert f"MiB: {examples.TENSORRT} reports no allocations" in lines


def test_lengths_of_axes_have_bests_of_their_own() -> None:
    lines = shown(report_of(point(1, 1.0, 9.0, axes={"seq": 8}), point(1, 2.0, 4.0, axes={"seq": 64})))
    assert lines[:2] == [
        "best 9 samples/s at fp16 batch1 seq=8",
        "best 4 samples/s at fp16 batch1 seq=64",
    ]
    assert "Best under a bound on p99 at seq=8" in lines
    assert "Best under a bound on p99 at seq=64" in lines


def test_several_streams_are_said_to_be_evaluated_under_load() -> None:
    lines = shown(report_of(point(1, 1.0, 9.0), point(1, 1.0, 10.0, streams=2)))
    assert "Best under a bound on p99 under full load" in lines


def test_a_point_in_one_line_tells_its_figures_or_the_first_of_its_reason() -> None:
    lines = [point_line(one) for one in REPORT.points]
    assert lines[0] == "fp16 batch1: p50 0.500 ms, p99 1.000 ms, 100 samples/s"
    assert lines[4] == "fp16 batch64: failed: out of memory"


def test_off_a_terminal_each_point_is_told_once_and_again_when_it_is_measured_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second, anew = point(1, 1.0, 100.0), point(8, 2.0, 400.0), point(1, 3.0, 50.0)
    with listening() as listener:
        listener.sweep(report_of(first), 2)
        listener.sweep(report_of(first, second), 2)
        listener.sweep(report_of(anew, second), 2)
    told = re.findall(r"\((\d) of 2\): .*batch(\d+): .* (\d+) samples/s", capsys.readouterr().err)
    assert told == [("1", "1", "100"), ("2", "8", "400"), ("2", "1", "50")]


def test_points_of_several_models_have_the_models_name(capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of(point(1, 1.0, 100.0))
    with listening() as listener:
        listener.sweep(report, 2)
        listener.sweep(msgspec.structs.replace(report, model="other.onnx"), 2)
        listener.sweep(report, 2)  # another model's point has the same name
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in lines] == [f"{report.model} (1 of 2)", "other.onnx (1 of 2)"]
