import hashlib
import os
from pathlib import Path

import onnx
import pytest

from tests.support import graphs
from tests.support.graphs import model_of, save
from trtopt.errors import InvalidModelError
from trtopt.onnxio.model_info import read_onnx


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


def refused(model: onnx.ModelProto, file: Path) -> InvalidModelError:
    with pytest.raises(InvalidModelError) as caught:
        read_onnx(save(model, file))
    assert str(file) in caught.value.problem
    assert caught.value.remedy
    return caught.value


def with_weights_in(entries: dict[str, str]) -> onnx.ModelProto:
    return model_of(graphs.add("x", "w"), weights=[graphs.external(entries)])


def test_external_weights_next_to_the_model_are_hashed_with_it(file: Path) -> None:
    weights = file.with_name("w.bin")
    weights.write_bytes(bytes(24))
    model = with_weights_in({"location": "w.bin", "offset": "8", "length": "16"})
    first = read_onnx(save(model, file))
    assert first.sha256 == hashlib.sha256(file.read_bytes() + weights.read_bytes()).hexdigest()
    weights.write_bytes(bytes(23) + b"\x01")
    assert read_onnx(file).sha256 != first.sha256


def test_external_weights_in_a_folder_below_the_model_are_found(file: Path) -> None:
    (file.parent / "data").mkdir()
    (file.parent / "data" / "w.bin").write_bytes(bytes(16))
    assert read_onnx(save(with_weights_in({"location": "data/w.bin"}), file)).types == ("float32",)


def test_missing_external_weights_are_named(file: Path) -> None:
    error = refused(with_weights_in({"location": "w.bin"}), file)
    assert "'w.bin' is missing" in error.problem


def test_external_weights_that_are_too_short_are_named_with_both_sizes(file: Path) -> None:
    file.with_name("w.bin").write_bytes(bytes(23))
    error = refused(with_weights_in({"location": "w.bin", "offset": "8", "length": "16"}), file)
    assert "'w.bin' has 23 bytes, 24 are needed" in error.problem


@pytest.mark.parametrize("entries", [{}, {"offset": "0"}, {"length": "15"}])
def test_external_weights_shorter_than_their_own_shape_are_an_invalid_model(
    file: Path, entries: dict[str, str]
) -> None:
    file.with_name("w.bin").write_bytes(bytes(15))
    refused(with_weights_in({"location": "w.bin", **entries}), file)


@pytest.mark.parametrize("location", ["../w.bin", "data/../../w.bin", "/absolute", "/w.bin", "", ".."])
def test_external_weights_outside_the_models_folder_are_refused(file: Path, location: str) -> None:
    inner = file.parent / "inner" / "model.onnx"
    (inner.parent / "data").mkdir(parents=True)
    outside = file.parent / "w.bin"
    outside.write_bytes(bytes(16))
    error = refused(with_weights_in({"location": location.replace("/absolute", str(outside))}), inner)
    assert "outside the model's own folder" in error.problem


def test_external_weights_that_are_a_link_out_of_the_models_folder_are_refused(file: Path) -> None:
    inner = file.parent / "inner" / "model.onnx"
    inner.parent.mkdir()
    (file.parent / "w.bin").write_bytes(bytes(16))
    (inner.parent / "w.bin").symlink_to("../w.bin")
    refused(with_weights_in({"location": "w.bin"}), inner)


@pytest.mark.parametrize(
    "entries",
    [
        {"location": "w.bin", "offset": "nine"},
        {"location": "w.bin", "offset": "-4", "length": "16"},
        {"location": "w.bin", "offset": "0", "length": "-16"},
        {"location": "w.bin", "offset": "9" * 5000},
        {"location": "w" * 5000},
        {"location": "w\0.bin"},
    ],
    ids=["no number", "negative offset", "negative length", "endless number", "endless name", "NUL"],
)
def test_external_data_that_makes_no_sense_is_an_invalid_model(file: Path, entries: dict[str, str]) -> None:
    file.with_name("w.bin").write_bytes(bytes(16))
    refused(with_weights_in(entries), file)


def test_a_folder_swapped_for_a_link_between_check_and_opening_is_not_read_through(
    file: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "w.bin").write_bytes(b"0123456789abcdef")
    inner = file.parent / "data"
    inner.mkdir()
    (inner / "w.bin").write_bytes(bytes(16))
    opening = os.open

    def swapped(path: object, *arguments: int) -> int:
        if path == inner / "w.bin":
            inner.rename(file.parent / "aside")
            inner.symlink_to(outside)
        return opening(path, *arguments)

    monkeypatch.setattr(os, "open", swapped)
    assert (
        "was moved while it was opened" in refused(with_weights_in({"location": "data/w.bin"}), file).problem
    )
