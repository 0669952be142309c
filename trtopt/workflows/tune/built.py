"""A build folder that is or may become the incumbent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtopt.recipe import Recipe
from trtopt.records import EngineArtifact, Manifest


@dataclass(frozen=True)
class Built:
    """A build folder with one engine, the recipe of that, and what it is run with."""

    folder: Path
    manifest: Manifest
    recipe: Recipe
    batch: int
    streams: int
    changes: tuple[str, ...] = ()

    @property
    def engine(self) -> EngineArtifact:
        """The engine of the batch size."""
        return next(one for one in self.manifest.engines if one.plan.span_of(self.batch) is not None)

    @property
    def selected(self) -> str | None:
        """The candidate that was selected for it among precisions; None if none was."""
        verdict = self.manifest.verdict
        return None if verdict is None else verdict.batches[0].chosen

    @property
    def left(self) -> tuple[str, ...]:
        """The nodes that selecting it left in float."""
        candidates = () if self.manifest.verdict is None else self.manifest.verdict.candidates
        return next((one.left for one in candidates if one.name == self.selected), ())

    @property
    def is_rewritten(self) -> bool:
        """Whether a rule of a candidate has changed the graph: a graph made again would lack it."""
        return any(name.startswith("rule=") for name in self.changes)
