"""No byte of a file outside the model's folder is read, wherever a model refers to it, and nothing waits."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from tests.fuzz.external_data import DECOY, PARTS, PLACES, SECRET, lay_out, tensor_at
from trtopt.device.ort.runtime import open_session
from trtopt.errors import IncompatibleEngineError, InvalidModelError, TrtoptError
from trtopt.onnxio import model_file
from trtopt.onnxio.model_info import read_onnx

pytestmark = pytest.mark.long

TIME_LIMIT_S = 60


def _saved(path: Path, out: Path) -> None:
    model_file.save(model_file.load(path), out / "saved.onnx")


def _rewritten(path: Path, out: Path) -> None:
    from trtopt.rewrite.rewrite import rewrite_model

    rewrite_model(path, out / "rewritten.onnx", target="10")


def _cast(path: Path, out: Path) -> None:
    import trtopt

    trtopt.cast(path, out / "cast.onnx", precision="fp16", target="10")


def _built(path: Path, out: Path) -> None:
    import trtopt

    trtopt.build(path, out / "built", backend="onnxruntime")


def _checked(path: Path, out: Path) -> None:
    from trtopt.api import check

    (out / "report").write_text(repr(check(path, path)))


READERS = (_saved, _rewritten, _cast, _built, _checked)


def _time_is_up(number: int, frame: FrameType | None) -> None:
    raise BaseException(f"over {TIME_LIMIT_S} s")  # nobody handles this one


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, _time_is_up)
    signal.alarm(TIME_LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = lay_out(tmp_path)
    monkeypatch.chdir(tmp_path / "current")
    (tmp_path / "out").mkdir()
    return folder


@pytest.mark.parametrize("read", READERS, ids=[one.__name__ for one in READERS])
@pytest.mark.parametrize("part", PARTS)
def test_no_part_of_a_model_reads_what_lies_outside_its_folder(
    part: str, read: Callable[[Path, Path], None], folder: Path
) -> None:
    out = folder.parent / "out"
    for place, entries in PLACES.items():
        path = folder / "model.onnx"
        path.write_bytes(PARTS[part](tensor_at(entries(folder.parent))).SerializeToString())
        with pytest.raises(TrtoptError) as caught:
            read(path, out)
        assert isinstance(caught.value, InvalidModelError), f"{place}: {caught.value!r}"
        assert caught.value.remedy, place
        assert SECRET not in repr(caught.value).encode(), place
        assert list(out.iterdir()) == [], place


@pytest.mark.parametrize("part", PARTS)
def test_what_lies_next_to_the_model_is_read_from_every_part(part: str, folder: Path) -> None:
    path, out = folder / "model.onnx", folder.parent / "saved.onnx"
    path.write_bytes(PARTS[part](tensor_at([("location", "decoy")])).SerializeToString())
    model_file.save(model_file.load(path), out)
    assert DECOY in out.read_bytes()
    assert read_onnx(path).sha256 != read_onnx(out).sha256


@pytest.mark.parametrize("place", ["current folder", "above", "absolute"])
@pytest.mark.parametrize("part", PARTS)
def test_an_engine_of_onnx_runtimes_that_refers_to_files_is_not_opened(
    part: str, place: str, folder: Path
) -> None:
    engine = PARTS[part](tensor_at(PLACES[place](folder.parent)))
    with pytest.raises(IncompatibleEngineError, match="refers to files"):
        open_session(engine.SerializeToString())


def test_a_copy_without_links_is_read_as_the_remedy_says(folder: Path) -> None:
    import subprocess

    path = folder / "model.onnx"
    for place in ("hard link", "link"):
        path.write_bytes(PARTS["Constant"](tensor_at(PLACES[place](folder.parent))).SerializeToString())
        with pytest.raises(InvalidModelError, match="cp -rL FOLDER COPY"):
            read_onnx(path)
        files = [path, folder / ("hard" if place == "hard link" else "link")]
        copied = folder.parent / place.replace(" ", "-")
        (own := folder.parent / f"own {place}").mkdir()
        for file in files:
            file.rename(own / file.name)
        subprocess.run(["cp", "-rL", own, copied], check=True)
        assert read_onnx(copied / "model.onnx").sha256


def test_values_that_trtopt_sets_aside_are_no_models_to_name(folder: Path) -> None:
    """A model that names the very file in which a weight of another was set aside is none the wiser."""
    import numpy as np

    spool = folder.parent / "out"
    kept = model_file.spooled(np.frombuffer(SECRET, np.uint8), "k", spool)
    assert model_file.raw_bytes(kept, folder).tobytes() == SECRET
    (file,) = spool.iterdir()
    for location in (file.name, str(file), f"../out/{file.name}"):
        (folder / "model.onnx").write_bytes(
            PARTS["Constant"](tensor_at([("location", location)])).SerializeToString()
        )
        with pytest.raises(InvalidModelError):
            model_file.load(folder / "model.onnx")


def test_weights_in_a_file_that_is_called_like_the_builds_own_are_refused(folder: Path) -> None:
    """The copy of the model would be taken for its weights."""
    import trtopt

    (folder / "decoy").rename(folder / "model.onnx")
    (folder / "own.onnx").write_bytes(
        PARTS["initializer"](tensor_at([("location", "model.onnx")])).SerializeToString()
    )
    with pytest.raises(InvalidModelError, match="a name that the build folder needs itself"):
        trtopt.build(folder / "own.onnx", folder.parent / "out" / "d", backend="onnxruntime", rewrite="none")
    assert list((folder.parent / "out").iterdir()) == []
