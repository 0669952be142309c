"""One tolerant reader for the engine inspector's JSON of TensorRT 8.6, 10, 11 and TensorRT-RTX.

What differs: 8.6 writes raw control characters into strings; a tensor's `Format/Datatype` holds both, one of
them, or is split in two keys; metadata names are parted by a control character that changed. An engine built
without detailed verbosity lists bare names.
"""

from __future__ import annotations

import json
import re
from typing import Any

from trtopt.errors import ArtifactError
from trtopt.records import BenchPoint, EngineTensor, Record

_REBUILD = "build again with `trtopt build`, which always requests detailed profiling verbosity"
_OTHER = "give what the engine inspector, `trtexec --exportLayerInfo` or `trtopt bench --layers` wrote"
_DTYPES = (
    (r"\bdouble\b|\bfp64\b|\bfloat64\b", "float64"),
    (r"\bfp32\b|\bfloat\b|\bfloat32\b|\bkfloat\b", "float32"),
    (r"\bfp16\b|\bhalf\b|\bfloat16\b|\bkhalf\b", "float16"),
    (r"\bbf16\b|\bbfloat16\b|\bkbf16\b", "bfloat16"),
    (r"\bfp8\b|\bfloat8\w*|\bkfp8\b", "float8_e4m3fn"),
    (r"\bfp4\b|\bkfp4\b", "float4_e2m1fn"),
    (r"\bint4\b", "int4"),
    (r"\buint8\b", "uint8"),
    (r"\bint8\b|\bkint8\b", "int8"),
    (r"\bint32\b|\bkint32\b", "int32"),
    (r"\bint64\b|\bkint64\b", "int64"),
    (r"\bbool\b|\bkbool\b", "bool"),
)
_ONNX_LAYER = re.compile(r"\[ONNX Layer: ")


class EngineLayer(Record, frozen=True, kw_only=True):
    """One layer as the inspector describes it; `kind` is the backend's name for it."""

    name: str
    kind: str
    inputs: tuple[EngineTensor, ...] = ()
    outputs: tuple[EngineTensor, ...] = ()
    tactic: str = ""
    weights_dtype: str = ""
    weights_count: int = 0
    onnx_nodes: tuple[str, ...] = ()
    """The names in the inspector's metadata."""
    activation: str = ""
    """The operator that ONNX Runtime's convolution applies to what it computes."""


def read_inspector(text: str, where: str = "the inspector's text") -> tuple[EngineLayer, ...]:
    """The layers, one at least; unknown keys are ignored, and what a layer lacks is left empty."""
    try:
        found = json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{where}: is no JSON ({error})", _OTHER) from None
    layers = found.get("Layers") if isinstance(found, dict) else found
    if not isinstance(layers, list):
        raise ArtifactError(f"{where}: has no list of layers; it comes from another tool", _OTHER)
    if layers and all(isinstance(layer, str) for layer in layers):
        raise ArtifactError(
            f"{where}: gives only the {len(layers)} layers' names: "
            "the engine was built without detailed profiling verbosity",
            _REBUILD,
        )
    described = [layer for layer in layers if isinstance(layer, dict) and isinstance(layer.get("Name"), str)]
    if not described and isinstance(found, dict):
        raise ArtifactError(f"{where}: describes no layers; profiling verbosity was none", _REBUILD)
    if len(described) != len(layers) or not described:
        has_times = any(isinstance(row, dict) and "averageMs" in row for row in layers)
        kind = "a profile with times" if has_times else "a list of something else"
        raise ArtifactError(f"{where}: is {kind}, not a description of layers", _OTHER)
    return tuple(map(_layer, described))


def _layer(raw: dict[str, Any]) -> EngineLayer:
    weights = raw.get("Weights", raw.get("ConvWeights"))
    weights = weights if isinstance(weights, dict) else {}
    count = weights.get("Count")
    return EngineLayer(
        name=raw["Name"],
        kind=_text(raw.get("LayerType")),
        inputs=tuple(_tensor(entry) for entry in _list(raw.get("Inputs"))),
        outputs=tuple(_tensor(entry) for entry in _list(raw.get("Outputs"))),
        tactic=_text(raw.get("TacticName")) or _text(raw.get("TacticValue")),
        weights_dtype=dtype_in(_text(weights.get("Type"))),
        weights_count=count if isinstance(count, int) and count > 0 else 0,
        onnx_nodes=onnx_names_in(_text(raw.get("Metadata"))),
        activation=_text(raw.get("Activation")),
    )


def _tensor(raw: Any) -> EngineTensor:
    if not isinstance(raw, dict):
        return EngineTensor(name=_text(raw))
    parts = [_text(raw.get(key)) for key in ("Format/Datatype", "Format", "Datatype", "DataType")]
    format_ = " ".join(part for part in parts if part)
    shape = raw.get("Dimensions")
    known = isinstance(shape, list) and all(isinstance(axis, int) and axis >= 0 for axis in shape)
    return EngineTensor(
        name=_text(raw.get("Name")),
        dtype=dtype_in(format_),
        shape=tuple(shape) if known and isinstance(shape, list) else None,
        format=format_,
    )


def dtype_in(text: str) -> str:
    """The NumPy name of the element type that a format's description names; empty if it names none."""
    lowered = text.lower()
    return next((dtype for pattern, dtype in _DTYPES if re.search(pattern, lowered)), "")


def onnx_names_in(metadata: str) -> tuple[str, ...]:
    """The names in `[ONNX Layer: a]…[ONNX Layer: b]`, in order, each once; names may hold brackets."""
    parts = _ONNX_LAYER.split(metadata)[1:]
    names = (part.rstrip("\x1e\x1f\n ,;").removesuffix("]") for part in parts)
    return tuple(dict.fromkeys(name for name in names if name))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def description_of(point: BenchPoint, missing: list[str]) -> tuple[EngineLayer, ...]:
    """The layers as the inspector describes them; none where it says nothing of use."""
    if point.layers is None:
        raise ArtifactError(
            f"batch {point.batch} was measured without a layer pass", "measure again with --layers"
        )
    if point.layers.inspector is None:
        missing.append("types, tactics and shapes of layers: there is no inspector's description")
        return ()
    try:
        return read_inspector(point.layers.inspector, f"batch {point.batch}")
    except ArtifactError as error:
        missing.append(f"types, tactics and shapes of layers: {error.problem}; {error.remedy}")
        return ()
