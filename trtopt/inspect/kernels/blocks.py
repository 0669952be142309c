"""Names in repeated blocks, as those of a transformer: `/layer.0/MatMul` and `/layer.1/MatMul`."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NUMBER = re.compile(r"(?<=[./_])\d+(?=[./]|$)")
_GENERATED = re.compile(r"^(mha|__myl_bb)\d+(?:_\d+)?")
ANY = "*"


def in_any_block(names: Sequence[str]) -> tuple[str, ...]:
    """The names without the numbers of blocks: the same for the same node of each block."""
    return tuple(_NUMBER.sub(ANY, name) for name in names)


def common_names(members: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Names that are the same `in_any_block`, with the numbers in which they differ left out."""
    return tuple(_common(names) for names in zip(*members, strict=True))


def _common(names: Sequence[str]) -> str:
    numbers = zip(*(_NUMBER.findall(name) for name in names), strict=True)
    kept = iter([own[0] if len(set(own)) == 1 else ANY for own in numbers])
    return _NUMBER.sub(lambda _: next(kept), names[0])


def kernel_of_any_number(name: str) -> str:
    """The name of a kernel without the number that TensorRT's graph compiler gives to each it generates."""
    return _GENERATED.sub(rf"\1{ANY}", name)
