"""Why one engine of a model is slower or faster than another: causes that add up, and replaced parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import TypeVar

from trtopt.inspect.costs import family_of
from trtopt.inspect.kernels.attribution import MOVING_STEPS
from trtopt.inspect.kernels.names import common_names, in_any_block, kernel_of_any_number, read_name
from trtopt.inspect.layers import bits
from trtopt.onnxio.graph_walk import DisjointNames
from trtopt.records import Cause, EngineDifference, EngineProfile, KernelFamily, ProfiledLayer, Replacement

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Part:
    """A launch, or a layer where launches are unknown; `layer` is the one that it belongs to.

    `steps` are the operators in a kernel's name, `product` the nodes that the other fuses it with.
    """

    name: str
    family: KernelFamily
    ms: float
    dtype: str = ""
    nodes: tuple[str, ...] = ()
    layer: str = ""
    is_opaque: bool = False
    steps: frozenset[str] = frozenset()
    product: tuple[str, ...] = ()

    def keys(self, common: Set[str]) -> list[str]:
        """Its nodes that both engines have, else its name: nodes may be called otherwise in the other.

        A reformat has the nodes of all that it feeds, and would tie these.
        """
        nodes = () if self.family == "reformat" else (*self.nodes, *self.product)
        return [f"node {name}" for name in nodes if name in common] or [f"name {self.name}"]


def differences(a: Sequence[EngineProfile], b: Sequence[EngineProfile]) -> tuple[EngineDifference, ...]:
    """From A to B at every batch size at which an engine was timed on both sides."""
    first, second = ({one.batch: one for one in reversed(side) if one.sum_ms} for side in (a, b))
    return tuple(difference(first[batch], second[batch]) for batch in sorted(first.keys() & second.keys()))


def difference(a: EngineProfile, b: EngineProfile) -> EngineDifference:
    """By kernels where both profiles have them, else by layers."""
    by_kernels = all(one.kernels is not None and one.kernels.rows for one in (a, b))
    first, second = (_Side(one, by_kernels) for one in (a, b))
    for one, other in ((first, second), (second, first)):
        one.parts = list(one.with_products(other))
    common = first.nodes & second.nodes
    groups = connected(first.parts, second.parts, lambda part: part.keys(common))
    return EngineDifference(
        batch=b.batch,
        a=f"{a.engine.label} ({a.engine.sha256[:12]})",
        b=f"{b.engine.label} ({b.engine.sha256[:12]})",
        a_ms=first.latency_ms,
        b_ms=second.latency_ms,
        parts="kernels" if by_kernels else "layers",
        causes=_causes(first, second, groups),
        replaced=_replaced(groups),
    )


class _Side:
    """What an engine's latency consists of: its parts, and the rest, in which none runs.

    That goes by the latency without a profiler; gaps of traced runs are longer, by up to 9 % of it.
    """

    def __init__(self, profile: EngineProfile, by_kernels: bool) -> None:
        kernels = profile.kernels if by_kernels else None
        if kernels is not None:
            self.parts = [
                Part(
                    kernel_of_any_number(row.name), row.family, row.own_ms, row.dtype, row.nodes, row.layer,
                    steps=read_name(row.name).steps,
                )
                for row in kernels.rows
            ]  # fmt: skip
        else:
            self.parts = [_part_of(layer) for layer in profile.layers if layer.ms]
        self.nodes = {name for layer in profile.layers for name in layer.onnx_nodes}
        self.nodes.update(name for part in self.parts for name in part.nodes)
        self.float_gates = {*profile.float_gates}
        taken = _ms(self.parts)
        traced = taken + (0.0 if kernels is None else kernels.gap_ms)
        self.latency_ms = traced if profile.latency_ms is None else profile.latency_ms
        self.rest_ms = self.latency_ms - taken
        self._covered = {
            name: layer.name for layer in profile.layers if not layer.is_reformat for name in layer.onnx_nodes
        }
        computing = [part for part in self.parts if part.family not in _MOVES]
        self._unknown = [part for part in computing if not part.nodes]
        self._by_family: dict[KernelFamily, set[str]] = defaultdict(set)
        for part in computing:
            self._by_family[part.family].update(part.nodes)

    def with_products(self, other: _Side) -> Iterator[Part]:
        """Its parts; pointwise work that the other has fused with its product, or the one in front of it."""
        before: tuple[str, ...] = ()
        for part in self.parts:
            before = part.nodes if part.family == "product" else before
            if part.family == "pointwise" and other.has_within_products(part):
                is_known = other._by_family["product"].issuperset(part.nodes)
                part = replace(part, product=part.nodes if is_known else before or part.nodes)
            yield part

    def has_within_products(self, work: Part) -> bool:
        """Whether its products compute these nodes: a part says so, or no other part does or may."""
        wanted = {*work.nodes}
        if not wanted or wanted & self._by_family["pointwise"]:
            return False
        if wanted <= self._by_family["product"]:
            return True
        own = self._covered.keys() & wanted
        others = (names for family, names in self._by_family.items() if family != "product")
        layers = {self._covered[name] for name in own}
        may_have_it = any(part.layer in layers and _may_compute(part, work) for part in self._unknown)
        return bool(own) and own.isdisjoint(set().union(*others)) and not may_have_it


def _may_compute(unknown: Part, work: Part) -> bool:
    """Whether a kernel of unknown nodes may; one with arithmetic alone in its name has no Erf, Exp, …"""
    return not unknown.steps or not work.steps - _ARITHMETIC or bool(unknown.steps - _ARITHMETIC)


_ARITHMETIC = MOVING_STEPS | {"Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Rou"}
"""Steps that TensorRT's graph compiler writes for one another."""


