"""Kinds of candidates: what of the graph, of the builder and of how the engine is run may be changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from trtopt.builder_settings import SETTINGS
from trtopt.device.backends import precisions_on
from trtopt.inspect.graph import QUANTIZE, Graph
from trtopt.onnxio.model_file import load
from trtopt.precision.placement.forms import forms_in, parse_forms
from trtopt.precision.placement.place import with_choice
from trtopt.printable import counted
from trtopt.recipe import QUANTIZED, Recipe
from trtopt.records import Backend, DeviceInfo
from trtopt.records.tune import CandidateKind
from trtopt.rewrite.driver import RuleFailed, rewrite
from trtopt.rewrite.rules import RULES
from trtopt.targets import ONNXRUNTIME, target_named, target_of
from trtopt.workflows.build.candidates import planned_forms

_OF_THE_PLAN = {"batch", *(one.name for one in SETTINGS)}
"""The fields of a recipe that leave the graph unchanged."""


@dataclass(frozen=True)
class Prediction:
    """What one that works saves, and how likely it is to work."""

    gain: float
    probability: float


@dataclass(frozen=True)
class Change:
    """One step away from the incumbent; what is empty or None does not change.

    `recipe` are fields of the incumbent's `Recipe`; `streams` run its engine unchanged; `fresh` builds again
    without a timing cache. The first guess, and how many builds of the incumbent it takes, are the kind's own
    where they are None; `evidence` says why it is tried. It takes the baseline's measurement so many times as
    `measurements` says.
    """

    name: str
    recipe: Mapping[str, Any] = field(default_factory=dict)
    streams: int | None = None
    fresh: bool = False
    guess: Prediction | None = None
    builds: float | None = None
    measurements: float = 1.0
    evidence: str = ""

    @property
    def makes_graph(self) -> bool:
        """Whether the graph is made again from the user's model; else it is the incumbent's."""
        return not self.recipe.keys() <= _OF_THE_PLAN


@dataclass(frozen=True)
class Situation:
    """What candidates depend on: the backend, the incumbent, and what the user allows."""

    backend: Backend
    device: DeviceInfo
    cores: int
    batch: int
    batches: tuple[int, ...]
    streams: int
    is_rate: bool
    """Whether the objective is a rate: other batch sizes and several streams may serve it."""
    recipe: Recipe
    """The incumbent's."""
    selected: str | None
    """The candidate that was selected for the incumbent among precisions; None if none was."""
    data: str | None
    graph: Graph
    """The incumbent's."""
    model: Path
    """What a precision is written into."""
    model_sha256: str

    @property
    def forms(self) -> str:
        """The forms of its INT8 graph: those that were selected, or the recipe's."""
        return forms_in(self.selected or "") or self.recipe.forms or ""


_HALF = {"float16", "bfloat16"}
_ON_GPUS = ("fp16", "bf16")


def propose_precisions(situation: Situation) -> Iterator[Change]:
    """Precisions for the whole model: 16 bits on GPUs, and the fastest that keeps the accuracy.

    Processors compute 16 bits by way of FP32: of ten such candidates none was faster (benchmarks/tune).
    """
    graph, recipe = situation.graph, situation.recipe
    is_cast = recipe.precision in _ON_GPUS
    is_plain = is_cast or recipe.precision in (None, "fp32")
    if not is_plain or any(node.op == QUANTIZE for node in graph.nodes):
        return
    offered = precisions_on(situation.backend, situation.device)
    is_half = not is_cast and not _HALF.isdisjoint(graph.dtypes.values())
    for name in offered:
        if name in _ON_GPUS and situation.device.kind == "gpu" and not (is_cast or is_half):
            yield Change(f"precision={name}", recipe={"precision": name}, builds=1.0)
    narrow = [name for name in offered if name in QUANTIZED]
    if situation.data is not None and narrow and not is_half:
        # one of each, and what the selection's budget adds: other forms, or without the regions that lose
        builds = len(offered) + len(narrow) * (recipe.selection_budget - 1) / 2
        yield Change(
            "precision=best",
            recipe={"precision": "best"},
            builds=builds,
            measurements=1.0 + len(offered),  # selecting checks and measures each
        )


def propose_forms(situation: Situation) -> Iterator[Change]:
    """The form of an INT8 graph: one other choice where the graph has a place for it."""
    recipe = situation.recipe
    is_int8 = recipe.precision in ("int8", "best") and (situation.selected or "int8").startswith("int8")
    if not is_int8 or situation.data is None:
        return
    now, target = parse_forms(situation.forms), target_of(situation.backend).name
    places = planned_forms(situation.model, situation.model_sha256, target, recipe.exclude)
    for name, choices in places.items():
        for choice in choices:
            changed = str(with_choice(now, name, choice))
            if changed != str(now):
                yield Change(
                    f"forms={changed}",
                    recipe={"forms": changed, "precision": "int8"},
                    evidence=f"the graph has a place for {name}={choice}",
                )


_REMEMBERED = 512


