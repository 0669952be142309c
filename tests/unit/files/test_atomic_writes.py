import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.support import examples
from trtopt.errors import ArtifactError, OutputError
from trtopt.files import atomic
from trtopt.files.atomic import lock, write_atomically
from trtopt.files.manifests import (
    MANIFEST,
    is_build_folder,
    own_files,
    read_manifest,
    read_verified,
    write_manifest,
)
from trtopt.files.outputs import check_output, kind_beginning
from trtopt.records import to_json

ANY = kind_beginning("text", b"")
TEN = "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882"  # SHA-256 of "0123456789"


@pytest.fixture
def umask() -> Iterator[None]:
    """A mask that takes something from the group and everything from others."""
    before = os.umask(0o027)
    yield
    os.umask(before)


def listed(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def run_python(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


# ── write_atomically ────────────────────────────────────────────────────────────────────────────────────


def test_a_written_file_has_its_content_and_nothing_lies_next_to_it(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "b" / "file", b"content")
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"content"
    assert listed(tmp_path) == ["a", "a/b", "a/b/file"]


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for mode in (0o600, 0o664, 0o444):
        path.touch()
        path.chmod(mode)
        write_atomically(path, b"new")
        assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", mode)


def test_an_earlier_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"an earlier and longer content")
    write_atomically(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"
    assert listed(tmp_path) == ["file"]


@pytest.mark.usefixtures("umask")
def test_a_written_file_may_be_read_by_whom_the_umask_allows(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"content")
    assert oct((tmp_path / "file").stat().st_mode & 0o777) == oct(0o640)


NO_SPACE = """
import resource, sys
from pathlib import Path
from trtopt.errors import OutputError
from trtopt.files.atomic import write_atomically
sys.dont_write_bytecode = True  # Python itself takes a file cut short for whole
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_atomically(Path(sys.argv[1]), bytes(100_000))
except OutputError as error:
    print(error)
"""


@pytest.mark.parametrize("earlier", [None, b"earlier"])
def test_a_file_that_does_not_fit_leaves_the_folder_as_it_was(tmp_path: Path, earlier: bytes | None) -> None:
    if earlier is not None:
        (tmp_path / "file").write_bytes(earlier)
    done = run_python(NO_SPACE, tmp_path / "file")
    assert f"{tmp_path / 'file'}: no space left to write it" in done.stdout, done.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == (
        {} if earlier is None else {"file": earlier}
    )


def test_a_file_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"in the way")
    for path in (tmp_path / "file" / "new", tmp_path / "file" / "folder" / "new"):
        with pytest.raises(OutputError) as caught:
            write_atomically(path, b"content")
        assert str(path) in caught.value.problem
        assert caught.value.remedy
    assert listed(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"in the way"


def test_a_file_cannot_take_the_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "kept").touch()
    with pytest.raises(OutputError):
        write_atomically(tmp_path / "folder", b"content")
    assert listed(tmp_path) == ["folder", "folder/kept"]


def test_a_file_cannot_be_written_where_the_system_allows_none() -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        write_atomically(Path("/proc/trtopt-test"), b"content")


def test_whatever_interrupts_a_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_atomically(tmp_path / "file", "no bytes")  # type: ignore[arg-type]
    assert listed(tmp_path) == []


# ── check_output ──────────────────────────────────────────────────────────────────────────────────────


def test_checking_a_place_leaves_nothing_there(tmp_path: Path) -> None:
    check_output(tmp_path / "file", ANY)
    assert listed(tmp_path) == []


def test_checking_an_earlier_file_leaves_it_unchanged(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"earlier")
    check_output(tmp_path / "file", ANY)
    assert (tmp_path / "file").read_bytes() == b"earlier"
    assert listed(tmp_path) == ["file"]


def test_a_folder_and_places_below_a_file_are_found_unwritable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "new", Path("/proc/trtopt-test")):
        with pytest.raises(OutputError) as caught:
            check_output(path, ANY)
        assert str(path) in caught.value.problem
    assert listed(tmp_path) == ["file"]


# ── lock ────────────────────────────────────────────────────────────────────────────────────────────────

TAKE_LOCK = """
import sys
from pathlib import Path
from trtopt.files import atomic
from trtopt.errors import OutputError
atomic.WAIT_S = float(sys.argv[2])
try:
    with atomic.lock(Path(sys.argv[1])):
        print("entered")
except OutputError as error:
    print("refused", error)
"""


def test_a_lock_excludes_another_process_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    with lock(path):
        refused = run_python(TAKE_LOCK, path, 0.2)
    assert refused.stdout.startswith("refused"), refused.stderr
    assert f"{path}: another process has held its lock" in refused.stdout
    assert f"{path}.lock" in refused.stdout
    entered = run_python(TAKE_LOCK, path, 0.2)
    assert entered.stdout == "entered\n", entered.stderr


def test_a_lock_is_released_when_its_block_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), lock(tmp_path / "file"):
        _ = 1 / 0
    assert run_python(TAKE_LOCK, tmp_path / "file", 0.2).stdout == "entered\n"


