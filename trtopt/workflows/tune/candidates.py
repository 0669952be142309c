"""The kinds of candidates, in one table: what each changes, and what is believed of it before any was tried.

A new kind takes one entry in `KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trtopt.records import Backend, BuildSettings
from trtopt.records.tuning import CandidateKind
from trtopt.rewrite.catalogue import RULES
from trtopt.targets import ONNXRUNTIME, target_of
from trtopt.workflows.tune.prediction import Prior

_EXTERNAL = "CUBLAS"
"""Among the tactic sources of versions that can use other libraries."""


@dataclass(frozen=True)
class Change:
    """One step away from the incumbent; what is empty or None stays what it is.

    `settings` are fields of `BuildSettings`; `rule` is a rewrite rule to apply, `precision` what is written
    into the graph; `fresh` builds again without a timing cache.
    """

    kind: CandidateKind
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    rule: str | None = None
    precision: str | None = None
    batch: int | None = None
    streams: int | None = None
    fresh: bool = False

    @property
    def builds(self) -> bool:
        """Whether an engine has to be built for it."""
        return self.streams is None


@dataclass(frozen=True)
class Situation:
    """What candidates depend on: the backend, the incumbent's terms, and what the user allows."""

    backend: Backend
    cores: int
    batch: int
    batches: tuple[int, ...]
    streams: int
    is_rate: bool
    """Whether the objective is a rate: other batch sizes and several streams may serve it."""
    is_float: bool
    """Whether the graph is the one that the model's precision was to be written into."""
    settings: BuildSettings
    data: str | None


@dataclass(frozen=True)
class Kind:
    """A kind of candidates: `builds` is how many builds of the baseline one takes."""

    name: CandidateKind
    help: str
    prior: Prior
    builds: float
    changes: Callable[[Situation], Iterator[Change]]


def _precision(situation: Situation) -> Iterator[Change]:
    if situation.data is not None and situation.is_float:
        yield Change("precision", "precision=best", precision="best")


def _settings(situation: Situation) -> Iterator[Change]:
    values = _ort_settings(situation) if situation.backend.name == ONNXRUNTIME else _trt_settings(situation)
    for name, value in values:
        if getattr(situation.settings, name) == value:
            continue
        text = ",".join(value) if isinstance(value, tuple) else value
        yield Change("builder-setting", f"{name}={text}", settings={name: value})


def _trt_settings(situation: Situation) -> Iterator[tuple[str, Any]]:
    target = target_of(situation.backend)
    yield "opt_level", 5
    yield "opt_level", 4
    yield from (("aux_streams", count) for count in (0, 1, 4))
    if target.tiling:
        yield from (("tiling", level) for level in ("full", "moderate", "fast"))
    if _EXTERNAL in target.tactic_sources:
        yield "tactic_sources", target.tactic_sources


def _ort_settings(situation: Situation) -> Iterator[tuple[str, Any]]:
    cores = situation.cores
    counts = {1, 2, cores // 2, cores}
    yield from (("intra_op_threads", count) for count in sorted(counts) if 1 <= count <= cores)
    default = ("all",) if situation.settings.graph_optimization is not None else ()
    yield from (("graph_optimization", level) for level in (*default, "extended", "basic", "disable"))
    yield "execution_mode", "parallel"


def _rules(situation: Situation) -> Iterator[Change]:
    name = target_of(situation.backend).name
    for rule in RULES:
        if name not in rule.default:
            yield Change("rewrite-rule", f"rule={rule.name}", rule=rule.name)


def _batches(situation: Situation) -> Iterator[Change]:
    if situation.is_rate:
        for size in situation.batches:
            if size != situation.batch:
                yield Change("batch", f"batch={size}", batch=size)


def _streams(situation: Situation) -> Iterator[Change]:
    if situation.is_rate and situation.backend.name != ONNXRUNTIME:  # which runs one query after another
        yield from (Change("streams", f"streams={count}", streams=count) for count in (2, 4))


def _lottery(situation: Situation) -> Iterator[Change]:
    if situation.backend.name != ONNXRUNTIME:  # whose builds are all alike
        yield from (Change("build-lottery", f"build {number}", fresh=True) for number in (2, 3, 4))


KINDS = (
    Kind("precision", "the fastest precision that keeps the accuracy", Prior(0.35, 0.7), 5, _precision),
    Kind("batch", "another batch size", Prior(0.2, 0.4), 1, _batches),
    Kind("streams", "several streams", Prior(0.1, 0.4), 0, _streams),
    Kind("builder-setting", "settings of the builder", Prior(0.03, 0.15), 1, _settings),
    Kind("rewrite-rule", "rewrite rules that are off by default", Prior(0.03, 0.1), 1.5, _rules),
    Kind("build-lottery", "another build of the same", Prior(0.02, 0.15), 1, _lottery),
)
"""In the order in which equal ones are tried."""
