"""Advice where no rewrite is safe: what in a graph will be slow or odd on TensorRT, why, what would help."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtopt.onnxio import model_file, prepare
from trtopt.onnxio.graph_walk import REDUCTIONS, SIZING_OPERANDS, opset_of
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.shape_inference import schema_of
from trtopt.printable import counted
from trtopt.records import Record
from trtopt.records.base import Result
from trtopt.rewrite import driver
from trtopt.rewrite.match import axes_of
from trtopt.rewrite.rules.composed import BETTER_PLAIN, layer_norm
from trtopt.rewrite.scope import STANDARD, Scope
from trtopt.targets import HEAD_SIZES, INTEGER_ARITHMETIC, Target, target_named


class Advice(Record, frozen=True, kw_only=True):
    """One finding: at which node, why it matters, what it costs, what would help."""

    check: str
    node: str
    op: str
    reason: str
    effect: str
    remedy: str


class LintReport(Result, Record, frozen=True, kw_only=True):
    """All findings for a model and a target."""

    schema: str = "trtopt.lint/1"
    source: str
    target: str
    opset: int
    nodes: int
    advice: tuple[Advice, ...]


@dataclass(frozen=True)
class Finding:
    """Where a check found something, and why it matters.

    `remedy` is this finding's own, where the check's is too general.
    """

    node: Any
    reason: str
    remedy: str = ""


@dataclass(frozen=True)
class Check:
    """One question put to every graph of a model; its effect is the same for all findings."""

    name: str
    effect: str
    remedy: str
    find: Callable[[Scope], Iterator[Finding]]


def check(effect: str, remedy: str) -> Callable[[Callable[[Scope], Iterator[Finding]]], Check]:
    """Make a check of a function, called like that."""
    return lambda find: Check(find.__name__.strip("_").replace("_", "-"), effect, remedy, find)


# ── shapes: alignment, axes, sizes ────────────────────────────────────────────────────────────────────────

_LARGE_K = 3840


def _unit_of(scope: Scope, node: Any) -> int:
    """How many values a Tensor Core takes at a time: 32 behind a DequantizeLinear, else 8."""
    return 32 if any(scope.producer(tensor, "DequantizeLinear") for tensor in node.inputs[:2]) else 8


def _weight(scope: Scope, node: Any) -> Any | None:
    """The weight of the node, also behind Q and DQ."""
    tensor = node.inputs[1]
    for op in ("DequantizeLinear", "QuantizeLinear"):
        maker = scope.producer(tensor, op)
        tensor = maker.inputs[0] if maker is not None else tensor
    return tensor if scope.is_constant(tensor) else None


@check("Tensor Core kernels need padding, or are not used at all", "widen the layer")
def _odd_channels(scope: Scope) -> Iterator[Finding]:
    for node in scope.nodes("Conv"):
        weight, unit = _weight(scope, node), _unit_of(scope, node)
        if weight is None or node.attrs.get("group", 1) != 1:
            continue
        first = scope.producer(node.inputs[0]) is None
        sizes = {"output channels": weight.shape[0], **({} if first else {"input channels": weight.shape[1]})}
        for kind, size in sizes.items():
            if size % unit:
                yield Finding(node, f"{size} {kind} are not a multiple of {unit}")


@check(
    "Tensor Core kernels need padding, or are not used at all",
    "pad the vocabulary, classes or hidden size in the model",
)
def _odd_product(scope: Scope) -> Iterator[Finding]:
    for node in scope.nodes("MatMul", "Gemm"):
        weight, unit = _weight(scope, node), _unit_of(scope, node)
        if weight is None or len(weight.shape) < 2:
            continue
        k, n = weight.shape[-2:][::-1] if node.attrs.get("transB", 0) else weight.shape[-2:]
        for kind, size in (("K", k), ("N", n)):
            if size > 1 and size % unit:
                yield Finding(node, f"{kind} = {size} is not a multiple of {unit}")


@check("a copy, and no fusion across it", "join along channels in the model")
def _batch_concat(scope: Scope) -> Iterator[Finding]:
    for node in scope.nodes("Concat"):
        rank = scope.rank(node.outputs[0])
        if len(node.inputs) > 1 and rank is not None and rank > 1 and node.attrs["axis"] % rank == 0:
            yield Finding(node, f"it joins {len(node.inputs)} tensors along axis 0")


@check(
    "a strided Gather, slower than one along axis 0",
    "gather along axis 0, or use Slice or Split where the indices are a run",
)
def _inner_gather(scope: Scope) -> Iterator[Finding]:
    for node in scope.nodes("Gather"):
        axis = node.attrs.get("axis", 0) % (scope.rank(node.inputs[0]) or 1)
        if axis and not scope.is_constant(node.inputs[0]) and not scope.producer(node.inputs[0], "Shape"):
            yield Finding(node, f"it gathers along axis {axis} of a computed tensor")


@check(
    "slower than a reduction of the last axes; may need a transpose",
    "lay the reduced axes last in the model",
)
def _leading_reduction(scope: Scope) -> Iterator[Finding]:
    for node in scope.nodes(*REDUCTIONS):
        axes, rank = axes_of(scope, node), scope.rank(node.inputs[0])
        if axes and rank is not None and axes != list(range(rank - len(axes), rank)):
            yield Finding(node, f"it reduces axes {axes} of {rank}, which are not the last")


@check("a slow sort, or a build that fails", "lower K, or select in two steps")
def _topk(scope: Scope) -> Iterator[Finding]:
    for node in scope.nodes("TopK"):
        count = scope.scalar(node.inputs[1]) if len(node.inputs) > 1 else node.attrs.get("k")
        if count is None:
            yield Finding(node, "K is computed")
        elif count > _LARGE_K:
            yield Finding(node, f"K = {count:.0f} exceeds {_LARGE_K}")


# ── operators whose output's size depends on data, and their static forms ──────────────────────────────────

_MASK = "use a mask with Where"
_FORMS = {
    "NonZero": f"{_MASK}: 0.008 ms instead of 0.064 on TensorRT 8.6, for half of 8,192 rows of 4",
    "Compress": _MASK,
    "NonMaxSuppression": "use the plugin EfficientNMS_TRT, which returns a fixed number of boxes and a "
    "count: 0.407 ms instead of 0.486 on TensorRT 8.6, for 1,000 crowded boxes of one class",
    "TopK": "use a constant K",
}
"""Of other operators a size that is a constant. Times: one H200 (benchmarks/kernels/results); only static
forms ran as a CUDA graph."""


@check(
    "no CUDA graph; the host waits within each inference; where an output has it, no batch is shared",
    "use a size that is a constant",
)
def _data_dependent_size(scope: Scope) -> Iterator[Finding]:
    """Nodes whose output's size is decided by what is computed from the inputs' values."""
    for node in scope.nodes(*SIZING_OPERANDS):
        operands = [node.inputs[place] for place in SIZING_OPERANDS[node.op] if place < len(node.inputs)]
        if any(not item.is_empty() and _is_of_values(scope, item) for item in operands):
            reason = f"the size of what {node.op} makes depends on the data"
            yield Finding(node, reason, _FORMS.get(node.op, ""))


def _is_of_values(scope: Scope, tensor: Any) -> bool:
    """Whether a tensor is computed from the values of an input, not only from shapes and constants."""
    waiting, seen = [tensor], set()
    while waiting:
        item = waiting.pop()
        if item.name in seen or item.is_empty() or scope.is_constant(item):
            continue
        seen.add(item.name)
        maker = scope.producer(item)
        if maker is None:
            return True
        if maker.op not in ("Shape", "Size", "Constant"):
            waiting += maker.inputs
    return False


# ── structure: control flow, operators that are not read, types, attention that does not fuse ───────────────


@check(
    "no fusion across its edges, no CUDA graph where a condition is read by the host",
    "unroll it or take the decision outside the model",
)
def _control_flow(scope: Scope) -> Iterator[Finding]:
    for node in scope.nodes("Loop", "If", "Scan"):
        yield Finding(node, f"{node.op} runs its body as a separate graph")


def _form(op: str, opset: int) -> Any:
    """How many inputs and outputs an operator has, its attributes and their defaults; None if it is newer."""
    schema = schema_of(op, opset)
    if schema is None:
        return None
    defaults = {name: item.default_value.SerializeToString() for name, item in schema.attributes.items()}
    return schema.min_input, schema.max_input, schema.min_output, schema.max_output, defaults


@check(
    "the build fails unless a plugin has it",
    "give the plugin with --plugin, or export with standard operators of an opset that the target reads",
)
def _foreign_operator(scope: Scope) -> Iterator[Finding]:
    for node in scope.nodes():
        if node.domain not in STANDARD:
            yield Finding(node, f"{node.domain}::{node.op} is not a standard operator")
        elif schema_of(node.op, scope.opset) is None:
            yield Finding(node, f"{node.op} is unknown to opset {scope.opset}")
        elif scope.target.operator_opset < scope.opset and (
            _form(node.op, scope.opset) != _form(node.op, scope.target.operator_opset)
        ):
            yield Finding(node, f"this form of {node.op} is newer than TensorRT {scope.target.name}'s parser")


@check(
    "the build fails",
    "take the float model that this one was quantised from, and quantise it with `trtopt quantize`",
)
def _integer_arithmetic(scope: Scope) -> Iterator[Finding]:
    for node in scope.nodes(*sorted(INTEGER_ARITHMETIC)):
        yield Finding(node, f"{node.op} is not imported by TensorRT, which takes Q/DQ around float operators")


@check(
    "the build fails",
    "quantise the float model that it was made from with `trtopt quantize`, or export symmetric INT8",
)
def _zero_point(scope: Scope) -> Iterator[Finding]:
    for node in scope.nodes("DequantizeLinear"):
        zero = scope.value(node.inputs[2]) if len(node.inputs) > 2 else None
        if zero is not None and np.any(zero != 0):
            yield Finding(node, "its zero point is not 0")


@check(
    "twice or four times the bytes copied to the device, and a cast that could be spared",
    "let the input have the type that the network uses",
)
def _cast_input(scope: Scope) -> Iterator[Finding]:
    for tensor in scope.graph.inputs:
        users = list(tensor.outputs)
        if not users or any(user.op not in ("Cast", "QuantizeLinear") for user in users):
            continue
        if scope.dtype(tensor) == np.float32:
            operators = " and ".join(sorted({user.op for user in users}))
            yield Finding(users[0], f"input {tensor.name!r} is FP32 and goes straight into {operators}")


def _scores_of(scope: Scope, node: Any) -> Any | None:
    """The first product of the attention that a Softmax is part of."""
    tensor = node.inputs[0]
    for _ in range(4):
        maker = scope.producer(tensor, "Add", "Mul", "Div", "Where", "Cast", "MatMul")
        if maker is None or maker.op == "MatMul":
            return maker
        tensor = maker.inputs[1 if maker.op == "Where" else 0]
    return None


@check(
    "separate kernels, and scores written to memory",
    "keep the pattern MatMul, scale, mask Add, Softmax, MatMul with a head size in range",
)
def _attention(scope: Scope) -> Iterator[Finding]:
    for node in scope.nodes("Softmax"):
        scores = _scores_of(scope, node)
        if scores is None or any(scope.is_constant(tensor) for tensor in scores.inputs):
            continue
        query, rank = scores.inputs[0], scope.rank(scores.inputs[0])
        head = query.shape[-1] if query.shape else None
        if rank is not None and rank not in (3, 4):
            yield Finding(node, f"the operands of attention have rank {rank}, not 3 or 4")
        elif isinstance(head, int) and head not in HEAD_SIZES:
            yield Finding(node, f"head size {head} is not 16 to 256 and a multiple of 8")
        elif scope.only_use(scores.outputs[0]) is None:
            yield Finding(node, "the scores are used elsewhere too")
        elif scope.only_use(node.outputs[0]) is None:
            yield Finding(node, "the attention weights are used elsewhere too")


@check(
    "kernels for single steps unless the builder knows the pattern; moments in FP16 where x is",
    "export at opset 17 for LayerNormalization; compute the moments in FP32",
)
def _plain_normalisation(scope: Scope) -> Iterator[Finding]:
    for match in layer_norm.find(scope):
        if isinstance(match.verdict, str) and match.verdict != BETTER_PLAIN:
            why = f"a normalisation written out, which {layer_norm.name} declines: {match.verdict}"
            yield Finding(match.node, why)


# ── all checks, and a model file ──────────────────────────────────────────────────────────────────────────

CHECKS = tuple(one for one in vars().values() if isinstance(one, Check))
"""In the order in which they are written."""
UNBUILDABLE = frozenset((_foreign_operator.name, _integer_arithmetic.name))
"""The checks whose findings no build survives."""


def lint_model(source: Path, *, target: str) -> LintReport:
    """Look for what will be slow or odd on the TensorRT `target`; nothing is run or written."""
    aim = target_named(target)
    model = prepare.prepare(model_file.load(source))
    return LintReport(
        source=str(source),
        target=aim.name,
        opset=opset_of(model.proto),
        nodes=prepare.count_nodes(model.proto),
        advice=tuple(find_advice(model, aim)),
    )


def find_advice(model: ModelFile, target: Target) -> Iterator[Advice]:
    """The findings in a prepared model."""
    for scope in driver.scopes_of(model, target):
        for check in CHECKS:
            for finding in check.find(scope):
                yield Advice(
                    check=check.name,
                    node=finding.node.name,
                    op=finding.node.op,
                    reason=finding.reason,
                    effect=check.effect,
                    remedy=finding.remedy or check.remedy,
                )


def finding_lines(report: LintReport, most: int | None = None) -> Iterator[str]:
    """The findings, by check; of each `most`, or all."""
    yield f"{counted(len(report.advice), 'finding')} in {report.nodes} nodes for TensorRT {report.target}"
    for check in CHECKS:
        matching = [item for item in report.advice if item.check == check.name]
        if matching:
            yield from (f"{check.name}: {check.effect}", f"  → {check.remedy}")
            for item in matching[:most]:
                yield f"    {item.node}: {item.reason}"
                if item.remedy != check.remedy:
                    yield f"      → {item.remedy}"
            if most is not None and (hidden := len(matching[most:])):
                yield f"    and {hidden} more: -v lists them"
