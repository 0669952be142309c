"""Entries of ledgers, for tests of what is drawn from them."""

from __future__ import annotations

from typing import Any

from tests.support import examples
from trtopt.records import Ledger, LedgerEntry, TuneBaseline, TuneTerms


def entry(**fields: Any) -> LedgerEntry:
    """A candidate that was 1 % faster than the incumbent, and the same for all practical purposes."""
    whole: dict[str, Any] = {
        "candidate": "opt_level=5",
        "kind": "builder-setting",
        "predicted_gain": 0.1,
        "probability": 0.5,
        "predicted_cost_s": 10.0,
        "cost_s": 10.0,
        "measured_gain": 0.01,
        "measured_low": 0.0,
        "measured_high": 0.02,
        "verdict": "same",
        "reason": "",
    }
    return LedgerEntry(**whole | fields)


def won(gain: float, **fields: Any) -> LedgerEntry:
    """A candidate that was accepted."""
    return entry(measured_gain=gain, verdict="accepted", **fields)


def ledger(*entries: LedgerEntry) -> Ledger:
    """Of a latency of 2 ms at batch 8."""
    return Ledger(
        created="2026-11-23T00:00:00+00:00",
        model="model.onnx",
        terms=TuneTerms(
            model_sha256="a" * 64,
            backend=examples.TENSORRT,
            device=examples.GPU,
            objective="latency",
            contract=examples.measurement().contract,
            batch=(8,),
            recipe="{}",
            data=None,
            bounds={"min_cosine": 0.99},
            threshold=0.01,
            duration_s=2.0,
        ),
        baseline=TuneBaseline(
            cost=2.0,
            unit="ms",
            accuracy=1.0,
            build_s=60.0,
            measure_s=10.0,
            total_s=70.0,
            engine=examples.engine(8),
            inputs=examples.onnx().inputs,
        ),
        entries=entries,
    )
