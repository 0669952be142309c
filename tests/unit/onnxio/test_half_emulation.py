"""16-bit models in FP32: what they compute, their ends, and their subgraphs."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, parser

from trtopt.onnxio.half_emulation import is_low, widened
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.shape_inference import types_of
from trtopt.precision.compare import open_model

TEXT = """<ir_version: 10, opset_import: ["" : 22]>
g (KIND[N,4] x, bool go) => (KIND[N,4] y, KIND[N,4] h)
<KIND[4,4] w = {1,2,0,1, 0,1,1,0, 3,0,1,1, 1,1,1,2}> {
    a = MatMul(x, w)
    z = Constant <value: tensor = KIND[1] {0}> ()
    h = Max(a, z)
    y = If (go) <
        then_branch = t () => (KIND[N,4] p) {
            f = Cast <to: int = 1> (h)
            e = Exp(f)
            p = Cast <to: int = CODE> (e)
        },
        else_branch = e () => (KIND[N,4] q) { q = Neg(h) }
    >
}"""


@pytest.mark.parametrize(
    ("kind", "code", "dtype"), [("float16", 10, np.float16), ("bfloat16", 16, ml_dtypes.bfloat16)]
)
def test_the_model_computes_the_same_in_fp32_and_keeps_the_types_of_its_ends(
    kind: str, code: int, dtype: type
) -> None:
    model = parser.parse_model(TEXT.replace("KIND", kind).replace("CODE", str(code)))
    file = ModelFile(model, Path(), external=False)
    assert is_low(model)
    wide = widened(file)
    onnx.checker.check_model(wide.proto, full_check=True)
    types = types_of(wide.proto)
    assert {name for name, type_ in types.items() if type_ == code} == {"x", "y", "h"}
    assert not {TensorProto.FLOAT16, TensorProto.BFLOAT16} & {
        item.data_type for item in wide.proto.graph.initializer
    }
    x = np.array([[0.5, -1, 2, 0.25], [1, 1, -3, 0]], dtype)
    for go in (True, False):
        feed = {"x": x, "go": np.array(go)}
        before, after = open_model(file).run(feed), open_model(wide).run(feed)
        for name in ("y", "h"):
            assert after[name].dtype == dtype
            np.testing.assert_allclose(
                after[name].astype(np.float32), before[name].astype(np.float32), rtol=2**-7
            )


def test_a_model_without_16_bit_types_is_told_from_one_with() -> None:
    text = TEXT.replace("KIND", "float").replace("CODE", "1")
    assert not is_low(parser.parse_model(text))
    assert is_low(parser.parse_model(text.replace("<to: int = 1>", "<to: int = 10>")))
