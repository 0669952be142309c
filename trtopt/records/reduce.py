"""Records of `trtopt reduce`."""

from __future__ import annotations

from typing import Literal

from trtopt.records.base import Record, Result

__all__ = ["ReduceReport", "ReducedNode", "Symptom"]


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


class ReduceReport(Result, Record, frozen=True, kw_only=True):
    """The result of `trtopt reduce`."""

    schema: str = "trtopt.reduce/1"
    created: str
    argv: tuple[str, ...] = ()
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
