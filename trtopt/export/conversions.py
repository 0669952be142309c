"""Where tracing loses what Python does: tensors that become Python values, constants to a trace."""

from __future__ import annotations

import re
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

_SIZES = {"aten::size", "aten::numel", "aten::dim"}
"""Operators that take a tensor's size, and nothing of its values."""


@dataclass(frozen=True)
class Conversion:
    """A place, FILE:LINE, where a tensor became a Python value, `what` by kind."""

    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.place} (a tensor becomes {self.what})"


@contextmanager
def showing() -> Iterator[None]:
    """Let PyTorch warn of the module's conversions, as it does by default, while the block traces it."""
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("default", category=torch.jit.TracerWarning)
        torch.jit.TracerWarning.ignore_lib_warnings()
        yield


@contextmanager
def noticing(inputs: int) -> Iterator[list[Conversion]]:
    """Collect the conversions by which a trace may lose a branch, while the block traces a module.

    These are the values of the module's `inputs` that become Python values, and their sizes that become
    booleans. A size that becomes a number is none: other sizes are compared. PyTorch's own library is trusted
    with its branches, as PyTorch does it; its other warnings about the module's lines are shown as usual.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class Given(TorchFunctionMode):  # type: ignore[misc]
        """Knows which tensor is being converted: a warning does not."""

        tensor: object = None

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            before, self.tensor = self.tensor, args[0] if args else None
            try:
                return func(*args, **(kwargs or {}))
            finally:
                self.tensor = before

    found: list[Conversion] = []
    given = Given()

    def hear(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not issubclass(category, torch.jit.TracerWarning):
            show(message, category, filename, lineno, file, line)
            return
        frames = _frames()
        if not frames or _is_of_the_library(frames[-1].filename):
            return
        place = next(frame for frame in reversed(frames) if not _is_pytorchs(frame.filename))
        match = re.match(r"Converting a tensor to (an? .+?) might cause", str(message))
        if match is None:
            show(message, category, place.filename, place.lineno or 0, file, line)
            return
        made_of = _made_of(given.tensor, inputs)
        if "values" in made_of or ("sizes" in made_of and "boolean" in match[1]):
            conversion = Conversion(f"{place.filename}:{place.lineno}", match[1])
            found.extend([conversion] if conversion not in found else [])

    with warnings.catch_warnings():
        show = warnings.showwarning
        warnings.filterwarnings("always", category=torch.jit.TracerWarning)
        warnings.showwarning = hear
        with given:
            yield found


def _frames() -> list[traceback.FrameSummary]:
    """What is being called, innermost last, without this file's part in it and that of the warning."""
    return [
        frame
        for frame in traceback.extract_stack()
        if frame.filename != __file__ and Path(frame.filename).name not in {"warnings.py", "contextlib.py"}
    ]


def _is_pytorchs(filename: str) -> bool:
    return re.search(r"[/\\]torch[/\\]", filename) is not None


def _is_of_the_library(filename: str) -> bool:
    """Whether it is PyTorch's, and not the methods of tensors, which do what the module's line says."""
    return _is_pytorchs(filename) and Path(filename).name != "_tensor.py"


def _made_of(tensor: object, inputs: int) -> set[str]:
    """Of `values` and `sizes` of the module's inputs, what a traced tensor was computed from, if anything.

    A trace's first `inputs` parameters are the module's inputs, the others its weights.
    """
    import torch

    if not isinstance(tensor, torch.Tensor) or not torch.jit.is_tracing():
        return {"values"}  # for all that is known
    made_of: set[str] = set()
    waiting, seen = [torch._C._get_value_trace(tensor)], set()
    while waiting:
        value = waiting.pop()
        kind = value.node().kind()
        if kind == "prim::Param":
            made_of |= {"values"} if value.offset() < inputs else set()
        elif kind in _SIZES:
            made_of.add("sizes")
        elif value.node() not in seen:
            seen.add(value.node())
            waiting += value.node().inputs()
    return made_of
