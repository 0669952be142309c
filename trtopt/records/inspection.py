"""Records of `trtopt inspect`: what is in a model, an engine, a folder or a file."""

from __future__ import annotations

from trtopt.records.base import Record, Result, Shape
from trtopt.records.build import EngineArtifact
from trtopt.records.tensors import TensorSpec


class WeightGroup(Record, frozen=True, kw_only=True):
    """The weights of one element type."""

    dtype: str
    tensors: int
    elements: int
    size_bytes: int


class ModelContents(Record, frozen=True, kw_only=True):
    """What is in an ONNX model; its weights are counted by what it declares of them, not read."""

    opset: int
    ir_version: int
    producer: str
    domains: dict[str, int] = {}  # noqa: RUF012  (msgspec copies mutable defaults)
    """The version of each domain besides ONNX's own."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    nodes: int
    """Those inside others and inside functions included."""
    operators: dict[str, int]
    """How many nodes each has, the most first; of other domains as DOMAIN::OPERATOR."""
    functions: tuple[str, ...] = ()
    subgraphs: int = 0
    weights: tuple[WeightGroup, ...]
    weight_files: tuple[str, ...] = ()
    """Next to the model."""
    qdq_types: tuple[str, ...] = ()
    """The types that are dequantised."""
    macs: int | None
    """Multiply-adds of convolutions, products and attention at `shapes`; None where a shape is not known."""
    shapes: dict[str, Shape]
    """Of the inputs, that `macs` are counted at."""

    @property
    def parameters(self) -> int:
        """The elements of all weights."""
        return sum(one.elements for one in self.weights)


class Refusal(Record, frozen=True, kw_only=True):
    """What a target cannot take: a node, an input of a type that it does not have, or (neither) the graph."""

    node: str = ""
    operator: str = ""
    input: str = ""
    reason: str


class Subgraph(Record, frozen=True, kw_only=True):
    """Nodes that can be built together, and the tensors that enter and leave them.

    `is_imported`: the parser has imported them; else what feeds them has no known type or shape, and only
    their operators were looked up.
    """

    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    is_imported: bool


class Capability(Record, frozen=True, kw_only=True):
    """What a target takes of a model; `judged_by` is its parser with its version, or trtopt's own table."""

    target: str
    judged_by: str
    nodes: int
    refused: tuple[Refusal, ...]
    subgraphs: tuple[Subgraph, ...]
    """The largest first."""

    @property
    def is_shown(self) -> bool:
        """Whether the parser has imported all of the model."""
        return not self.refused and all(one.is_imported for one in self.subgraphs)


class EngineContents(Record, frozen=True, kw_only=True):
    """What is in an engine; its layers are known where the backend has described them."""

    artifact: EngineArtifact
    layers: int | None = None
    kinds: dict[str, int] = {}  # noqa: RUF012
    """How many layers of each kind, the most first."""
    weight_types: dict[str, float] = {}  # noqa: RUF012
    """The share of the weights in each type, the largest first."""
    context_bytes: int | None = None
    """The device memory that a context takes for activations, of an engine that was loaded."""


class Member(Record, frozen=True, kw_only=True):
    """A file of a folder: its name in it, and what it is."""

    name: str
    what: str
    size_bytes: int


class Inspection(Result, Record, frozen=True, kw_only=True):
    """What a path is and what is in it, as far as it can be read without running anything."""

    schema: str = "trtopt.inspect/2"
    path: str
    what: str
    size_bytes: int
    model: ModelContents | None = None
    engines: tuple[EngineContents, ...] = ()
    members: tuple[Member, ...] = ()
    capability: Capability | None = None
    notes: tuple[str, ...] = ()