def test_a_lock_is_released_when_its_process_dies(tmp_path: Path) -> None:
    dies = f"{TAKE_LOCK}\nguard = atomic.lock(Path(sys.argv[1]))\nguard.__enter__()\nimport os\nos._exit(9)"
    assert run_python(dies, tmp_path / "file", 0.2).returncode == 9
    assert run_python(TAKE_LOCK, tmp_path / "file", 0.2).stdout == "entered\n"


def test_locks_on_other_files_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with lock(tmp_path / "one"):
        assert run_python(TAKE_LOCK, tmp_path / "other", 0.2).stdout == "entered\n"


def test_a_lock_where_no_file_can_be_made_is_an_output_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "WAIT_S", 0.2)
    (tmp_path / "file").touch()
    (tmp_path / "folder.lock").mkdir()
    for path in (tmp_path / "file" / "new", tmp_path / "folder", Path("/proc/trtopt-test")):
        with pytest.raises(OutputError) as caught, lock(path):
            pass
        assert str(path) in caught.value.problem


# ── manifests ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = write_manifest(tmp_path, examples.manifest())
    assert listed(tmp_path) == [MANIFEST]
    assert read_manifest(tmp_path) == written
    engines = {engine.path: engine.sha256 for engine in written.engines}
    assert written == msgspec.structs.replace(examples.manifest(), files=engines)


def test_a_folder_without_a_manifest_is_refused_and_told_what_makes_one(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ArtifactError, match=f"{folder}: has no {MANIFEST}") as caught:
            read_manifest(folder)
        assert "trtopt build" in caught.value.remedy


def test_a_manifest_that_is_a_folder_or_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).mkdir()
    (tmp_path / "file").touch()
    for folder in (tmp_path, tmp_path / "file"):
        with pytest.raises(ArtifactError):
            read_manifest(folder)


def test_pipes_in_a_folder_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / MANIFEST)
    with pytest.raises(ArtifactError, match="not a regular file"):
        read_manifest(tmp_path)
    assert not is_build_folder(tmp_path)
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_verified(tmp_path / MANIFEST, TEN)


def test_a_folder_whose_manifest_is_cut_short_is_a_build_that_vouches_for_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / MANIFEST).write_bytes(to_json(examples.manifest())[:200])
    assert is_build_folder(tmp_path)
    assert own_files(tmp_path) == {MANIFEST}
    (tmp_path / MANIFEST).write_text('{"schema": "another.build/1"}')
    assert not is_build_folder(tmp_path)


def test_every_cut_of_a_manifest_is_refused(tmp_path: Path) -> None:
    text = to_json(examples.manifest()).rstrip()
    for end in range(0, len(text), 7):
        (tmp_path / MANIFEST).write_bytes(text[:end])
        with pytest.raises(ArtifactError, match="cannot be read as a manifest"):
            read_manifest(tmp_path)


def test_a_manifest_edited_beyond_its_schema_is_refused_with_the_place(tmp_path: Path) -> None:
    document = json.loads(to_json(examples.manifest()))
    document["engines"][0]["plan"]["backend"]["name"] = 7
    (tmp_path / MANIFEST).write_text(json.dumps(document))
    with pytest.raises(ArtifactError, match=r"\.plan\.backend\.name"):
        read_manifest(tmp_path)


def test_a_manifest_nested_beyond_reason_is_refused(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text('{"schema":' * 100_000)
    with pytest.raises(ArtifactError):
        read_manifest(tmp_path)


@pytest.mark.parametrize("schema", ["trtopt.build/99", "trtopt.bench/1", "", "something else"])
def test_a_manifest_of_another_schema_is_refused_with_its_name(tmp_path: Path, schema: str) -> None:
    write_manifest(tmp_path, msgspec.structs.replace(examples.manifest(), schema=schema))
    with pytest.raises(ArtifactError) as caught:
        read_manifest(tmp_path)
    assert str(tmp_path / MANIFEST) in caught.value.problem
    assert f"of schema {schema}" in caught.value.problem.replace("'", "")


# ── read_verified ───────────────────────────────────────────────────────────────────────────────────────


def test_a_file_whose_hash_is_vouched_for_is_read(tmp_path: Path) -> None:
    (tmp_path / "engine").write_bytes(b"0123456789")
    assert read_verified(tmp_path / "engine", TEN) == b"0123456789"


@pytest.mark.parametrize(
    "content", [b"", b"0123456788", b"\x00123456789", b"012345678", b"01234567890", b"0123456789\n"]
)
def test_a_file_with_other_bytes_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "engine").write_bytes(content)
    with pytest.raises(ArtifactError, match="it was not loaded") as caught:
        read_verified(tmp_path / "engine", TEN)
    assert str(tmp_path / "engine") in caught.value.problem


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ArtifactError, match="cannot be read"):
            read_verified(path, TEN)


def test_whoever_makes_a_folder_may_check_and_make_things_in_it(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from trtopt.files.outputs import folder_in_progress
from trtopt.files.outputs import check_output, kind_beginning
with folder_in_progress(Path(sys.argv[1])) as outer:
    check_output(outer / "model.onnx", kind_beginning("text", b""))
    with folder_in_progress(outer / "inner") as inner:
        (inner / "file").write_text("made")
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "folder")], check=True, timeout=60)
    assert (tmp_path / "folder" / "inner" / "file").read_text() == "made"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder"]
