"""What was done to a graph, or how two differ."""

from __future__ import annotations

from trtopt.records.base import Record, Result
from trtopt.records.tensors import TensorSpec


class Extraction(Result, Record, frozen=True, kw_only=True):
    """A part of a model that was written as a model; nodes in subgraphs count too."""

    schema: str = "trtopt.extraction/1"
    source: str
    out: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    nodes_before: int
    nodes: int