def propose_rules(situation: Situation) -> Iterator[Change]:
    """Rules that builds leave out and that find something in the model, in front of any precision, each.

    Behind it some find nothing: Q, K and V of INT8, for instance, have no constant weights (`merge-matmuls`:
    BERT-base in INT8 took 11 % less time at batch 8, TensorRT 8.6, benchmarks/kernels).
    """
    target, added = target_of(situation.backend).name, situation.recipe.add_rule
    for rule in RULES:
        if rule.is_built_in(target) or rule.name in added:
            continue
        places = _places_of_rule(situation.model, situation.model_sha256, rule.name, target)
        if not places:
            continue
        yield Change(
            f"add-rule={rule.name}",
            recipe={"add_rule": (*added, rule.name)},
            evidence=f"it changes {counted(places, 'place')}",
        )


@lru_cache(_REMEMBERED)
def _places_of_rule(model: Path, sha256: str, rule: str, target: str) -> int:
    """How often a rule applies; `sha256`: graphs lie in one place one after the other."""
    wanted = [one for one in RULES if one.name == rule]
    try:
        return len(rewrite(load(model), wanted, target_named(target)).applied)
    except RuleFailed:
        return 0


_IDLE = 0.2
"""The share of a query's time that does not grow with the batch."""


def propose_batches(situation: Situation) -> Iterator[Change]:
    """Other batch sizes, where a rate is the objective."""
    for size in situation.batches if situation.is_rate else ():
        if size != situation.batch:
            gain = _IDLE * (1 - situation.batch / size)
            yield Change(
                f"batch={size}",
                recipe={"batch": (size,)},
                guess=Prediction(gain, 0.6) if gain > 0 else Prediction(0.01, 0.1),
            )


def propose_streams(situation: Situation) -> Iterator[Change]:
    """More streams, where queries can overlap."""
    if not situation.is_rate or situation.backend.name == ONNXRUNTIME:  # which runs one query after another
        return
    yield from (Change(f"streams={count}", streams=count) for count in (2, 4) if count > situation.streams)


_EXTERNAL = "CUBLAS"
"""Among the tactic sources of versions that can use other libraries."""
_LEVEL_BUILDS = {5: 2.0, 4: 1.5}
"""By optimisation level, what takes longer: for ResNet-50 these candidates took 242 and 199 s, FP16 163 s."""


def propose_settings(situation: Situation) -> Iterator[Change]:
    """Settings of the builder: what the backend's version has, by the tables of settings and targets."""
    values = _onnxruntime(situation) if situation.backend.name == ONNXRUNTIME else _tensorrt(situation)
    for name, value in values:
        if getattr(situation.recipe, name) == value:
            continue
        text = ",".join(value) if isinstance(value, tuple) else value
        builds = _LEVEL_BUILDS[value] if name == "opt_level" else None
        yield Change(f"{name}={text}", recipe={name: value}, builds=builds)


def _tensorrt(situation: Situation) -> Iterator[tuple[str, Any]]:
    for one in SETTINGS:
        for value in one.tried if one.is_of(situation.backend) else ():
            is_searched = one.name == "opt_level" and value == 4 and situation.recipe.opt_level == 5
            if not is_searched:  # 5 searches all that 4 does
                yield one.name, value
    sources = target_of(situation.backend).tactic_sources
    if _EXTERNAL in sources:
        yield "tactic_sources", sources


def _onnxruntime(situation: Situation) -> Iterator[tuple[str, Any]]:
    if situation.recipe.graph_optimization is not None:
        yield "graph_optimization", "all"
    counts = sorted({1, 2, situation.cores // 2})
    yield from (("intra_op_threads", count) for count in counts if 1 <= count < situation.cores)


def propose_builds(situation: Situation) -> Iterator[Change]:
    """Further builds of the incumbent: two builds of TensorRT differ."""
    if situation.backend.name != ONNXRUNTIME:  # whose builds are all alike
        yield from (Change(f"build {number}", fresh=True) for number in (2, 3, 4))


@dataclass(frozen=True)
class Kind:
    """A kind of candidates: what is believed of one at first, and how many builds of the baseline it takes.

    `changes` yields those of a situation, also ones that have been tried: names tell them apart.
    """

    name: CandidateKind
    guess: Prediction
    builds: float
    changes: Callable[[Situation], Iterator[Change]]


KINDS = (
    Kind("precision", Prediction(0.35, 0.7), 5, propose_precisions),
    Kind("placement", Prediction(0.047, 0.4), 5, propose_forms),
    Kind("batch", Prediction(_IDLE, 0.4), 1, propose_batches),
    Kind("streams", Prediction(0.1, 0.4), 0, propose_streams),
    Kind("builder-setting", Prediction(0.03, 0.15), 1, propose_settings),
    Kind("rewrite-rule", Prediction(0.03, 0.15), 1.5, propose_rules),
    # of builds that differ by 1 % (standard deviation): how many are faster by that much, and by how much
    Kind("build-lottery", Prediction(0.018, 0.24), 1, propose_builds),
)
"""All kinds of candidates, in the order in which equal ones are tried."""
