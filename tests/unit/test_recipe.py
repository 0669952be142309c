"""How requests for inputs and outputs are read."""

import pytest

from trtopt.errors import UsageError
from trtopt.recipe import read_io_request, split_io, split_normalize
from trtopt.records.tensors import Normalisation, TensorFormat


def test_a_request_is_read() -> None:
    request = read_io_request(
        {"a": "uint8:nhwc", "b": "int8:chw4", "c": "fp16"}, {"a": "std=2,4:mean=1,3"}, None
    )
    assert request.formats == (
        TensorFormat(name="a", dtype="uint8", layout="nhwc"),
        TensorFormat(name="b", dtype="int8", layout="chw4"),
        TensorFormat(name="c", dtype="float16", layout="nchw"),
    )
    assert request.normalisations == (Normalisation(name="a", mean=(1.0, 3.0), std=(2.0, 4.0)),)
    assert request.vectorised == {"b": "chw4"}
    assert request.int8 == ("b",)


def test_names_may_hold_what_separates() -> None:
    assert split_io("scope:image=0=uint8:nhwc") == ("scope:image=0", "uint8:nhwc")
    assert split_normalize("scope:image:mean=1:std=2") == ("scope:image", "mean=1:std=2")
    assert split_normalize("scope:image:std=2:mean=1") == ("scope:image", "std=2:mean=1")


@pytest.mark.parametrize("text", ["image", "=uint8", "image="])
def test_an_io_that_names_no_tensor_or_type_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"NAME=TYPE\[:LAYOUT\]"):
        split_io(text)


@pytest.mark.parametrize(
    ("io", "normalize", "preprocess", "words"),
    [
        ({"a": "fp8"}, {}, None, "unknown type 'fp8'"),
        ({"a": "fp16:chw3"}, {}, None, "unknown layout 'chw3'"),
        ({}, {"a": "mean=1"}, None, "each once"),
        ({}, {"a": "mean=1:mean=2:std=1"}, None, "each once"),
        ({}, {"a": "mean=x:std=1"}, None, "not numbers"),
        ({}, {"a": "mean=1,2:std=1"}, None, "2 means and 1 deviations"),
        ({}, {"a": "mean=1:std=0"}, None, "deviations must be above 0"),
        ({}, {"a": "mean=1:std=1e-50"}, None, "finite in FP32"),
        ({}, {"a": "mean=1e39:std=1"}, None, "finite in FP32"),
        ({}, {"a": "mean=nan:std=1"}, None, "finite"),
        ({}, {"a": "mean=1:std=1"}, "imagenet", "normalised once"),
        ({}, {}, "imagenot", "unknown"),
        ({"a": "int8"}, {"a": "mean=1:std=1"}, None, "normalised already"),
    ],
)
def test_what_is_wrong_is_named(
    io: dict[str, str], normalize: dict[str, str], preprocess: str | None, words: str
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        read_io_request(io, normalize, preprocess)
    assert caught.value.remedy