def _part_of(layer: ProfiledLayer) -> Part:
    family: KernelFamily = "other" if layer.is_opaque else family_of(layer.onnx_ops or (layer.kind,))
    tactic = layer.tactic
    if layer.is_reformat:
        family, tactic = "reformat", ""
    name = " ".join(filter(None, (layer.kind, layer.dtype, tactic))) or layer.name
    return Part(name, family, layer.ms or 0.0, layer.dtype, layer.working_nodes, layer.name, layer.is_opaque)


def connected(
    a: Sequence[_Item], b: Sequence[_Item], keys: Callable[[_Item], list[str]]
) -> list[tuple[tuple[_Item, ...], tuple[_Item, ...]]]:
    """What of both hangs together: two are connected where they share a key."""
    groups = DisjointNames(key for one in (*a, *b) for key in keys(one))
    for one in (*a, *b):
        groups.join(*keys(one))
    sides: dict[str, tuple[list[_Item], list[_Item]]] = {}
    for side, items in enumerate((a, b)):
        for one in items:
            sides.setdefault(groups.root(keys(one)[0]), ([], []))[side].append(one)
    return [(tuple(ours), tuple(theirs)) for ours, theirs in sides.values()]


_Group = tuple[Sequence[Part], Sequence[Part]]
"""Parts of A and of B for common nodes."""


# Causes, and what may save their cost. A remedy is an option of `trtopt build`, unless it names a command.


@dataclass(frozen=True)
class _Reason:
    """`options` are what the remedy changes of a recipe, `excludes` that it keeps the nodes in float."""

    text: str
    remedy: str = ""
    options: tuple[tuple[str, str], ...] = ()
    excludes: bool = False


_MOVES: frozenset[KernelFamily] = frozenset({"reformat", "weight copy", "copy", "memset"})
_MERGE = (
    "--forms qkv=merged for INT8, else --add-rule merge-matmuls: merges them in the graph",
    (("forms", "qkv=merged"), ("add_rule", "merge-matmuls")),
)
_NARROW = ("--forms rest=half: FP16 between Q/DQ", (("forms", "rest=half"),))
_REASONS: dict[KernelFamily, _Reason] = {
    "reformat": _Reason(
        "reformats, Q and DQ",
        "in front of sums, another --forms residual; --exclude what they surround",
        (("forms", "residual=skip"),),
    ),
    "weight copy": _Reason("copies of weights", *_MERGE),
    "copy": _Reason("copies"),
    "memset": _Reason("memory sets"),
    "split-k": _Reason("sums of split products"),
    "other": _Reason("unknown"),
}
"""Of what is not called after its family."""
_REST = "gaps, launching, and what profiling changes"
_GATES = (
    _Reason("gates of squeeze-and-excitation that A has in float between INT8"),
    _Reason(
        "gates of squeeze-and-excitation that B has in float between INT8",
        "--forms gates=int8",
        (("forms", "gates=int8"),),
    ),
)
"""By the side that has them: all that computes them, and reformats around them."""
_NODES = 3


