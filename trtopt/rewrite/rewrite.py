"""Rewriting a model from file to file: prepare, apply, prove, write."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import msgspec
import onnx

from trtopt.data import feeds
from trtopt.errors import ModelError, UsageError
from trtopt.files.atomic import scratch_beside
from trtopt.onnxio import model_file, prepare
from trtopt.onnxio.disk_space import Note, check_output_room, silent
from trtopt.onnxio.external_data import size_in_bytes
from trtopt.onnxio.graph_walk import graphs_of, opset_of
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.shape_inference import declare_outputs, fix_inputs
from trtopt.onnxio.weights import weight_alarms
from trtopt.printable import some_of
from trtopt.records.tensors import NO_REQUEST, IoRequest
from trtopt.rewrite import equivalence
from trtopt.rewrite.driver import Outcome, RuleFailed, rewrite
from trtopt.rewrite.dynamic_batch import make_dynamic, prove
from trtopt.rewrite.equivalence import notes_on_branches
from trtopt.rewrite.rewrite_trace import Deviation, RewriteTrace, Undone
from trtopt.rewrite.rule import Exactness, Rule
from trtopt.rewrite.rules import RULES
from trtopt.rewrite.rules.cleaning import cast_like, drop_unused, erase_identity, inline_if, zero_state
from trtopt.rewrite.rules.folding import fold_constants, fold_shapes, growing_weights
from trtopt.rewrite.typed_io.requested import check_formats
from trtopt.rewrite.typed_io.typed_graph import describe, move_quantization, type_graph
from trtopt.targets import Target, target_named

_NAMED = 3
NO_SHAPES: Mapping[str, Sequence[int | None]] = MappingProxyType({})
_SHAPES = (cast_like, inline_if, erase_identity, drop_unused, zero_state, fold_shapes, fold_constants)
"""What makes constants of all that is computed of shapes and of constants, rids LSTMs of zeros as long as the
batch, and MaxPools of indices that nothing reads."""


def select(
    names: Sequence[str] | None,
    skip: Sequence[str],
    target: Target,
    add: Sequence[str] = (),
    *,
    clean: bool = False,
) -> tuple[Rule, ...]:
    """The rules called `names` (None: what builds and quantising apply) and those in `add`, less `skip`.

    With `clean` also all others that suit the target.
    """
    if names is not None and not (*names, *add):
        raise UsageError("no rules are named to be used", "name some, or omit --rules for the default ones")
    known = {rule.name for rule in RULES}
    for name in (*(names or ()), *add, *skip):
        if name not in known:
            raise UsageError(f"there is no rule {name!r}", "see `trtopt rewrite --list` for their names")
    chosen = {rule.name for rule in RULES if rule.quantizes(target.name)} if names is None else {*names}
    if clean:
        chosen |= {rule.name for rule in RULES if target.name in rule.targets}
    return tuple(rule for rule in RULES if rule.name in chosen.union(add).difference(skip))


def _rewrite(
    model: ModelFile, rules: Sequence[Rule], target: Target
) -> tuple[Outcome, list[Rule], list[Undone]]:
    """Rewrite, once more without any rule that raises; also those that are left."""
    left = list(rules)
    undone: list[Undone] = []
    while True:
        try:
            return rewrite(model, left, target), left, undone
        except RuleFailed as failure:
            left = [rule for rule in left if rule.name != failure.rule]
            undone.append(Undone(rule=failure.rule, reason=failure.problem, nodes=(failure.node,)))


class _Proof:
    """Runs rewritten models against the original's outputs, which it computes once, when first needed."""

    def __init__(self, model: ModelFile, data: str | Path | None, sizes: int) -> None:
        feeds.inputs_of(model.proto)  # an input that is no tensor is refused at once
        self._model, self._sizes = model, sizes
        self._real = [] if data is None else [feeds.from_data(data, model.proto)]
        self._inputs: Sequence[feeds.Feed] = ()
        self._reference: list[dict[str, equivalence.Array]] = []

    def notes(self, outcome: Outcome) -> list[str]:
        """Limits of the check of `outcome`: what was not run of it, or on which inputs."""
        if not self._reference:
            return ["no rule was applied, so nothing was run: whether the model runs at all is not known"]
        if self._inputs == (*self._real,):
            limits = [f"checked on {self._real[0].name} alone: the model runs on no random input"]
        else:
            limits = [
                f"checked where {axes} without a name are equally long: on others the model did not run"
                for kind, axes in (("batch", "first axes"), ("all", "axes"))
                if any(feed.alike == kind for feed in self._inputs)
            ]
        return [*limits, *notes_on_branches(outcome.model, self._inputs)]

    def of(self, outcome: Outcome, kind: Exactness) -> tuple[Deviation, ...]:
        if not self._reference:
            self.run_original()
        return equivalence.compare(self._reference, outcome.model, self._inputs, kind)

    def run_original(self) -> None:
        """Compute what results are held to."""

        def run(seeded: Sequence[feeds.Feed]) -> None:
            self._inputs = (*seeded[: self._sizes], *self._real)
            self._reference = equivalence.run(self._model, self._inputs)

        feeds.on_seeded(self._model.proto, run, one_batch=False, spared=bool(self._real))


