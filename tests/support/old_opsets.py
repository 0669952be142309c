"""Small models of opset 7 to 12 and later, one for each thing that a newer opset says otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

_INT64 = onnx.TensorProto.INT64
_RNG = np.random.default_rng(7)
Array = NDArray[Any]


def _f(*shape: int) -> Array:
    return _RNG.standard_normal(shape).astype(np.float32)


def _i(*values: int) -> Array:
    return np.array(values, np.int64)


IMAGE = _f(2, 4, 6, 5)


@dataclass(frozen=True)
class Old:
    """One node: `inputs` are fed, `constants` are initializers, in the order that `order` gives or theirs."""

    op: str
    opsets: tuple[int, ...]
    inputs: dict[str, Array]
    attributes: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("y",)
    order: tuple[str, ...] = ()
    kind: int = onnx.TensorProto.FLOAT
    """The element type of the outputs, but for `i`, which are indices."""

    def model(self, opset: int) -> onnx.ModelProto:
        """The model at one of its opsets."""
        names = list(self.order or (*self.inputs, *self.constants))
        node = helper.make_node(self.op, names, self.outputs, name="old", **self.attributes)
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in self.inputs.items()
        ]
        outputs = [
            helper.make_tensor_value_info(name, _INT64 if name == "i" else self.kind, None)
            for name in self.outputs
        ]
        weights = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        graph = helper.make_graph([node], "g", inputs, outputs, weights)
        imports = [helper.make_opsetid("", opset)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=7 if opset < 15 else 8)
        return onnx.shape_inference.infer_shapes(model)

    def __str__(self) -> str:
        told = ",".join(f"{name}={value}" for name, value in self.attributes.items())
        shapes = "x".join(map(str, next(iter(self.inputs.values())).shape))
        return f"{self.op}({told})[{shapes}]@{self.opsets[0]}"


def _x(array: Array = IMAGE) -> dict[str, Array]:
    return {"x": array}


def _scales(*values: float) -> dict[str, Array]:
    return {"scales": np.array(values, np.float32)}


_NORM = {"s": _f(4), "b": _f(4), "m": _f(4), "v": np.abs(_f(4)) + 1}
_TO_12 = (7, 8, 9, 10, 11, 12)

CASES = [
    *(
        Old(op, _TO_12, _x(), {"axis": axis})
        for op in ("Softmax", "LogSoftmax", "Hardmax")
        for axis in range(4)
    ),
    *(Old(op, _TO_12, _x()) for op in ("Softmax", "LogSoftmax", "Hardmax")),
    *(Old(op, (11, 12), _x(), {"axis": -3}) for op in ("Softmax", "LogSoftmax", "Hardmax")),
    *(Old(op, _TO_12, _x(_f(3, 7, 1, 1)), {"axis": 1}) for op in ("Softmax", "Hardmax")),
    *(
        Old("Clip", (7, 9, 10), _x(), bounds)
        for bounds in ({"min": -0.5, "max": 0.25}, {"min": 0.0}, {"max": 0.0}, {})
    ),
    *(
        Old("Pad", (7, 10), _x(), {"mode": mode, "pads": [0, 0, 1, 2, 0, 0, 2, 1], "value": value})
        for mode, value in (("constant", 0.0), ("constant", 1.5), ("reflect", 0.0), ("edge", 0.0))
    ),
    Old("Pad", (10,), _x(), {"pads": [0, 0, -1, 2, 0, 0, -2, 1]}),
    Old("Slice", (7, 9), _x(), {"starts": [1, -4], "ends": [2147483647, -1], "axes": [1, 2]}),
    Old("Slice", (7, 9), _x(), {"starts": [0, 1], "ends": [1, 3]}),
    Old("TopK", (7, 9), _x(), {"k": 3}, outputs=("y", "i")),
    Old("TopK", (7, 9), _x(), {"k": 2, "axis": 1}, outputs=("y", "i")),
    Old("TopK", (10,), _x(), {"axis": 2}, {"k": _i(2)}, outputs=("y", "i")),
    Old("Squeeze", (7, 10), _x(_f(1, 3, 1, 2)), {"axes": [0, 2]}),
    Old("Squeeze", (7, 11, 12), _x(_f(1, 3, 1, 2))),
    Old("Squeeze", (11, 12), _x(_f(1, 3, 1, 2)), {"axes": [-2]}),
    Old("Unsqueeze", _TO_12, _x(_f(3, 2)), {"axes": [0, 3]}),
    Old("Unsqueeze", (11, 12), _x(_f(3, 2)), {"axes": [-1]}),
    Old("Split", _TO_12, _x(), {"axis": 2, "split": [1, 3, 2]}, outputs=("y", "z", "w")),
    Old("Split", (7, 11, 13, 17), _x(), {"axis": 1}, outputs=("y", "z")),
    *(
        Old(f"Reduce{kind}", (7, 11, 12, 13, 17) if kind != "Sum" else _TO_12, _x(np.abs(IMAGE)), attributes)
        for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare", "Sum")
        for attributes in ({"axes": [1, 3]}, {"axes": [2], "keepdims": 0}, {"keepdims": 0})
    ),
    Old("ReduceMean", (11, 13, 17), _x(), {"axes": [-1]}),
    Old("BatchNormalization", (7, 8, 9, 13, 14), _x(), {"epsilon": 1e-3}, _NORM),
    Old("BatchNormalization", (7, 8), _x(), {"spatial": 1}, _NORM),
    Old("Dropout", (7, 10, 11), _x(), {"ratio": 0.3}),
    Old("Dropout", (7, 10, 11, 12, 13), _x()),
    *(
        Old("Upsample", opsets, _x(), {"mode": mode, **given}, constants)
        for mode in ("nearest", "linear")
        for scales in ([1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 1.5, 2.6], [1.0, 1.0, 1.0, 1.0])
        for opsets, given, constants in (
            ((7, 8), {"scales": scales}, {}),
            ((9,), {}, _scales(*scales)),
        )
    ),
    Old("Upsample", (9,), _x() | _scales(1, 1, 1.7, 3), {"mode": "nearest"}),
    *(
        Old("Resize", (10,), _x(), {"mode": mode}, _scales(*scales))
        for mode in ("nearest", "linear")
        for scales in ([1, 1, 2, 2], [1, 1, 0.5, 0.5], [1, 1, 0.6, 0.7], [1, 1, 2.3, 1.7], [1, 1, 1, 1])
    ),
    Old("Resize", (10,), _x(), {"mode": "linear"}, _scales(1, 1, 0.6, 1.7)),
    Old("Resize", (10,), _x() | _scales(1, 1, 0.6, 1.7), {"mode": "linear"}),
    *(
        Old(
            "Resize",
            (11, 12),
            _x(),
            {"mode": mode, "coordinate_transformation_mode": coordinates},
            {"roi": np.zeros(0, np.float32), **_scales(1, 1, 2.4, 0.8)},
        )
        for mode in ("nearest", "linear", "cubic")
        for coordinates in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    ),
    *(
        Old(
            "Resize", (11, 12), _x(), {"mode": mode}, {"roi": _f(0), "scales": _f(0), "sizes": _i(2, 4, 9, 3)}
        )
        for mode in ("nearest", "linear")
    ),
    Old(
        "Resize",
        (11,),
        _x(),
        {
            "mode": "linear",
            "coordinate_transformation_mode": "tf_crop_and_resize",
            "extrapolation_value": 2.0,
        },
        {
            "roi": np.array([0, 0, 0.2, 0.1, 1, 1, 0.8, 1.3], np.float32),
            "scales": _f(0),
            "sizes": _i(2, 4, 9, 3),
        },
    ),
    *(
        Old("Resize", (13, 18), _x(), {"mode": mode}, _scales(1, 1, 2.4, 0.8), order=("x", "", "scales"))
        for mode in ("nearest", "linear", "cubic")
    ),
    Old("Scatter", (9, 10), _x(_f(3, 3)), {"axis": 1}, {"i": np.array([[1, 0], [0, 2]]), "u": _f(2, 2)}),
    *(
        Old(
            "RoiAlign",
            (10, 15),
            _x(),
            {"output_height": 2, "output_width": 2, "spatial_scale": 0.5, "mode": mode},
            {"rois": np.array([[0, 0, 8, 8], [1, 2, 9, 6]], np.float32), "i": _i(0, 1)},
        )
        for mode in ("avg", "max")
    ),
    *(
        Old(
            "GridSample",
            (16, 19),
            _x(),
            {"mode": mode, "align_corners": 1},
            {"grid": np.tanh(_f(2, 3, 3, 2))},
        )
        for mode in ("bilinear", "bicubic", "nearest")
    ),
    Old("GridSample", (16, 19), _x(), {}, {"grid": np.tanh(_f(2, 3, 3, 2))}),
    Old("DFT", (17, 19), _x(_f(2, 5, 3, 1)), {"axis": 2}),
    Old("DFT", (17, 19), _x(_f(2, 5, 3, 1)), {"axis": 1, "onesided": 1}, {"n": np.array(4, np.int64)}),
    Old("DFT", (17, 19), _x(_f(2, 5, 3, 1))),
    Old("OneHot", (9, 10), {"x": _i(0, 2, 1)}, {}, {"depth": _i(3), "v": np.array([0, 5], np.float32)}),
    *(
        Old("AveragePool", opsets, _x(), {"kernel_shape": [3, 3], "strides": [2, 2], **given})
        for opsets, given in (
            ((7, 10, 18), {"pads": [1, 1, 1, 1]}),
            ((7, 10, 18), {"pads": [1, 1, 1, 1], "count_include_pad": 1}),
            ((10, 11, 18), {"ceil_mode": 1}),
            ((10, 11, 18), {"ceil_mode": 1, "pads": [1, 1, 1, 1]}),
            ((10, 11, 18), {"ceil_mode": 1, "pads": [1, 1, 1, 1], "count_include_pad": 1}),
            ((7, 10, 18), {"auto_pad": "SAME_UPPER"}),
            ((7, 10, 18), {"auto_pad": "SAME_LOWER"}),
            ((7, 10, 18), {"auto_pad": "VALID"}),
        )
    ),
    *(
        Old("MaxPool", opsets, _x(), {"kernel_shape": [3, 3], "strides": [2, 2], **given}, outputs=outputs)
        for opsets, given, outputs in (
            ((7, 8, 10, 11, 12), {"pads": [1, 1, 1, 1]}, ("y",)),
            ((8, 10, 11), {"storage_order": 1}, ("y",)),
            ((10, 11, 12), {"ceil_mode": 1, "pads": [1, 1, 1, 1]}, ("y",)),
            ((10, 11, 12), {"dilations": [2, 1]}, ("y",)),
            ((7, 8, 10), {"auto_pad": "SAME_LOWER"}, ("y",)),
        )
    ),
    *(
        Old("ConvTranspose", (7, 10), _x(), {"strides": [3, 3], "auto_pad": pad}, {"w": _f(4, 3, 2, 2)})
        for pad in ("SAME_UPPER", "SAME_LOWER", "VALID")
    ),
    Old("LSTM", (7, 13, 14), _x(_f(3, 2, 4)), {"hidden_size": 5}, {"w": _f(1, 20, 4), "r": _f(1, 20, 5)}),
    *(
        Old(
            "GRU",
            (7, 13),
            _x(_f(3, 2, 4)),
            {"hidden_size": 5, "linear_before_reset": reset},
            {"w": _f(1, 15, 4), "r": _f(1, 15, 5), "b": _f(1, 30)},
        )
        for reset in (0, 1)
    ),
    Old("RNN", (7, 13), _x(_f(3, 2, 4)), {"hidden_size": 5}, {"w": _f(1, 5, 4), "r": _f(1, 5, 5)}),
    Old("Gemm", (7, 9, 10), _x(_f(3, 4)), {"alpha": 0.5, "transB": 1}, {"w": _f(5, 4), "c": _f(5)}),
    Old("PRelu", (7, 9), _x(), {}, {"slope": _f(4, 1, 1)}),
    Old("DepthToSpace", (7, 10), _x(), {"blocksize": 2}),
    Old("ArgMax", (7, 11), _x(np.round(IMAGE)), {"axis": 1}, kind=_INT64),
    Old("QuantizeLinear", (10, 12), _x(), {}, {"s": np.array(0.1, np.float32)}, kind=onnx.TensorProto.UINT8),
    Old(
        "QuantizeLinear",
        (13, 18),
        _x(),
        {"axis": 1},
        {"s": np.abs(_f(4)) + 0.1, "z": np.zeros(4, np.int8)},
        kind=onnx.TensorProto.INT8,
    ),
    Old(
        "DequantizeLinear",
        (13, 18),
        _x(np.arange(16, dtype=np.int8).reshape(2, 4, 2)),
        {},
        {"s": np.abs(_f(4)) + 0.1},
    ),
    Old("LpPool", (7, 11, 17), _x(), {"kernel_shape": [2, 3], "p": 2}),
    Old("Mod", (10,), _x(), {"fmod": 1}, {"d": np.array(0.7, np.float32)}),
    Old("Pow", (7, 12, 13), _x(np.abs(IMAGE)), {}, {"e": np.array(1.5, np.float32)}),
]
