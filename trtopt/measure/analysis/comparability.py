"""Whether two sides do the same work, so that a verdict on their times means something. Pure.

The same work is one model at the same input shapes, with the same outputs. A model is known by the file that
the user gave: what precision, rewriting or a backend makes of it is what comparisons are for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from trtopt.errors import ArtifactError, UsageError
from trtopt.records import Shape


@dataclass(frozen=True)
class Work:
    """What a side does, by batch size. `source` is its model's hash; empty if unknown.

    `outputs` are their names; batch sizes may be missing.
    """

    source: str
    shapes: Mapping[int, Mapping[str, Shape]]
    outputs: Mapping[int, Collection[str]] = field(default_factory=dict)


def paired_sizes(a: Collection[int], b: Collection[int], wanted: Collection[int] | None = None) -> list[int]:
    """The batch sizes to compare: `wanted`, by default all that a side has."""
    sizes = {*a, *b} if wanted is None else {*wanted}
    missing = {name: sorted(sizes - {*side}) for name, side in (("A", a), ("B", b))}
    lacking = [f"{name} lacks batch {', '.join(map(str, some))}" for name, some in missing.items() if some]
    if lacking:
        common = ",".join(map(str, sorted({*a} & {*b})))
        remedy = "measure the same batch sizes on both sides"
        raise ArtifactError(
            "; ".join(lacking), f"{remedy}, or compare --batch {common}" if common else remedy
        )
    return sorted(sizes)


def unlike_work(a: Work, b: Work) -> list[str]:
    """How two sides' work differs, as far as both are known; batch sizes that one lacks do not count."""
    found = []
    if a.source and b.source and a.source != b.source:
        found.append(f"the models, {a.source[:12]} and {b.source[:12]}")
    for batch in sorted(a.shapes.keys() & b.shapes.keys()):
        found += _unlike_shapes(batch, a.shapes[batch], b.shapes[batch])
    for batch in sorted(a.outputs.keys() & b.outputs.keys()):
        ours, theirs = (", ".join(sorted(side.outputs[batch])) for side in (a, b))
        if ours != theirs:
            found.append(f"batch {batch}: the outputs, {ours} and {theirs}")
    return found


def _unlike_shapes(batch: int, a: Mapping[str, Shape], b: Mapping[str, Shape]) -> list[str]:
    names = [name for name in dict.fromkeys((*a, *b)) if a.get(name) != b.get(name)]
    return [
        f"batch {batch}: input {name!r}, {_described(a.get(name))} and {_described(b.get(name))}"
        for name in names
    ]


def _described(shape: Shape | None) -> str:
    if shape is None:
        return "not there"
    return "×".join(map(str, shape)) if shape else "a scalar"


def require_alike(unlike: Sequence[str], *, force: bool) -> list[str]:
    """What differs, in the words of notes."""
    if unlike and not force:
        raise UsageError(
            f"A and B differ in {'; '.join(unlike)}",
            "measure one model at the same shapes on both sides, or compare them anyway with --force",
        )
    return [f"A and B differ in {difference}" for difference in unlike]
