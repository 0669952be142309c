"""What was done to a graph, what is left of one that fails, or how two differ."""

from __future__ import annotations

from typing import Literal

from trtopt.records.base import Record, Result, ResultFile
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


# ── reductions ──────────────────────────────────────────────────────────────────────────────────────────


class Symptom(Record, frozen=True, kw_only=True):
    """One way in which a model fails.

    Two models fail alike where `kind` and `signature` are equal: it has no names of the model, no numbers and
    no paths. `detail` is what was seen.
    """

    kind: Literal["error", "exit code", "hang", "slow", "unfused", "wrong output"]
    signature: str
    detail: str

    @property
    def look(self) -> tuple[str, str]:
        """What is alike of two failures."""
        return self.kind, self.signature


class ReducedNode(Record, frozen=True, kw_only=True):
    """A node that is left."""

    name: str
    op: str


class ReduceReport(Result, ResultFile, frozen=True, kw_only=True):
    """The result of `trtopt reduce`."""

    schema: str = "trtopt.reduce/1"
    model: str
    model_sha256: str
    out: str
    data: str
    """The inputs that the reduced model fails on, an .npz next to it."""
    condition: str
    backend: str | None
    """What built the models; None for a command."""
    symptom: Symptom
    """The failure that was kept, as the reduced model shows it."""
    others: tuple[Symptom, ...]
    """Other failures of the whole model, which may be gone."""
    nodes_before: int
    nodes: tuple[ReducedNode, ...]
    fixed_shapes: bool
    """Whether dynamic axes have the lengths of the samples now."""
    minimal: bool
    """Whether the failure was shown to go with each single node."""
    steps: int
    resumed: int
    """How many of the steps an earlier run had done."""
    notes: tuple[str, ...] = ()
    seconds: float


# ── differences ─────────────────────────────────────────────────────────────────────────────────────────


class FactChange(Record, frozen=True, kw_only=True):
    """What is said of the model as a whole: opsets, producer, metadata, what its outputs come of.

    None: not there.
    """

    what: str
    a: str | None
    b: str | None


class TensorChange(Record, frozen=True, kw_only=True):
    """An input, an output or a tensor between nodes whose type or shape differs, or that one side lacks."""

    role: Literal["input", "output", "inner"]
    name: str
    a: str | None
    b: str | None


class GraphNode(Record, frozen=True, kw_only=True):
    """A node that only one side has."""

    node: str
    op: str


class NodeChange(Record, frozen=True, kw_only=True):
    """A node that both have, by its name in A and in B, and what differs of it."""

    node: str
    other: str
    op: str
    what: str


class WeightChange(Record, frozen=True, kw_only=True):
    """A weight in the same place of both: |B - A| / |A| by the Euclidean norm, and the largest |B - A|.

    Both are None where the shapes differ, the first where A is 0 or not finite.
    """

    weight: str
    other: str
    a: str
    b: str
    relative: float | None
    largest: float | None


class ModelDifference(Result, Record, frozen=True, kw_only=True):
    """How model B differs from A, functions inlined and Constant nodes taken as weights.

    `same` nodes differ in nothing but their names; of them and those that changed, `renamed` ones in these.
    """

    schema: str = "trtopt.diff/2"
    a: str
    b: str
    facts: tuple[FactChange, ...]
    tensors: tuple[TensorChange, ...]
    added: tuple[GraphNode, ...]
    removed: tuple[GraphNode, ...]
    changed: tuple[NodeChange, ...]
    weights: tuple[WeightChange, ...]
    same: int
    renamed: int

    @property
    def is_same(self) -> bool:
        """Whether nothing but names differs."""
        return not (self.facts or self.tensors or self.added or self.removed or self.changed or self.weights)
