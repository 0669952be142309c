"""The rules in their order, again and again until none applies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import onnx
import onnx_graphsurgeon as gs

from trtopt.errors import ModelError, TrtoptError, UnsupportedOpError
from trtopt.onnxio import prepare, shape_inference
from trtopt.onnxio.graph_walk import graphs_of, names_in, opset_of, refill
from trtopt.onnxio.model_file import ModelFile, is_external
from trtopt.onnxio.shape_inference import check
from trtopt.rewrite.rewrite_trace import Applied, Declined
from trtopt.rewrite.rule import Rule
from trtopt.rewrite.scope import Context, Scope
from trtopt.targets import Target

ROUND_LIMIT = 20


class RuleFailed(TrtoptError):
    """A rule raised: a mistake of the rule's, not of the model's."""

    def __init__(self, rule: str, node: str, cause: Exception) -> None:
        super().__init__(
            f"rule {rule!r} failed at {node!r}: {type(cause).__name__}: {cause}",
            f"leave it out with --skip {rule}; please report the model",
        )
        self.rule = rule
        self.node = node


@dataclass(frozen=True)
class Outcome:
    """A rewritten model and how it came about; `converged` is False if the bound on rounds ended it."""

    model: ModelFile
    applied: tuple[Applied, ...]
    declined: tuple[Declined, ...]
    rounds: int
    converged: bool


def _scopes(graph: Any, context: Context) -> list[Scope]:
    """The main graph and all its subgraphs, inner ones last."""
    found = [Scope(graph, context)]
    for node in graph.nodes:
        for inner in node.subgraphs():
            found += _scopes(inner, context)
    return found


def _hoist_outer_weights(graph: onnx.GraphProto, base: onnx.GraphProto) -> None:
    """Leave each weight of the main graph there; exporting puts a copy into every subgraph that reads it.

    Weights kept in files must be there too: a file's reader looks for them nowhere else.
    """
    outer = {item.name for item in base.initializer}
    outer |= {item.name for inner in graphs_of(graph) for item in inner.initializer if is_external(item)}
    held = {item.name for item in graph.initializer}
    for inner in list(graphs_of(graph))[1:]:
        own = [item for item in inner.initializer if item.name not in outer and item.name not in held]
        missing = [item for item in inner.initializer if item.name in outer - held]
        graph.initializer.extend(missing)
        held |= {item.name for item in missing}
        if len(own) < len(inner.initializer):
            refill(inner.initializer, own)


def _find_declared(graph: onnx.GraphProto) -> dict[str, onnx.ValueInfoProto]:
    """The declared types of inner tensors, but for names that sibling graphs share."""
    declared = [item for inner in graphs_of(graph) for item in inner.value_info]
    counts = Counter(item.name for item in declared)
    return {item.name: item for item in declared if counts[item.name] == 1}


def _places(graph: onnx.GraphProto) -> dict[tuple[str, str], onnx.GraphProto]:
    """The graph and its subgraphs, by the node and the attribute that hold them."""
    held = [(node, item) for inner in graphs_of(graph) for node in inner.node for item in node.attribute]
    return {("", ""): graph, **{(node.name, item.name): item.g for node, item in held if item.HasField("g")}}


def _keep_remarks(graph: onnx.GraphProto, base: onnx.GraphProto) -> None:
    """Restore the metadata and doc strings of `base`, which onnx-graphsurgeon drops.

    A node that took over the name of a node with another operator gets none.
    """
    originals = {node.name: node for inner in graphs_of(base) for node in inner.node}
    for inner in graphs_of(graph):
        for node in inner.node:
            old = originals.get(node.name)
            if old is not None and (old.domain, old.op_type) == (node.domain, node.op_type):
                node.metadata_props.extend(old.metadata_props)
                if old.doc_string:
                    node.doc_string = old.doc_string
    before = _places(base)
    for place, inner in _places(graph).items():
        if place in before:
            inner.metadata_props.extend(before[place].metadata_props)


def _export(graph: Any, base: onnx.ModelProto) -> onnx.ModelProto:
    """The graph as a model that keeps all of `base` besides its nodes, and its declared shapes."""
    try:
        exported = gs.export_onnx(graph, do_type_check=False)
    except Exception as error:  # noqa: BLE001  (whatever its code meets)
        raise ModelError(
            f"onnx-graphsurgeon cannot write the graph: {error}",
            "use the model without rewriting: an optional among its tensors cannot be written, for one",
        ) from None
    model = onnx.ModelProto()
    for item in base.metadata_props:
        model.metadata_props.add(key=item.key, value=item.value)
    for name in ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string"):
        setattr(model, name, getattr(base, name))
    imported = {item.domain for item in base.opset_import}
    model.opset_import.extend(base.opset_import)
    model.opset_import.extend(item for item in exported.opset_import if item.domain not in imported)
    model.graph.CopyFrom(exported.graph)
    _hoist_outer_weights(model.graph, base.graph)
    _keep_remarks(model.graph, base.graph)
    declared = _find_declared(base.graph)
    for inner in graphs_of(model.graph):
        kept = [declared[item.name] for item in inner.value_info if item.name in declared]
        refill(inner.value_info, kept)
    signature = {item.name: item for inner in graphs_of(base.graph) for item in inner.output}
    signature |= {item.name: item for item in (*base.graph.input, *base.graph.output)}
    for run in (model.graph.input, *(inner.output for inner in graphs_of(model.graph))):
        for item in run:
            if item.name in signature:
                item.CopyFrom(signature[item.name])
    prepare.sort_nodes(model.graph)
    return model


def _with_shapes(model: onnx.ModelProto) -> Any:
    """The model as an editable graph whose tensors have every type and shape that inference finds."""
    known = shape_inference.inferred(model)
    full = deepcopy(model)
    named = {item.name: item for item in known.graph.input}
    for item in full.graph.input:
        item.CopyFrom(named[item.name])
    for own, inferred in zip(graphs_of(full.graph), graphs_of(known.graph), strict=True):
        refill(own.value_info, inferred.value_info)
        for item, found in zip(own.output, inferred.output, strict=True):
            if not item.type.tensor_type.HasField("shape"):  # as branches' outputs often are
                item.CopyFrom(found)
    try:
        return gs.import_onnx(full)
    except UnicodeDecodeError as error:  # onnx-graphsurgeon takes every string for text
        raise UnsupportedOpError(
            f"a node's attribute holds {error.object[:8]!r}…, which is no text and would be lost",
            "use the model without rewriting",
        ) from None


def _sweep(rule: Rule, scope: Scope) -> tuple[list[Applied], list[Declined]]:
    """One pass of one rule over one graph."""
    applied: list[Applied] = []
    declined: list[Declined] = []
    scope.at = "the search"
    try:
        for match in rule.find(scope):
            scope.at = name = match.node.name
            if isinstance(match.verdict, str):
                declined.append(Declined(rule=rule.name, node=name, reason=match.verdict))
            else:
                match.verdict()
                applied.append(Applied(rule=rule.name, node=name))
    except Exception as error:
        if isinstance(error, TrtoptError):
            raise
        raise RuleFailed(rule.name, scope.at, error) from error
    if applied:
        scope.sweep()
    return applied, declined


def _open(model: ModelFile, target: Target) -> Context:
    gs.logger.G_LOGGER.severity = gs.logger.G_LOGGER.CRITICAL  # it reports on its own folding, not on ours
    parts = list(graphs_of(model.proto.graph))
    taken = names_in(model.proto.graph) | {node.name for part in parts for node in part.node}
    fixed = {item.name for part in parts for item in part.output}
    return Context(target, opset_of(model.proto), model.folder, model.spool, taken, fixed)


def scopes_of(model: ModelFile, target: Target) -> list[Scope]:
    """The graphs of a prepared model, to look at: the main one, then those inside its nodes."""
    return _scopes(_with_shapes(model.proto), _open(model, target))


def rewrite(model: ModelFile, rules: Sequence[Rule], target: Target) -> Outcome:
    """Apply `rules`, in order, until none of them applies; `model` has been prepared and is not changed."""
    proto, context = model.proto, _open(model, target)
    applied: list[Applied] = []
    declined: list[Declined] = []
    rounds, changed = 0, True
    while changed and rounds < ROUND_LIMIT:
        rounds, changed, declined = rounds + 1, False, []
        graph = _with_shapes(proto)
        scopes = _scopes(graph, context)
        for rule in rules:
            before = len(applied)
            for scope in scopes:
                done, left = _sweep(rule, scope)
                applied += done
                declined += left
            if len(applied) > before:
                scopes, changed = _scopes(graph, context), True
        proto = _export(graph, model.proto) if changed or rounds == 1 else proto
    check(proto)
    return Outcome(replace(model, proto=proto), tuple(applied), tuple(declined), rounds, not changed)
