"""A failed build of TensorRT 8.6 is explained by the tensor that is too large for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest

from trtopt.errors import BuildError
from trtopt.onnxio.model_info import read_onnx
from trtopt.records import Backend
from trtopt.requests.recipe import make_recipe
from trtopt.workflows.workbench import explain_oversize, make_plans

SAID = BuildError("some shape can not be computed", "try something")


@dataclass(frozen=True)
class Case:
    batches: tuple[int, ...]
    version: str = "8.6.0"
    name: str = "tensorrt"


def told(folder: Path, case: Case) -> BuildError:
    """An attention over 4,096 places: its scores have 2²⁴ elements a sample."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        net (float[N, 4096, 8] q, float[N, 8, 4096] k) => (float[N, 4096] y) {
            scores = MatMul (q, k)
            y = ReduceMax <axes = [2], keepdims = 0> (scores)
        }""")
    onnx.save(model, folder / "net.onnx")
    artifact = read_onnx(folder / "net.onnx")
    backend = Backend(name=case.name, version=case.version)
    *_, plan = make_plans(artifact, make_recipe(None, {"batch": case.batches}), backend)
    return explain_oversize(SAID, Path(artifact.path), plan)


def test_the_tensor_is_named_with_its_size_and_the_batch_that_fits(tmp_path: Path) -> None:
    error = told(tmp_path, Case((1, 128)))
    assert error.problem == (
        "'scores' is 128×4096×4096 at batch 128, more than the 2,147,483,647 elements that TensorRT 8.6.0 "
        "allows a tensor: some shape can not be computed"
    )
    assert error.remedy.endswith("fits up to 127")


@pytest.mark.parametrize(
    "case", [Case((127,)), Case((128,), "10.16.1"), Case((128,), "1.7.1", "tensorrt-rtx")]
)
def test_where_no_tensor_is_too_large_the_error_stays(tmp_path: Path, case: Case) -> None:
    assert told(tmp_path, case) is SAID
