"""Records of comparisons: interleaved runs of one process, and their verdicts."""

from __future__ import annotations

from typing import Literal

from trtopt.records.base import Record, ResultFile
from trtopt.records.bench import Contract, EngineRef, Samples
from trtopt.records.build import EngineArtifact
from trtopt.records.machine import ClockReading, ClockReference, Environment
from trtopt.records.precision import ComparisonVerdict, OutputChange
from trtopt.records.profile import EngineDifference


class TurnSamples(Record, frozen=True, kw_only=True):
    """One subject's blocks of samples, in the order in which they were taken.

    `warmups` are the queries of its first warm-up, then those after each switch to it: they are no samples.
    """

    name: str
    engine: EngineRef
    contract: Contract
    """The actual terms: without a CUDA graph where none could be captured."""
    mode: Literal["latency", "throughput"]
    blocks: tuple[Samples, ...]
    warmups: tuple[Samples, ...]
    notes: tuple[str, ...] = ()


class Loading(Record, frozen=True, kw_only=True):
    """The subjects were loaded, again unless it is the first time, before round `round`, counted from 0.

    `order` are indices of `turns`; `took_s` is until all had run. `clock` was read when that was done.
    """

    round: int
    order: tuple[int, ...]
    took_s: float
    clock: ClockReading


Purpose = Literal["comparison", "control", "builds", "contracts", "precisions", "tuning"]


class InterleavedRun(Record, frozen=True, kw_only=True):
    """The interleaved measurements of one process at one batch size, and their purpose.

    In each round every subject has one turn, so block r of each was taken in round r. The clocks were read
    before the first turn and after each; they are compared with `clock_reference`. `failure` is the
    device's, if it ended the run in the middle: the turns that had finished are kept, and some subjects may
    have one more than others.

    `order` is the subject of each turn, as indices of `turns`, drawn from `seed`.
    """

    purpose: Purpose
    batch: int
    environment: Environment
    turns: tuple[TurnSamples, ...]
    clocks: tuple[ClockReading, ...]
    clock_reference: ClockReference
    failure: str | None = None
    seed: int | None = None
    order: tuple[int, ...] = ()
    loadings: tuple[Loading, ...] = ()


UpgradeVerdict = Literal["PASSED", "WRONG", "SLOWER", "UNDECIDED"]


class UpgradedEngine(Record, frozen=True, kw_only=True):
    """The engines of A and B at a batch size, and what a context of each takes; None: not reported."""

    batch: int
    a: EngineArtifact
    b: EngineArtifact
    a_memory_bytes: int | None
    b_memory_bytes: int | None


class Upgrade(Record, frozen=True, kw_only=True):
    """What became of a model's engines besides their speed; `layers` are empty if they could not be timed."""

    outputs: tuple[OutputChange, ...]
    layers: tuple[EngineDifference, ...]
    engines: tuple[UpgradedEngine, ...]


class CompareReport(ResultFile, frozen=True, kw_only=True):
    """The result file of `trtopt compare`. Between result files there are no runs: the files hold them.

    `limit` is the slowdown that B must be shown not to have; None where there are no verdicts, and in files
    that do not say.
    """

    schema: str = "trtopt.compare/8"
    threshold: float
    limit: float | None = None
    runs: tuple[InterleavedRun, ...] = ()
    built: tuple[EngineArtifact, ...] = ()
    """Engines that were built for this comparison and deleted afterwards."""
    verdicts: tuple[ComparisonVerdict, ...] = ()
    upgrade: Upgrade | None = None
    upgrade_verdict: UpgradeVerdict | None = None
    """With `--upgrade`."""
    notes: tuple[str, ...] = ()
