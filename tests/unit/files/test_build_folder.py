import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import examples
from trtopt.errors import OutputError
from trtopt.files import outputs
from trtopt.files.manifests import MANIFEST
from trtopt.files.outputs import folder_in_progress
from trtopt.records import to_json


@pytest.fixture
def final(tmp_path: Path) -> Path:
    return tmp_path / "model.trtopt"


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def content(folder: Path) -> dict[str, str | None]:
    """Every file below a folder with its text; folders with None."""
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def earlier_build(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_bytes(to_json(examples.manifest()))
    (folder / "batch1.engine").write_text("earlier")
    return folder


def build(final: Path, then: Callable[[], object] = lambda: None) -> None:
    """Make a folder with one file, and before it gets its name do something else."""
    with folder_in_progress(final) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text("new")
        then()


def refused_before_the_block(final: Path) -> OutputError:
    """The error, which must come before a minute of building is spent."""
    with pytest.raises(OutputError) as caught, folder_in_progress(final):
        pytest.fail("the block was run")
    assert str(final) in caught.value.problem
    assert caught.value.remedy
    return caught.value


def test_a_folder_appears_whole_when_its_block_ends_well(final: Path) -> None:
    with folder_in_progress(final) as folder:
        (folder / "file").write_text("new")
        assert not final.exists()
        assert folder.parent == final.parent
    assert content(final.parent) == {"model.trtopt": None, "model.trtopt/file": "new"}


def test_the_folders_above_are_made(tmp_path: Path) -> None:
    with folder_in_progress(tmp_path / "a" / "b" / "c") as folder:
        (folder / "file").write_text("new")
    assert content(tmp_path) == {"a": None, "a/b": None, "a/b/c": None, "a/b/c/file": "new"}


@pytest.mark.usefixtures("umask")
def test_a_folder_may_be_entered_by_whom_the_umask_allows(final: Path) -> None:
    with folder_in_progress(final):
        pass
    assert oct(final.stat().st_mode & 0o777) == oct(0o750)


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_folder_vanishes_when_its_block_fails(final: Path, kind: type[BaseException]) -> None:
    def fail() -> None:
        raise kind

    with pytest.raises(kind):
        build(final, fail)
    assert content(final.parent) == {}


def test_an_earlier_build_stays_when_the_block_fails(final: Path) -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    before = content(earlier_build(final).parent)
    with pytest.raises(KeyboardInterrupt):
        build(final, fail)
    assert content(final.parent) == before


def test_an_earlier_build_is_replaced_whole(final: Path) -> None:
    earlier_build(final)
    with folder_in_progress(final) as folder:
        assert (final / "batch1.engine").read_text() == "earlier"
        (folder / "batch8.engine").write_text("new")
    assert content(final.parent) == {"model.trtopt": None, "model.trtopt/batch8.engine": "new"}


def test_an_empty_folder_is_replaced(final: Path) -> None:
    final.mkdir()
    with folder_in_progress(final) as folder:
        (folder / "file").write_text("new")
    assert content(final.parent) == {"model.trtopt": None, "model.trtopt/file": "new"}


# ── what is not trtopt's is not touched ─────────────────────────────────────────────────────────────────


def test_a_folder_of_somebody_elses_is_refused(final: Path) -> None:
    final.mkdir()
    (final / "thesis.tex").write_text("precious")
    assert "is not a build folder of trtopt's" in refused_before_the_block(final).problem
    assert content(final.parent) == {"model.trtopt": None, "model.trtopt/thesis.tex": "precious"}


@pytest.mark.parametrize(
    "manifest",
    ['{"name": "my extension", "manifest_version": 3}', "{}", "", "no JSON", '{"schema": "trtopt.bench/1"}'],
)
def test_a_folder_with_a_manifest_of_somebody_elses_is_refused(final: Path, manifest: str) -> None:
    final.mkdir()
    (final / MANIFEST).write_text(manifest)
    (final / "background.js").write_text("precious")
    before = content(final.parent)
    refused_before_the_block(final)
    assert content(final.parent) == before


def test_a_file_is_refused(final: Path) -> None:
    final.write_text("precious")
    refused_before_the_block(final)
    assert content(final.parent) == {"model.trtopt": "precious"}


def test_a_folder_of_somebody_elses_that_appears_meanwhile_is_left_alone(final: Path) -> None:
    def appear() -> None:
        final.mkdir()
        (final / "thesis.tex").write_text("precious")

    with pytest.raises(OutputError):
        build(final, appear)
    assert content(final.parent) == {"model.trtopt": None, "model.trtopt/thesis.tex": "precious"}


def test_a_file_that_appears_meanwhile_is_left_alone(final: Path) -> None:
    with pytest.raises(OutputError):
        build(final, lambda: final.write_text("precious"))
    assert content(final.parent) == {"model.trtopt": "precious"}


# ── places where no folder can appear ───────────────────────────────────────────────────────────────────


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    refused_before_the_block(tmp_path / "file" / "new")
    refused_before_the_block(tmp_path / "file" / "folder" / "new")
    assert content(tmp_path) == {"file": "in the way"}


def test_a_folder_where_the_system_allows_none_is_refused() -> None:
    refused_before_the_block(Path("/proc/trtopt-test"))


def taken_or_refused_before_the_block(
    final: Path, made: Path, expected: dict[str, str | None], around: Path
) -> None:
    before = content(around)
    ran = False
    try:
        with folder_in_progress(final) as folder:
            ran = True
            (folder / "file").write_text("new")
    except OutputError:
        assert not ran, "refused only after the block"
        assert content(around) == before
    else:
        assert content(made) == expected


@pytest.mark.parametrize("here", [Path("."), Path("..") / "here"], ids=["dot", "by name"])
@pytest.mark.parametrize("earlier", [False, True], ids=["empty", "earlier build"])
def test_the_current_folder_is_taken_or_refused_before_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: Path, earlier: bool
) -> None:
    current = tmp_path / "here"
    if earlier:
        earlier_build(current)
    else:
        current.mkdir()
    monkeypatch.chdir(current)
    taken_or_refused_before_the_block(here, tmp_path, {"here": None, "here/file": "new"}, tmp_path)
    assert Path("file").read_text() == "new"


