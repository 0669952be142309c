"""Entries of ledgers, for tests of what is drawn from them."""

from __future__ import annotations

from typing import Any

from trtopt.records import LedgerEntry


def entry(**fields: Any) -> LedgerEntry:
    """A candidate that was 1 % faster than the incumbent, and the same for all practical purposes."""
    whole: dict[str, Any] = {
        "candidate": "opt_level=5",
        "kind": "builder-setting",
        "prior_gain": 0.1,
        "prior_probability": 0.5,
        "predicted_gain": 0.1,
        "probability": 0.5,
        "predicted_low": -0.02,
        "predicted_high": 0.15,
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