def _prove(
    proof: _Proof, outcome: Outcome, model: ModelFile, rules: Sequence[Rule], target: Target
) -> tuple[Deviation, ...]:
    """Check what `rules` made of the model: the bit-exact ones on their own first, then all together."""
    applied = {item.rule for item in outcome.applied}
    used = {rule.exactness for rule in rules if rule.name in applied}
    exact = [rule for rule in rules if rule.exactness == "B"]
    first = proof.of(rewrite(model, exact, target), "B") if used == {"B", "N"} else ()
    return (*first, *(proof.of(outcome, "N" if "N" in used else "B") if used else ()))


def _culprit(proof: _Proof, model: ModelFile, rules: Sequence[Rule], target: Target) -> Rule:
    """The last rule of the shortest leading run of `rules` that breaks its bound, found by bisection."""
    low, high = 0, len(rules)  # the first `low` rules hold, the first `high` do not
    while high - low > 1:
        middle = (low + high) // 2
        outcome = rewrite(model, rules[:middle], target)
        checked = _prove(proof, outcome, model, rules[:middle], target)
        low, high = (middle, high) if all(item.ok for item in checked) else (low, middle)
    return rules[high - 1]


def _rewrite_and_prove(
    model: ModelFile, rules: Sequence[Rule], target: Target, proof: _Proof | None
) -> tuple[Outcome, list[Undone], tuple[Deviation, ...]]:
    """Rewrite, and take back whole each rule that raises or that the proof finds guilty, until it holds."""
    outcome, left, undone = _rewrite(model, rules, target)
    if proof is None:
        return outcome, undone, ()
    checked = _prove(proof, outcome, model, left, target)
    while not all(item.ok for item in checked):
        used = {item.rule for item in outcome.applied}
        worst = max((item for item in checked if not item.ok), key=lambda item: item.error)
        suspects = [rule for rule in left if rule.name in used]
        guilty = _culprit(proof, model, suspects, target)
        beyond = f"{worst.error:.3g}, beyond its bound {worst.bound:.3g}"
        reason = f"output {worst.output!r} moved by {beyond} ({worst.feed})"
        nodes = tuple(item.node for item in outcome.applied if item.rule == guilty.name)
        undone.append(Undone(rule=guilty.name, reason=reason, nodes=nodes))
        left = [rule for rule in left if rule.name != guilty.name]
        outcome = rewrite(model, left, target)
        checked = _prove(proof, outcome, model, left, target)
    return outcome, undone, checked


def rewrite_model(
    source: Path,
    out: Path,
    *,
    target: str,
    rules: Sequence[str] | None = None,
    add: Sequence[str] = (),
    skip: Sequence[str] = (),
    clean: bool = False,
    check: bool = True,
    data: str | Path | None = None,
    dynamic_batch: bool = False,
    shapes: Mapping[str, Sequence[int | None]] = NO_SHAPES,
    io: IoRequest = NO_REQUEST,
    sizes: int = 2,
    write_unchanged: bool = True,
    accept: Callable[[RewriteTrace], object] = lambda trace: None,
    note: Note = silent,
) -> RewriteTrace:
    """Rewrite the ONNX file `source` for the TensorRT `target` and write it to `out`.

    The options are those of `trtopt.rewrite`; `add` names further rules, `shapes` has the lengths that axes
    of inputs get, None for one that stays. With `sizes` 1 the check is at the smaller size of dynamic axes
    alone. Without `write_unchanged` nothing is written if no rule was applied. `accept` is shown the trace
    before anything is written; what it raises is raised. `note` hears beforehand how much room temporary
    files take.
    """
    began = time.perf_counter()
    aim = target_named(target)
    chosen = select(rules, skip, aim, add, clean=clean)
    check_formats(io, aim, in_engine=False)
    loaded = _load(source, out, note)
    frozen = replace(loaded, proto=_freeze(loaded.proto, shapes)) if shapes else loaded
    typing = type_graph(frozen, io, data=data, check=check)
    original = typing.model
    prepared = prepare.prepare(original)
    lowered = _weights_in(prepared.proto) - _weights_in(original.proto)
    notes, failed = _on_defaults(original), list[Undone]()
    if shapes:
        notes = [*_on_shapes(loaded.proto, frozen.proto), *notes]
    if check:
        equivalence.check_outputs(original.proto)
    if dynamic_batch:
        plain, _, failed = _rewrite(prepared, _SHAPES, aim)
        opened = make_dynamic(plain.model.proto)
        prepared = replace(prepared, proto=opened.proto)
        notes.append("; patched ".join([f"batch {opened.batch} is now dynamic", *opened.patched]))
    with scratch_beside(out) as spool:
        model = replace(prepared, spool=spool)
        if dynamic_batch and check:
            notes.append(prove(original, model, opened))
        proof = _Proof(model if dynamic_batch else original, data, sizes) if check else None
        if shapes and proof:
            try:
                proof.run_original()  # whether it runs at these shapes is known even where no rule applies
            except equivalence.Unrunnable as error:
                raise equivalence.Unrunnable(
                    f"at the fixed shapes, {error.problem}", f"fix others; else {error.remedy}"
                ) from None
        outcome, undone, checked = _rewrite_and_prove(model, chosen, aim, proof)
        was_run = dynamic_batch or typing.checked  # each runs the original
        notes += proof.notes(outcome) if proof and (outcome.applied or not was_run) else []
        final = move_quantization(outcome.model, typing.tensors, check=check)
        verified = (*typing.checked, *final.checked)
        notes += describe(final.tensors, verified)
        if not outcome.converged:
            notes.append("stopped at the bound on rounds: rules still applied")
        trace = RewriteTrace(
            source=str(source),
            out=str(out),
            target=aim.name,
            opset=opset_of(outcome.model.proto),
            nodes_before=prepare.count_nodes(original.proto),
            nodes_after=prepare.count_nodes(outcome.model.proto),
            rounds=outcome.rounds,
            constants_lowered=lowered,
            applied=outcome.applied,
            declined=outcome.declined,
            undone=(*failed, *undone),
            checked=(*verified, *checked),
            notes=tuple(notes),
            alarms=weight_alarms(original),
            seconds=0.0,
        )
        accept(trace)
        if write_unchanged or outcome.applied:
            model_file.save(final.model, out)
    return msgspec.structs.replace(trace, seconds=time.perf_counter() - began)