def test_a_folder_that_is_replaced_keeps_its_permissions(final: Path) -> None:
    earlier_build(final).chmod(0o700)
    build(final)
    assert final.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("inside", [".", "data"])
def test_what_is_mounted_is_refused_before_the_block(
    inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is mounted in a folder would be emptied with the earlier build."""
    earlier_build(final := tmp_path / "the final")
    monkeypatch.setattr(outputs, "_mount_points", lambda: [Path("/"), final / inside])
    with pytest.raises(OutputError), folder_in_progress(final):
        pytest.fail("the work began")


def test_a_folder_of_a_container_s_image_is_replaced_file_by_file(
    final: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An overlay file system refuses to rename what lies in a lower layer."""
    earlier_build(final)
    for name in ("mine", "file"):  # the build has one called like the second
        (final / name).write_text("the user's")
    rename = os.replace

    def replace(source: Path, target: Path) -> None:
        if source == final:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        rename(source, target)

    monkeypatch.setattr(outputs, "_exchanged", lambda *_: False)
    monkeypatch.setattr(os, "replace", replace)
    with folder_in_progress(final) as folder:
        (folder / "file").write_text("new")
        (folder / MANIFEST).write_bytes(to_json(examples.manifest()))
    kept = {"mine": "the user's", "file.kept": "the user's"}
    assert content(final) == {MANIFEST: (final / MANIFEST).read_text(), "file": "new", **kept}
    assert list(final.parent.iterdir()) == [final]


def test_mount_points_are_those_that_the_system_has() -> None:
    assert Path("/proc") in outputs._mount_points()


@pytest.mark.parametrize("target", ["earlier build", "empty", "missing"])
def test_a_link_is_followed_or_refused_before_the_block(tmp_path: Path, final: Path, target: str) -> None:
    real = tmp_path / "disk" / "real"
    if target == "earlier build":
        earlier_build(real)
    else:
        (real if target == "empty" else real.parent).mkdir(parents=True)
    final.symlink_to(real)
    taken_or_refused_before_the_block(final, final, {"file": "new"}, tmp_path)
