"""Records of models."""

from __future__ import annotations

from trtopt.records.base import Record


class TensorSpec(Record, frozen=True, kw_only=True):
    """An input or output: `dtype` is a NumPy name (`float32`, `bfloat16`, `int64`, `bool`, …)."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class OnnxArtifact(Record, frozen=True, kw_only=True):
    """An ONNX file. `sha256` covers its external data too; `parent` is the file it was made from."""

    path: str
    sha256: str
    opset: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    types: tuple[str, ...] = ()
    """The element types that the graph's tensors have, sorted: builder flags are derived from these."""
    parent: str | None = None