def _weights_in(model: onnx.ModelProto) -> int:
    return sum(len(part.initializer) + len(part.sparse_initializer) for part in graphs_of(model.graph))


def _freeze(proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int | None]]) -> onnx.ModelProto:
    """A copy with these lengths of its inputs' axes, and all other shapes as they follow from them."""
    copy = deepcopy(proto)
    fix_inputs(copy.graph, shapes)
    for value in copy.graph.output:
        value.type.tensor_type.ClearField("shape")
    declare_outputs(copy)
    for value, declared in zip(copy.graph.output, proto.graph.output, strict=True):
        if not value.type.tensor_type.HasField("shape"):  # inference does not find each
            value.CopyFrom(declared)
    return copy


def _load(source: Path, out: Path, note: Note) -> ModelFile:
    """The model, once it is known that a result can be written at `out`."""
    model_file.check_changed_to(out, source)
    model = model_file.load(source)
    held = sum(size_in_bytes(item) for item in model.proto.graph.initializer if model_file.is_external(item))
    check_output_room(out, 2 * held, note)  # at most: what rules make of the weights, and the result
    return model


def _on_shapes(before: onnx.ModelProto, after: onnx.ModelProto) -> Iterator[str]:
    """A note on each input whose axes were fixed."""
    for old, new in zip(feeds.specs_of(before), feeds.specs_of(after), strict=True):
        if old != new:
            yield f"{old.name} {'x'.join(map(str, old.shape))} is now {'x'.join(map(str, new.shape))}"


def _on_defaults(original: ModelFile) -> list[str]:
    """A note on inputs that have a default value."""
    held = {item.name for item in original.proto.graph.initializer}
    names = [item.name for item in original.proto.graph.input if item.name in held]
    listed = some_of(names, _NAMED)
    return [f"inputs with a default value are constants, as TensorRT takes them: {listed}"] if names else []


# ── at an engine's own shapes ──────────────────────────────────────────────────────────────────────────────


_FOLDING = (erase_identity, fold_shapes, fold_constants, growing_weights())


def fold_at(model: ModelFile, shapes: Mapping[str, Sequence[int | None]], target: Target) -> ModelFile | None:
    """The model at `shapes`, None among them leaves an axis open; None if nothing changes or can be proved.

    TensorRT refuses some models only for what is open in them or left to it to compute: a Squeeze without
    axes whose batch might be 1, weights in INT8 that no DequantizeLinear reads, outputs without a type. Where
    a rule was applied it was run, as the model was, on one random input of these shapes.
    """
    try:
        proto = _freeze(prepare.prepare(model).proto, shapes)
        folded = rewrite(replace(model, proto=proto), _FOLDING, target)
        if not folded.applied and (proto.graph.input, proto.graph.output) == (
            model.proto.graph.input,
            model.proto.graph.output,
        ):
            return None
        given = feeds.seeded(proto)[: bool(folded.applied)]
        checked = equivalence.compare(equivalence.run(model, given), folded.model, given, "B")
    except (ModelError, RuleFailed):
        return None
    return folded.model if all(one.ok for one in checked) else None