def _causes(a: _Side, b: _Side, groups: Sequence[_Group]) -> tuple[Cause, ...]:
    """Both latencies by cause, the largest change first: what no part takes is the rest."""
    by_reason: dict[_Reason, tuple[list[Part], list[Part]]] = defaultdict(lambda: ([], []))
    for group in groups:
        for side, part, reason in _by_reason(group, (a, b)):
            by_reason[reason][side].append(part)
    found = []
    for reason, (ours, theirs) in by_reason.items():
        options: dict[str, tuple[str, ...]] = {name: (value,) for name, value in reason.options}
        if reason.excludes:
            options["exclude"] = tuple(dict.fromkeys(name for part in theirs for name in part.nodes))
        is_cost = _ms(theirs) > _ms(ours)
        found.append(
            Cause(
                cause=reason.text,
                a_ms=_ms(ours),
                b_ms=_ms(theirs),
                a_parts=len(ours),
                b_parts=len(theirs),
                nodes=_most_changed(ours, theirs),
                remedy=reason.remedy if is_cost else "",
                options=options if is_cost else {},
            )
        )
    found.append(Cause(cause=_REST, a_ms=a.rest_ms, b_ms=b.rest_ms))
    return tuple(sorted(found, key=lambda one: -abs(one.cost_ms)))


def _by_reason(group: _Group, sides: tuple[_Side, _Side]) -> Iterator[tuple[int, Part, _Reason]]:
    """The reason that each part of common nodes counts for, with its side."""
    gates = [sides[0].float_gates - sides[1].float_gates, sides[1].float_gates - sides[0].float_gates]
    attended = {name for side in group for part in side if part.family == "attention" for name in part.nodes}
    products = [
        [part for part in side if part.family == "product" and not attended.issuperset(part.nodes)]
        for side in group
    ]
    fused = [side for side, parts in enumerate(group) if any(part.product for part in parts)]
    ours, theirs = (sorted(part.dtype for part in side) for side in products)
    is_fused = len(fused) == 1 and ours == theirs
    hides = any(part.is_opaque for side in group for part in side)
    for side, parts in enumerate(group):
        for part in parts:
            gated = [own for own, names in enumerate(gates) if not names.isdisjoint(part.nodes)]
            if hides:  # what it runs, so that the other side's parts have nothing to be compared with
                yield side, part, _REASONS["other"]
            elif gated:
                yield side, part, _GATES[gated[0]]
            elif part.nodes and attended.issuperset(part.nodes):
                yield side, part, _attention(group)
            elif part.product:
                yield side, part, _FUSED[side]
            elif part.family == "product" and is_fused:
                yield side, part, _FUSED[fused[0]]
            elif part.family == "product":
                yield side, part, _products(*products)
            else:
                yield side, part, _others(part.family, group)


_FUSED = (
    _Reason("fusions of B: pointwise work that it has within products"),
    _Reason(
        "fusions that B lost: pointwise work that A has within products",
        "for HardSwish --forms activation=int8; trtopt profile lists what was not fused, and why",
        (("forms", "activation=int8"),),
    ),
)
"""By the side that has the work in parts of its own."""


def _attention(group: _Group) -> _Reason:
    has_one = [any(part.family == "attention" for part in side) for side in group]
    if all(has_one):
        return _Reason("attention")
    if has_one[0]:
        return _Reason(
            "attention that only A has in one kernel", "--forms attention=on", (("forms", "attention=on"),)
        )
    return _Reason("attention that only B has in one kernel")


