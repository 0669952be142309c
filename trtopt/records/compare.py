"""Records of comparisons: interleaved runs of one process, and their verdicts."""

from __future__ import annotations

from typing import Literal

from trtopt.records.base import Record, ResultFile
from trtopt.records.bench import Contract, EngineRef, Samples
from trtopt.records.build import EngineArtifact
from trtopt.records.machine import ClockReading, ClockReference, DeviceInfo, Environment
from trtopt.records.precision import ComparisonVerdict


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


class MeasuredRunSpread(Record, frozen=True, kw_only=True):
    """How much separate runs of one engine differ on a device, as `trtopt compare --control` measured it.

    `deviation` is the standard deviation of the logarithm of a run's median latency.
    """

    schema: str = "trtopt.runspread/2"
    created: str
    device: DeviceInfo
    deviation: float
    runs: int


class CompareReport(ResultFile, frozen=True, kw_only=True):
    """The result file of `trtopt compare`. Between result files there are no runs: the files hold them.

    `limit` is the slowdown that B must be shown not to have; None where there are no verdicts, and in files
    that do not say.
    """

    schema: str = "trtopt.compare/6"
    threshold: float
    limit: float | None = None
    runs: tuple[InterleavedRun, ...] = ()
    built: tuple[EngineArtifact, ...] = ()
    """Engines that were built for this comparison and deleted afterwards."""
    verdicts: tuple[ComparisonVerdict, ...] = ()
    notes: tuple[str, ...] = ()
