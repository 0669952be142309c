"""Requests that cannot be carried out are refused before anything is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support import examples
from trtopt.errors import UsageError
from trtopt.requests.build import TuneRequest
from trtopt.workflows.tune.setup import batches_of, check_request


def recipe_file(folder: Path, text: str) -> str:
    (folder / "recipe.toml").write_text(text)
    return str(folder / "recipe.toml")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"include": ["batch"], "exclude": ["batch"]}, "leave no kind"),
        ({"include": ["precision"]}, "needs data to calibrate INT8"),
        ({"threshold": 0.0}, "--threshold 0"),
        ({"duration": 0.0}, "--duration 0"),
        ({"timeout": 0.0}, "--timeout 0"),
        ({"timeout": 0.0005}, "choose 0.001 to 604800"),
        ({"profile": "dynamic = true"}, "range of batch sizes"),
        ({"profile": "bounds = {min_cosine = 0.9}"}, "--min-cosine"),
        ({"profile": "compute_capability = ['8.9']"}, "other GPUs"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    if "profile" in fields:
        fields = {"profile": recipe_file(tmp_path, fields["profile"])}
    with pytest.raises(UsageError) as caught:
        check_request(TuneRequest("m.onnx", **fields))
    assert message in str(caught.value)


def test_kinds_are_those_included_and_not_excluded() -> None:
    assert TuneRequest("m.onnx", include=["batch", "streams"], exclude=["batch"]).kinds == ("streams",)
    assert "build-lottery" in TuneRequest("m.onnx").kinds


def test_batch_sizes_are_the_requests_the_recipes_or_the_models(tmp_path: Path) -> None:
    onnx = examples.onnx()
    (image,) = onnx.inputs
    fixed = replace(onnx, inputs=(replace(image, shape=(4, *image.shape[1:])),))
    assert batches_of(TuneRequest("m.onnx"), onnx) == (1,)
    assert batches_of(TuneRequest("m.onnx"), fixed) == (4,)
    assert batches_of(TuneRequest("m.onnx", profile=recipe_file(tmp_path, "batch = [2]")), onnx) == (2,)
    assert batches_of(TuneRequest("m.onnx", batch=(8, 1, 8), objective="throughput"), onnx) == (8, 1)
    with pytest.raises(UsageError, match="one batch size at a time"):
        batches_of(TuneRequest("m.onnx", batch=(1, 8)), onnx)
    with pytest.raises(UsageError, match="fixes its batch at 4"):
        batches_of(TuneRequest("m.onnx", batch=(8,)), fixed)
