"""Runs in turns, made up: every latency is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.support import examples
from trtopt.measure.contracts import contract_named
from trtopt.records import (
    ClockReading,
    ClockReference,
    Contract,
    InterleavedRun,
    Purpose,
    Samples,
    TurnSamples,
)
from trtopt.records.bench import EngineRef

CONTRACT = contract_named("trtexec-11")
Blocks = Sequence[Sequence[float]]


def block(latencies: Sequence[float]) -> Samples:
    """Queries of these latencies, one after the other."""
    starts = [sum(latencies[:index]) for index in range(len(latencies))]
    none = [0.0] * len(latencies)
    return Samples(
        start_ms=starts,
        end_ms=[start + latency for start, latency in zip(starts, latencies, strict=True)],
        enqueue_ms=none,
        gpu_compute_ms=list(latencies),
        h2d_ms=[],
        d2h_ms=[],
        inference_stream=[0] * len(latencies),
    )


def turns(name: str, blocks: Blocks, contract: Contract = CONTRACT, mode: str = "latency") -> TurnSamples:
    return TurnSamples(
        name=name,
        engine=EngineRef(path="batch8.engine", sha256="c" * 64, label="batch8"),
        contract=contract,
        mode="latency" if mode == "latency" else "throughput",
        blocks=tuple(map(block, blocks)),
        warmups=(),
    )


def run(
    sides: Mapping[str, Blocks], purpose: Purpose = "comparison", slow_readings: Sequence[int] = ()
) -> InterleavedRun:
    """Clock readings of these numbers told of a thermal slowdown."""
    subjects = tuple(turns(name, blocks) for name, blocks in sides.items())
    count = len(subjects) * len(subjects[0].blocks)
    clocks = tuple(
        ClockReading(
            at_ms=float(index),
            sm_mhz=1980,
            throttle=("hw_thermal_slowdown",) if index in slow_readings else (),
        )
        for index in range(count + 1)
    )
    return InterleavedRun(
        purpose=purpose,
        batch=8,
        environment=examples.report().environment,
        turns=subjects,
        clocks=clocks,
        clock_reference=ClockReference(mhz=1980, kind="application"),
    )
