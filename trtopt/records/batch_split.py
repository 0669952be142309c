"""How a graph is cut for a chain of engines: the request, and how it is read."""

from __future__ import annotations

from collections.abc import Sequence

from trtopt.errors import UsageError
from trtopt.records.base import Record
from trtopt.records.typed_io import VECTORS

MAX_PARTS = 1024
_EXAMPLE = "write, say, --split relu_3:4, or --split relu_3=chw32:4"


class BatchSplit(Record, frozen=True, kw_only=True):
    """A cut: what makes these tensors, behind an earlier cut if there is one, runs on parts of the batch."""

    tensors: tuple[str, ...]
    parts: int
    layouts: dict[str, str] = {}  # noqa: RUF012  (msgspec copies mutable defaults)
    """The vectorised formats of the tensors; the others are linear."""

    def __str__(self) -> str:
        names = (f"{name}={self.layouts[name]}" if name in self.layouts else name for name in self.tensors)
        return f"{','.join(names)}:{self.parts}"


def read_splits(texts: Sequence[str]) -> tuple[BatchSplit, ...]:
    """The cuts that a recipe's `split` makes, in the order of the graph: `TENSOR[=LAYOUT][,…]:PARTS`.

    Raises:
        UsageError: one is not of that form, or no part of the graph runs on a part of the batch.
    """
    splits = tuple(map(_read, texts))
    if splits and all(one.parts == 1 for one in splits):
        raise UsageError(
            f"--split {splits[0]}: every engine would run the whole batch",
            "give at least 2 parts, or omit it",
        )
    names = [name for one in splits for name in one.tensors]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--split: tensor {name!r} is given twice", "give each tensor once")
    return splits


def _read(text: str) -> BatchSplit:
    before, _, parts = text.rpartition(":")
    names, layouts = [], {}
    for given in before.split(","):
        name, equals, layout = given.rpartition("=")
        if equals and layout not in VECTORS:
            raise UsageError(
                f"--split {text}: unknown layout {layout!r}", f"choose among {', '.join(VECTORS)}, or omit it"
            )
        names.append(name if equals else given)
        if equals:
            layouts[name] = layout
    if not all(names) or not (parts.isascii() and parts.isdecimal()):
        raise UsageError(f"--split {text!r}: expected TENSOR[=LAYOUT][,TENSOR…]:PARTS", _EXAMPLE)
    if not 1 <= int(parts) <= MAX_PARTS:
        raise UsageError(f"--split {text}: {parts} parts: out of range", f"choose 1 to {MAX_PARTS}")
    return BatchSplit(tensors=tuple(names), parts=int(parts), layouts=layouts)
