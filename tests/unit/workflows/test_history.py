"""A history's folder: nothing in it changes, nothing is in it twice, and what is damaged is named."""

from __future__ import annotations

import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from tests.support.histories import runs_of
from tests.support.killing import run_killed
from trtopt.errors import ArtifactError, UsageError
from trtopt.files.atomic import is_temporary
from trtopt.records import BenchReport, to_json
from trtopt.requests.measure import HistoryAddRequest, HistoryRequest
from trtopt.workflows.compare.result_files import read_result
from trtopt.workflows.history import add_to_history as add, history


@pytest.fixture
def results(tmp_path: Path) -> list[Path]:
    paths = []
    for number, result in enumerate(runs_of([1.0] * 10)):
        paths.append(tmp_path / f"run{number}.json")
        paths[-1].write_bytes(to_json(result, indent=None))
    return paths


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_results_are_kept_as_they_are_and_once(results: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "history"
    names = add(HistoryAddRequest(folder, results))
    report = history(HistoryRequest(folder))
    assert (report.series[0].verdict, len(report.series[0].runs)) == ("SAME", 10)
    kept = contents(folder)
    assert sorted(kept.values()) == sorted(path.read_bytes() for path in results)
    assert add(HistoryAddRequest(folder, results[::-1])) == names[::-1]
    assert history(HistoryRequest(folder)) == report
    assert contents(folder) == kept
    (folder / "copied.json").write_bytes(to_json(read_result(results[-1])))
    assert history(HistoryRequest(folder)) == report


def test_a_result_from_a_pipe_is_kept_as_it_came(results: list[Path], tmp_path: Path) -> None:
    with subprocess.Popen(["cat", str(results[0])], stdout=subprocess.PIPE) as source:
        assert source.stdout is not None
        (kept,) = add(HistoryAddRequest(tmp_path / "history", [f"/dev/fd/{source.stdout.fileno()}"]))
    assert kept.read_bytes() == results[0].read_bytes()


def test_writers_at_the_same_time_lose_nothing(results: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "history"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda path: add(HistoryAddRequest(folder, [path])), results * 4))
    assert sorted(contents(folder).values()) == sorted(path.read_bytes() for path in results)


@pytest.mark.parametrize("calls", ["mkdir,replace,fsync"])
@pytest.mark.parametrize("kill_at", [1, 2, 3])
def test_a_writer_that_is_killed_leaves_whole_results_alone(
    calls: str, kill_at: int, results: list[Path], tmp_path: Path
) -> None:
    folder = tmp_path / "history"
    command = ["-m", "trtopt", "history", "add", str(folder), *map(str, results)]
    assert run_killed(calls, kill_at, *command, env=os.environ) == -signal.SIGKILL
    left = contents(folder) if folder.exists() else {}
    whole = {path.read_bytes() for path in results}
    assert all(content in whole for name, content in left.items() if not is_temporary(folder / name))
    add(HistoryAddRequest(folder, results))
    assert len(history(HistoryRequest(folder)).series[0].runs) == 10


