"""A graph in ONNX's own text form, and what a rule makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import parser


@dataclass(frozen=True)
class Case:
    """A graph, the rule it is for, how often the rule applies, or why it declines."""

    rule: str
    name: str
    text: str
    count: int = 0
    reason: str = ""
    opset: int = 17
    target: str = "11"

    @property
    def id(self) -> str:
        return f"{self.rule}: {self.name}"


def weights_of(text: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Lines `# w: float[4,3]` in front of a graph declare weights."""
    found = {}
    for line in text.splitlines():
        if line.strip().startswith("# "):
            name, kind = line.strip()[2:].split(": ")
            element, axes = kind.rstrip("]").split("[")
            found[name] = (element, tuple(int(axis) for axis in axes.split(",") if axis))
    return found


def model(text: str, opset: int = 17, seed: int = 1) -> onnx.ModelProto:
    """The model that `text` describes, its declared weights filled in."""
    body = "\n".join(line for line in text.splitlines() if not line.strip().startswith("# "))
    header = f'<ir_version: {8 if opset < 21 else 10}, opset_import: ["" : {opset}]>\n'
    made = parser.parse_model(header + body.strip())
    rng = np.random.default_rng(seed)
    for name, (element, shape) in weights_of(text).items():
        dtype: Any = {"float": np.float32, "float16": np.float16, "int64": np.int64, "int8": np.int8}[element]
        values = (
            rng.standard_normal(shape) if dtype in (np.float32, np.float16) else rng.integers(0, 3, shape)
        )
        if name.startswith("v"):  # variances
            values = np.abs(values) + 0.5
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(values, dtype), name))
    return made


def case(rule: str, name: str, text: str, count: int = 1, **more: Any) -> Case:
    return Case(rule, name, text, count, **more)


def left(rule: str, name: str, text: str, reason: str, **more: Any) -> Case:
    return Case(rule, name, text, 0, reason, **more)
