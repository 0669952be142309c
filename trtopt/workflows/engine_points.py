"""Which engine is measured at which batch size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtopt.errors import UsageError
from trtopt.records import BuildPlan, EngineArtifact


def points(
    engines: Sequence[EngineArtifact], batch: Sequence[int] | None
) -> list[tuple[EngineArtifact, int]]:
    """Which engine is measured at which batch size.

    Dynamic engines stand for the smallest and largest batch of each profile, and what it is tuned for.
    """
    if batch is None:
        sizes = {(index, size) for index, engine in enumerate(engines) for size in _telling(engine.plan)}
        return [(engines[index], size) for index, size in sorted(sizes)]
    return [(_engine_for(engines, size), size) for size in sorted(set(batch))]


def _telling(plan: BuildPlan) -> Iterator[int]:
    """Where each profile begins and ends to be used, and what it is tuned for."""
    yield from (size for span in plan.spans for size in (span.low, span.high))
    yield from (profile.batch.opt[0] for profile in plan.profiles)


def _engine_for(engines: Sequence[EngineArtifact], size: int) -> EngineArtifact:
    """The engine that is tuned closest to a batch size, among those that admit it."""
    spans = [(engine, engine.plan.span_of(size)) for engine in engines]
    fitting = [(engine, engine.plan.profiles[span.profile]) for engine, span in spans if span is not None]
    if not fitting:
        there = ", ".join(engine.plan.label for engine in engines)
        raise UsageError(
            f"--batch {size}: no engine here takes it (there are: {there})",
            f"choose among those, or build one: trtopt build MODEL.onnx -o FOLDER --batch {size}",
        )
    return min(fitting, key=lambda one: abs(one[1].batch.opt[0] - size))[0]