def test_a_damaged_file_is_named_and_the_others_count(results: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "history"
    add(HistoryAddRequest(folder, results))
    damaged = sorted(folder.iterdir())[3]
    damaged.write_bytes(damaged.read_bytes()[:-100])
    report = history(HistoryRequest(folder))
    assert len(report.series[0].runs) == 9
    assert damaged.name in report.notes[0]


def test_a_damaged_file_that_may_be_the_newest_leaves_the_gate_shut(
    results: list[Path], tmp_path: Path
) -> None:
    """Until it is added again."""
    folder = tmp_path / "history"
    newest = add(HistoryAddRequest(folder, results))[-1]
    assert history(HistoryRequest(folder)).series[0].verdict == "SAME"
    newest.write_bytes(newest.read_bytes()[:-100])
    assert history(HistoryRequest(folder)).series[0].verdict == "UNTRUSTWORTHY"
    add(HistoryAddRequest(folder, results))
    assert history(HistoryRequest(folder)).series[0].verdict == "SAME"
    os.mkfifo(folder / "z.json")
    assert history(HistoryRequest(folder)).series[0].verdict == "UNTRUSTWORTHY"


def dated(path: Path, created: str) -> None:
    report = msgspec.json.decode(path.read_bytes(), type=BenchReport)
    path.write_bytes(to_json(msgspec.structs.replace(report, created=created)))


@pytest.mark.parametrize(
    "created", ["2999-01-01T00:00:00+00:00", "0001-01-01T00:00:00+23:00", "../../elsewhere", ""]
)
def test_a_result_whose_time_cannot_be_is_refused_and_leaves_the_gate_shut(
    created: str, results: list[Path], tmp_path: Path
) -> None:
    folder = tmp_path / "history"
    add(HistoryAddRequest(folder, results[:-1]))
    dated(results[-1], created)
    with pytest.raises(ArtifactError):
        add(HistoryAddRequest(folder, results[-1:]))
    (folder / "by-hand.json").write_bytes(results[-1].read_bytes())
    assert history(HistoryRequest(folder)).series[0].verdict == "UNTRUSTWORTHY"


def test_a_slow_result_is_judged_by_itself_whatever_the_clock_of_its_host(
    results: list[Path], tmp_path: Path
) -> None:
    """A clock that is years behind makes it the oldest; what another job adds meanwhile is newer."""
    folder, slow = tmp_path / "history", tmp_path / "slow.json"
    add(HistoryAddRequest(folder, results))
    slow.write_bytes(to_json(next(runs_of([10.0]))))
    with pytest.raises(UsageError):
        history(HistoryRequest(folder, slow))
    dated(slow, "2020-01-01T00:00:00+00:00")
    add(HistoryAddRequest(folder, [slow]))
    assert history(HistoryRequest(folder)).series[0].verdict == "SAME"
    assert history(HistoryRequest(folder, slow)).series[0].verdict == "UNDECIDED"
    dated(slow, "2026-01-09T12:00:00+00:00")  # before the last of the others
    add(HistoryAddRequest(folder, [slow]))
    assert history(HistoryRequest(folder, results[-1])).series[0].verdict == "SAME"
    found = history(HistoryRequest(folder, slow)).series[0]
    assert (found.verdict, len(found.runs)) == ("UNDECIDED", 11)


def test_a_result_is_not_judged_by_what_was_edited_under_its_name(
    results: list[Path], tmp_path: Path
) -> None:
    folder, slow = tmp_path / "history", tmp_path / "slow.json"
    slow.write_bytes(to_json(next(runs_of([10.0]))))
    dated(slow, "2026-02-01T00:00:00+00:00")
    kept = add(HistoryAddRequest(folder, [*results, slow]))[-1]
    kept.write_bytes(results[-1].read_bytes())
    with pytest.raises(UsageError, match=r"slow\.json"):
        history(HistoryRequest(folder, slow))
    add(HistoryAddRequest(folder, [slow]))
    assert history(HistoryRequest(folder, slow)).series[0].verdict == "UNDECIDED"


def test_a_result_is_judged_by_what_is_of_its_device_and_no_newer_whatever_files_are_called(
    tmp_path: Path,
) -> None:
    """Another device that became slower is another host's; what cannot be read may be anything."""
    folder, paths = tmp_path / "history", []
    for number, result in enumerate([*runs_of([1.0] * 10), *runs_of([1.0] * 12 + [1.5] * 5)]):
        if number >= 10:
            device = msgspec.structs.replace(result.environment.device, name="another")
            environment = msgspec.structs.replace(result.environment, device=device)
            result = msgspec.structs.replace(result, environment=environment)
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_bytes(to_json(result, indent=None))
    add(HistoryAddRequest(folder, paths[8:]))
    for number in range(8):
        paths[number].rename(folder / f"by-hand-{number}.json")
    assert {one.verdict for one in history(HistoryRequest(folder)).series} == {"SAME", "SLOWER"}
    (found,) = history(HistoryRequest(folder, paths[9])).series
    assert (found.verdict, len(found.runs)) == ("SAME", 10)
    (folder / "by-hand-9.json").write_text("{}")
    assert history(HistoryRequest(folder, paths[9])).series[0].verdict == "UNTRUSTWORTHY"


def test_times_of_other_time_zones_are_in_order(results: list[Path], tmp_path: Path) -> None:
    dated(results[-1], "2026-01-09T23:00:00-05:00")  # 04:00 of the tenth, after the one of 00:00
    dated(results[-2], "2026-01-10T02:00:00+00:00")
    (kept,) = add(HistoryAddRequest(tmp_path / "history", results[-1:]))
    assert kept.name.startswith("2026-01-10T04-00-00")
    add(HistoryAddRequest(tmp_path / "history", results))
    assert history(HistoryRequest(tmp_path / "history")).series[0].runs[-1].file == kept.name


def test_what_is_no_result_is_refused_and_nothing_is_written(results: list[Path], tmp_path: Path) -> None:
    folder, other = tmp_path / "history", tmp_path / "other.json"
    other.write_text("{}")
    with pytest.raises(ArtifactError):
        add(HistoryAddRequest(folder, [other]))
    assert not folder.exists()


def test_a_folder_without_results_has_no_verdict(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        history(HistoryRequest(tmp_path))
