"""Records of `tune` and `optimize`: the terms, the ledger of candidates, and the result."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from trtopt.records.base import Record, Result, ResultFile
from trtopt.records.bench import Contract, Trust
from trtopt.records.build import EngineArtifact
from trtopt.records.machine import Backend, DeviceInfo, MeasuredRunSpread
from trtopt.records.precision import Violation
from trtopt.records.tensors import TensorSpec

Seconds = Annotated[float, Meta(ge=0)]

Objective = Literal["latency", "throughput", "p99"]

CandidateKind = Literal[
    "precision",
    "placement",
    "batch",
    "streams",
    "builder-setting",
    "rewrite-rule",
    "build-lottery",
]

TuneVerdict = Literal["accepted", "same", "slower", "undecided", "inaccurate", "failed", "unchanged"]
"""`accepted`: significantly better, and the incumbent from then on; `unchanged`: the engine is the same."""


class TuneTerms(Record, frozen=True, kw_only=True):
    """What all entries of a ledger share; a ledger on other terms is not continued.

    `batch` are the batch sizes that may be chosen, `recipe` the baseline's recipe as JSON, `data` a
    hash of the samples (None: seeded random input), `bounds` the accuracy to keep.
    """

    model_sha256: str
    backend: Backend
    device: DeviceInfo
    objective: Objective
    contract: Contract
    batch: tuple[int, ...]
    recipe: str
    data: str | None
    bounds: dict[str, float]
    threshold: float
    duration_s: float


class TuneBaseline(Record, frozen=True, kw_only=True):
    """The engine that tuning starts from, its figure, and the seconds that it took.

    `cost` is what the objective minimises: milliseconds per query (latency, p99) or per sample (throughput).
    `accuracy` is the lowest cosine of an output.
    """

    cost: Annotated[float, Meta(gt=0)]
    unit: str
    accuracy: float
    build_s: Seconds
    measure_s: Seconds
    total_s: Seconds
    engine: EngineArtifact
    """Its file in the tuned folder, which is kept."""
    inputs: tuple[TensorSpec, ...]
    """Those of its model."""


class FinalRace(Record, frozen=True, kw_only=True):
    """The result against the baseline, in turns in one process, after the last candidate.

    `changes` are the accepted candidates that the result is made of; the gain is as in `LedgerEntry`, and
    lies within `low` and `high` in 95 % of cases. `is_faster`: significantly, and by the threshold at least.
    """

    changes: tuple[str, ...]
    gain: Annotated[float, Meta(lt=1)]
    low: float
    high: float
    is_faster: bool


class LedgerEntry(Record, frozen=True, kw_only=True):
    """A candidate: what was predicted, what was measured, and what became of it.

    Gains are shares of the cost saved against the incumbent: 0.05 is 5 % less time.
    `predicted_gain` is the gain if the candidate works, which has `probability`; their product is the
    expected gain. `evidence` says why it was tried.
    """

    candidate: str
    kind: CandidateKind
    predicted_gain: float
    probability: float
    evidence: str = ""
    predicted_cost_s: Seconds
    cost_s: Seconds
    measured_gain: Annotated[float, Meta(lt=1)] | None = None
    measured_low: float | None = None
    measured_high: float | None = None
    accuracy: float | None = None
    """The lowest cosine of an output."""
    verdict: TuneVerdict
    reason: str

    @property
    def expected_gain(self) -> float:
        """What trying it was worth: a candidate that loses is not taken."""
        return self.predicted_gain * self.probability


class Ledger(ResultFile, frozen=True, kw_only=True):
    """`ledger.json`: the terms, the baseline and every candidate, in the order in which they were tried.

    `run_spread` is how much separate runs of one engine differ on the device; None: not measured there.
    """

    schema: str = "trtopt.ledger/6"
    model: str
    terms: TuneTerms
    baseline: TuneBaseline
    run_spread: MeasuredRunSpread | None = None
    lost_s: Seconds = 0.0
    """Seconds besides the baseline and the entries: trials that were interrupted, samples read once more,
    races of the result."""
    entries: tuple[LedgerEntry, ...] = ()
    final: FinalRace | None = None

    @property
    def spent_s(self) -> float:
        """Seconds of the budget that are used up."""
        return self.baseline.total_s + self.lost_s + sum(entry.cost_s for entry in self.entries)

    @property
    def accepted(self) -> tuple[str, ...]:
        """The candidates that the result is made of."""
        return tuple(entry.candidate for entry in self.entries if entry.verdict == "accepted")

    @property
    def raced(self) -> FinalRace | None:
        """The race of the result against the baseline; None if it was not run."""
        return self.final if self.final is not None and self.final.changes == self.accepted else None

    @property
    def gain(self) -> float:
        """The share of the baseline's cost that the result saves; before its race, by the candidates' own."""
        if self.raced is not None:
            return self.raced.gain
        left = 1.0
        for entry in self.entries:
            if entry.verdict == "accepted":
                left *= 1 - (entry.measured_gain or 0.0)
        return 1 - left


class Tuned(Result, Record, frozen=True, kw_only=True):
    """The result of `trtopt tune`: the folder of the best engine, and the ledger that led there.

    `changes` are the accepted candidates; `stopped` is why no further candidate was tried.
    """

    schema: str = "trtopt.tuned/4"
    folder: str
    changes: tuple[str, ...]
    batch: int
    streams: int
    ledger: Ledger
    stopped: str
    notes: tuple[str, ...] = ()


# ── optimize ────────────────────────────────────────────────────────────────────────────────────────────


class OptimizedPoint(Record, frozen=True, kw_only=True):
    """A measured batch size.

    `precision` is what its engine was built in, None where the graph's types were kept. `latency_ms` is the
    percentile of the latency goal, p99 without one; figures are None where there were too few samples.
    """

    batch: int
    precision: str | None
    p50_ms: float | None
    latency_ms: float | None
    samples_per_s: float
    meets_goal: bool
    trust: Trust


class Optimized(Result, Record, frozen=True, kw_only=True):
    """The result of `trtopt optimize`.

    `best` is the recommended point: the highest throughput among those that meet the latency goal, None if
    none does; without a goal the highest for its median latency. `met` says whether both the goal and the
    accuracy bound are kept. `builder` built the engines; they were measured if it is the `backend` too.
    `folder` has the build and the result file. `goal` is the latency goal as given, such as `p99=10ms`;
    `cosine` the lowest of any output against the model, on `samples` samples; `violations` what keeps the
    engines from being accurate, and `alarms` what to see before they are used.
    """

    schema: str = "trtopt.optimize/2"
    model: str
    folder: str
    builder: str
    backend: str
    device: str
    goal: str | None
    percentile: float
    points: tuple[OptimizedPoint, ...]
    best: OptimizedPoint | None
    cosine: float
    min_cosine: float
    is_accurate: bool
    met: bool
    data: str
    samples: int
    findings: int
    violations: tuple[Violation, ...] = ()
    notes: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()

    @property
    def has_run_engines(self) -> bool:
        """Whether the figures are of the engines that were built, and not of the model on another backend."""
        return self.builder == self.backend

    @property
    def is_goal_shown(self) -> bool:
        """Whether the engines that were built show that they keep a goal, by figures to trust."""
        trust = self.best.trust if self.best is not None else Trust.NONE
        return self.goal is None or (self.has_run_engines and trust is not Trust.NONE)
