"""Whether two graphs are the same function: both run on ONNX Runtime, its own optimisations off.

The error of a floating-point output is the largest absolute difference over the reference's largest finite
magnitude; NaN and infinities must stand in the same places. Bit-exact rules are held to equality.
Differences within the rounding of a Sigmoid count as none: next to 1e-6 they are large, next to 1 small.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from trtopt.data.feeds import Feed
from trtopt.device.ort.reference import CannotLoad, Unoptimised
from trtopt.errors import ModelError
from trtopt.onnxio.element_types import gaps
from trtopt.onnxio.graph_walk import OWN_DOMAINS, name_of, parts_of
from trtopt.onnxio.half_emulation import is_low
from trtopt.onnxio.model_file import ModelFile, runnable
from trtopt.printable import counted, some_of
from trtopt.rewrite.rewrite_trace import Deviation
from trtopt.rewrite.rule import Exactness

Array = np.ndarray[Any, Any]
_BOUNDS = {"float64": 1e-10, "float32": 1e-4, "float16": 2e-2, "other": 1e-2}
_UNIT_OPS = ("Sigmoid", "HardSigmoid")
"""Operators whose results, 0 to 1, carry the rounding of sums near 1 however small they are."""
_MOVES_VALUES = ("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice")
_UNIT_ROUNDINGS = 2


class Unrunnable(ModelError):
    """The model, as its author made it, does not run on ONNX Runtime."""


def bound(kind: Exactness, dtype: Any, half: bool = False) -> float:
    """How far an output of `dtype` may move under rules of a class; 0 requires equality.

    In a graph with FP16 (`half`) even bit-exact rules get FP16's rounding: ONNX Runtime's CPU kernels compute
    runs of FP16 nodes in FP32, and where such a run ends depends on nodes that do nothing.
    """
    own = _BOUNDS.get(np.dtype(dtype).name)
    if half:
        return max(_BOUNDS["float16"], own or 0.0)
    if kind == "B":
        return 0.0
    return _BOUNDS["other"] if own is None else own


def error_between(reference: Array, other: Array, noise: float = 0.0) -> float:
    """How far `other` lies from `reference`; infinite if shapes, types or non-finite places differ.

    Absolute differences up to `noise` count as none.
    """
    if reference.shape != other.shape or reference.dtype != other.dtype:
        return float("inf")
    if reference.size == 0:
        return 0.0
    if reference.dtype.kind not in "fV":
        return float(np.mean(reference != other))
    first, second = reference.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(first)
    if (
        not np.array_equal(first[~finite], second[~finite], equal_nan=True)
        or not np.isfinite(second[finite]).all()
    ):
        return float("inf")
    if not finite.any():
        return 0.0
    gap = gaps(first[finite], second[finite]).max()
    tiny = np.finfo(np.float64 if reference.dtype == np.float64 else np.float32).tiny
    return float(gap / max(np.abs(first[finite]).max(), tiny)) if gap > noise else 0.0


def _unit_outputs(graph: onnx.GraphProto) -> set[str]:
    """The outputs that hold what an operator of `_UNIT_OPS` computes, moved at most."""
    makers = {name: node for node in graph.node for name in node.output}
    found = set()
    for item in graph.output:
        node = makers.get(item.name)
        while node is not None and node.op_type in _MOVES_VALUES:
            node = makers.get(node.input[0])
        if node is not None and node.op_type in _UNIT_OPS:
            found.add(item.name)
    return found


def check_outputs(model: onnx.ModelProto) -> None:
    """Outputs are compared as arrays, so each must be a tensor."""
    for item in model.graph.output:
        kind = item.type.WhichOneof("value")
        if kind not in (None, "tensor_type"):
            raise ModelError(
                f"output {item.name!r} is no tensor but a {kind.removesuffix('_type')}, which the proof "
                "cannot compare",
                "skip the check with --no-check",
            )


def run(model: ModelFile, feeds: Sequence[Feed]) -> list[dict[str, Array]]:
    """The outputs of `model` for each feed, on the CPU, unoptimised, weights shared with their file."""
    try:
        session = Unoptimised(*runnable(model))
        return [session.run(feed.values) for feed in feeds]
    except ModelError as error:
        helps = error.remedy if isinstance(error, CannotLoad) else "give fitting inputs with --data"
        raise Unrunnable(error.problem, f"{helps}, or skip the check with --no-check") from None


def compare(
    reference: Sequence[dict[str, Array]],
    model: ModelFile,
    feeds: Sequence[Feed],
    kind: Exactness,
    *,
    emulated: bool = False,
) -> tuple[Deviation, ...]:
    """How far each output of `model` lies from `reference`, held to the bound of rules of class `kind`.

    `emulated`: both have their 16-bit arithmetic emulated, so that bit-exact rules are held to equality.
    """
    try:
        results = run(model, feeds)
    except Unrunnable:
        results = [{} for _ in feeds]
    half = is_low(model.proto) and not (emulated and kind == "B")
    unit = _unit_outputs(model.proto.graph) if kind != "B" else set()
    found = []
    for feed, wanted, got in zip(feeds, reference, results, strict=True):
        for name, value in wanted.items():
            noise = _UNIT_ROUNDINGS * float(np.finfo(np.float32).eps) if name in unit else 0.0
            error = error_between(value, got[name], noise) if name in got else float("inf")
            limit = bound(kind, value.dtype, half)
            found.append(Deviation(output=name, feed=feed.name, rules=kind, error=error, bound=limit))
    return tuple(found)


# ── which branches of Ifs a check has run: of what no input reaches, equal outputs say nothing ────────────


_WATCHED = "trtopt.condition."
_NAMED = 3
_REMEDY = "`trtopt rewrite --data` checks it on samples that reach it"


def notes_on_branches(model: ModelFile, inputs: Sequence[Feed]) -> list[str]:
    """A note on every If of the graph of which `inputs` take one branch alone, and on Ifs inside subgraphs.

    The first few are named. A model without Ifs is not run.
    """
    main, *inner = (
        [node for node in part.node if node.op_type == "If" and node.domain in OWN_DOMAINS]
        for part in parts_of(model.proto)
    )
    notes = []
    if main:
        missed = [
            f"the {'else' if taken else 'then'} branch of If {name_of(node)!r}"
            for node, (taken, *others) in zip(main, _find_taken(model, main, inputs), strict=True)
            if not others
        ]
        if missed:
            notes.append(f"the check did not run {some_of(missed, _NAMED)}: {_REMEDY}")
    if nested := sum(map(len, inner)):
        notes.append(f"which branches the check ran of {counted(nested, 'If')} inside subgraphs is not known")
    return notes


def _find_taken(model: ModelFile, ifs: Sequence[onnx.NodeProto], inputs: Sequence[Feed]) -> list[set[bool]]:
    """The conditions that each If had: one value or both."""
    watched = deepcopy(model.proto)
    names = [f"{_WATCHED}{number}" for number in range(len(ifs))]
    for node, name in zip(ifs, names, strict=True):
        watched.graph.node.append(onnx.helper.make_node("Identity", [node.input[0]], [name]))
        watched.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.BOOL, None))
    runs = run(replace(model, proto=watched), inputs)
    return [{bool(np.any(run[name])) for run in runs} for name in names]
