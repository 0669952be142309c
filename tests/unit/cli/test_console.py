"""Lines that are too long for the screen; bars for running jobs, a line for waiting ones."""

from __future__ import annotations

import io

from rich.console import Console
from rich.progress import Progress

from trtopt.cli.console import ProgressBars, wrapped
from trtopt.workflows.listener import DONE


def visible(progress: Progress) -> list[str]:
    return [task.description for task in progress.tasks if task.visible]


def test_a_job_has_a_bar_from_its_start_to_its_end_and_the_others_are_counted() -> None:
    bars = ProgressBars(Console(file=io.StringIO()))
    bars.plan(["batch1", "batch8", "batch32"])
    assert visible(bars) == ["3 waiting"]
    bars.show(0, "latency", None)
    bars.show(1, "latency", 0.5)
    assert visible(bars) == ["1 waiting", "batch1 (1 of 3)", "batch8 (2 of 3)"]
    bars.show(0, DONE, 1.0)
    assert visible(bars) == ["1 waiting", "batch8 (2 of 3)"]
    assert next(task for task in bars.tasks if task.description.startswith("batch1 ")).stop_time
    bars.show(2, "latency", 0.0)
    assert visible(bars) == ["batch8 (2 of 3)", "batch32 (3 of 3)"]
    bars.plan(["peaks"])
    assert visible(bars) == ["1 waiting"]


def test_a_job_that_no_one_announced_has_a_bar_too() -> None:
    bars = ProgressBars(Console(file=io.StringIO()))
    bars.show(0, "copying", None)
    assert visible(bars) == ["copying"]


def test_a_phase_of_unknown_length_takes_nothing_back() -> None:
    bars = ProgressBars(Console(file=io.StringIO()))
    bars.show(0, "throughput", 0.5)
    bars.show(0, "copying", None)
    assert [task.completed for task in bars.tasks if task.visible] == [0.5]


def test_a_long_line_breaks_between_words_and_keeps_its_columns() -> None:
    assert wrapped("a    b", 6) == ["a    b"]
    assert wrapped("note: no GPU found", 12) == ["note: no GPU", "  found"]
    assert wrapped("  indented", 40) == ["  indented"]
    assert wrapped("pip install onnxruntime-gpu-and-more", 12) == [
        "pip install",
        "  onnxruntime-gpu-and-more",
    ]
    assert wrapped("", 12) == [""]
    assert wrapped("line\nFORGED", 40) == ["line\\nFORGED"]