def _products(ours: Sequence[Part], theirs: Sequence[Part]) -> _Reason:
    """By types, and by whether they became faster; products of one side only, and merged ones, by that."""
    if not ours or not theirs:
        return _Reason(f"products, {_types(ours or theirs)}: only in {'A' if ours else 'B'}")
    a_merges, b_merges = _merges(ours, theirs), _merges(theirs, ours)
    if a_merges and not b_merges:
        return _Reason("products that only A merges", *_MERGE)
    if b_merges and not a_merges:
        return _Reason("products that only B merges")
    types = _types(ours) if _types(ours) == _types(theirs) else f"{_types(ours)} → {_types(theirs)}"
    before, after = _bits(ours), _bits(theirs)
    cost_ms = _ms(theirs) - _ms(ours)
    trend = ": slower" if cost_ms > 0 else ": faster" if cost_ms < 0 else ""
    text = f"products, {types}{trend}"
    if not before or not after or before == after:
        return _Reason(text)
    if after > before:
        return (
            _Reason(text, *_NARROW) if before > 8 else _Reason(text, "Q/DQ in front of these nodes, as A has")
        )
    return _Reason(text, "--exclude these nodes: they stay in float", excludes=True)


def _merges(ours: Sequence[Part], theirs: Sequence[Part]) -> bool:
    """Whether a part of ours computes the products of several of theirs."""
    return any(sum({*one.nodes} > {*other.nodes} for other in theirs) > 1 for one in ours)


def _others(family: KernelFamily, group: _Group) -> _Reason:
    """By family, and by whether B runs them in a wider type."""
    ours, theirs = ([part for part in side if part.family == family] for side in group)
    if family not in _MOVES and 0 < _bits(ours) < _bits(theirs):
        return _Reason(f"{family}, {_types(ours)} → {_types(theirs)}: wider in B", *_NARROW)
    return _REASONS.get(family, _Reason(family))


def _types(parts: Sequence[Part]) -> str:
    return ", ".join(sorted({part.dtype or "unknown" for part in parts}))


def _bits(parts: Sequence[Part]) -> int:
    """Of the widest type, 0 where one is unknown."""
    widths = [bits(part.dtype) for part in parts]
    return max(widths, default=0) if all(widths) else 0


def _ms(parts: Sequence[Part]) -> float:
    return sum(part.ms for part in parts)


def _most_changed(ours: Sequence[Part], theirs: Sequence[Part]) -> tuple[str, ...]:
    """The first nodes of what changes most, those of repeated blocks together."""
    changes: dict[tuple[str, ...], float] = defaultdict(float)
    for sign, parts in ((-1, ours), (1, theirs)):
        for part in parts:
            changes[in_any_block(part.nodes[:1])] += sign * part.ms
    costliest = sorted(filter(None, changes), key=lambda nodes: -abs(changes[nodes]))
    return tuple(name for (name,) in costliest[:_NODES])


def largest_costs(found: EngineDifference) -> str:
    """What B loses most by, of what its parts take; empty where nothing costs it."""
    costly = [one for one in found.causes if one.cost_ms > 0 and one.cause != _REST]
    return ", ".join(f"{one.cost_ms:.3f} ms in {one.cause}" for one in costly[:2])


# Parts that were replaced.


def _replaced(groups: Sequence[_Group]) -> tuple[Replacement, ...]:
    """The costliest first, the same change in several blocks as one; what is the same in both is left out."""
    members: dict[tuple[tuple[str, ...], ...], list[tuple[tuple[str, ...], float, float]]] = {}
    for ours, theirs in groups:
        nodes = tuple(dict.fromkeys(name for part in (*ours, *theirs) for name in part.nodes))
        a, b = (tuple(part.name for part in side) for side in (ours, theirs))
        if a != b:
            own = members.setdefault((in_any_block(nodes), a, b), [])
            own.append((nodes, _ms(ours), _ms(theirs)))
    changes = (
        Replacement(
            nodes=common_names([nodes for nodes, _, _ in own]),
            a=a,
            b=b,
            a_ms=sum(before for _, before, _ in own),
            b_ms=sum(after for _, _, after in own),
            blocks=len(own),
        )
        for (_, a, b), own in members.items()
    )
    return tuple(sorted(changes, key=lambda one: (-abs(one.cost_ms), one.a, one.b)))
