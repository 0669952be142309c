"""Processes killed before any call that changes files, and many on one folder: nothing half-made is seen."""

import shutil
import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tests.support.killing import ALL, run_fork_killed
from tests.support.writers import PROCESSES, leave_scratch, make_folder, run_beside, write_file
from trtopt.files import outputs as replacing
from trtopt.files.atomic import write_atomically
from trtopt.files.manifests import MANIFEST
from trtopt.files.outputs import folder_in_progress, remove_abandoned


def run(function: Callable[..., None], *arguments: object) -> int:
    return run_fork_killed("fsync", 0, function, *map(str, arguments))


def content(folder: Path) -> set[str]:
    """What the folder's files say; whoever made it wrote the same into both."""
    assert (folder / MANIFEST).is_file()
    return {(folder / name).read_text() for name in ("a", "b")}


def add_others(folder: Path) -> None:
    (folder / "NOTES.md").write_text("precious")
    (folder / "results" / "of may").mkdir(parents=True)
    (folder / "results" / "of may" / "1.json").write_text("{}")
    (folder / "results" / "empty").mkdir()
    (folder / "link").symlink_to("../elsewhere")


def others(folder: Path) -> list[str]:
    names = (str(path.relative_to(folder)) for path in sorted(folder.rglob("*")))
    return [name for name in names if name not in (MANIFEST, "a", "b")]


OTHERS = ["NOTES.md", "link", "results", "results/empty", "results/of may", "results/of may/1.json"]


@pytest.mark.parametrize("how", ["at once", "apart"])
def test_a_folder_is_the_earlier_or_the_new_one_wherever_its_maker_is_killed(
    how: str, tmp_path: Path
) -> None:
    """And what others have put there is in it; it is always there where two names can be exchanged."""
    seen, earlier = set(), tmp_path / "earlier"
    assert run(make_folder, earlier, 1, "earlier") == 0
    add_others(earlier)
    for number in count(1):
        final = tmp_path / str(number) / "final"
        shutil.copytree(earlier, final, symlinks=True)
        ended = run_fork_killed(ALL, number, make_folder, str(final), "1", "killed", how)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        if how == "at once" or final.exists():
            seen |= content(final)
            assert others(final) == OTHERS
        remove_abandoned(final)
        assert content(final) in ({"earlier 0"}, {"killed 0"})
        assert others(final) == OTHERS
        assert (final / "NOTES.md").read_text() == "precious"
        assert [path.name for path in final.parent.iterdir()] == ["final"]
    assert seen == {"earlier 0", "killed 0"}
    assert content(final) == {"killed 0"}
    assert others(final) == OTHERS


def test_what_others_put_under_a_name_of_the_new_build_is_kept_next_to_it(tmp_path: Path) -> None:
    final = tmp_path / "final"
    with folder_in_progress(final) as folder:
        (folder / MANIFEST).write_text('{"schema": "trtopt.build/1"}')
    for name in ("a", "c"):
        (final / name).write_text("somebody's")
    (final / "b").mkdir()
    (final / "b" / "file").write_text("somebody's")
    with folder_in_progress(final) as folder:
        for name, text in (("a", "new"), ("b", "new"), ("c", "somebody's")):
            (folder / name).write_text(text)
    told = {str(path.relative_to(final)): path.read_text() for path in final.rglob("*") if path.is_file()}
    assert told == {
        "a": "new",
        "a.kept": "somebody's",
        "b": "new",
        "b.kept/file": "somebody's",
        "c": "somebody's",
    }


def test_what_came_into_the_earlier_folder_at_the_last_moment_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    final = tmp_path / "final"
    assert run(make_folder, final, 1, "earlier") == 0
    exchanged = replacing._exchanged

    def late(one: Path, other: Path) -> bool:
        (final / "late").write_text("just now")
        return exchanged(one, other)

    monkeypatch.setattr(replacing, "_exchanged", late)
    with folder_in_progress(final) as folder:
        (folder / "a").write_text("new")
    assert sorted(path.name for path in final.iterdir()) == ["a", "late"]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_file_is_the_earlier_one_if_its_writer_is_killed_before_the_rename(
    number: int, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("earlier")
    ended = run_fork_killed("fsync,replace", number, write_file, str(file), "new")
    assert ended == (-signal.SIGKILL if number < 3 else 0)
    assert file.read_text() == ("earlier" if number < 3 else "new")
    assert len(list(tmp_path.glob(".file.*.trtopt-tmp"))) == (number < 3)
    assert run(write_file, file, "new") == 0
    assert file.read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_a_living_process_is_making_is_left_alone(tmp_path: Path) -> None:
    final = tmp_path / "final"
    with folder_in_progress(final) as folder:
        (folder / "a").write_text("half")
        assert run(make_folder, final, 1, "other") == 0  # cleans up before it begins
        assert (folder / "a").read_text() == "half"
        (folder / MANIFEST).write_text('{"schema": "trtopt.build/1"}')
    assert (final / "a").read_text() == "half"
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


@pytest.mark.parametrize(
    "name",
    [
        ".final.trtopt-tmp",
        ".final.short.trtopt-tmp",
        ".final.20260101.old",
        ".final.mkstemp_.tmp",
        ".other.abcdefgh.trtopt-tmp",
    ],
)
def test_files_of_other_names_are_not_taken_away(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("somebody's")
    remove_abandoned(tmp_path / "final")
    assert (tmp_path / name).read_text() == "somebody's"


def test_a_folder_aside_is_not_brought_back_over_one_that_is_there(tmp_path: Path) -> None:
    for name in ("final", ".final.abcdefgh.trtopt-old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / MANIFEST).write_text('{"schema": "trtopt.build/1"}')
        (tmp_path / name / "from").write_text(name)
    remove_abandoned(tmp_path / "final")
    assert (tmp_path / "final" / "from").read_text() == "final"
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


ROUNDS = 12


def test_processes_that_make_one_folder_at_once_leave_one_of_theirs_whole(tmp_path: Path) -> None:
    final = tmp_path / "final"
    assert run_beside(make_folder, str(final), str(ROUNDS)) == [0] * PROCESSES
    (said,) = content(final)
    assert said.endswith(f" {ROUNDS - 1}")
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


def test_a_written_file_is_no_ones_any_more(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"content")
    remove_abandoned(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"content"


def test_the_systems_temporary_folder_is_cleaned_of_what_killed_runs_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert run_fork_killed("fsync", 1, leave_scratch, "fsync") == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.stat().st_mode & 0o777 == 0o700
    assert run(leave_scratch, "whole") == 0
    assert list(tmp_path.iterdir()) == []
