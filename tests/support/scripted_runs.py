"""Passes over the scripted device: times are virtual, so every figure is known exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from tests.support.scripted_device.device import Script, ScriptedDevice, ScriptedTarget
from trtopt.device.api import Session
from trtopt.measure.contracts import contract_named, with_terms
from trtopt.measure.loop.sampling import Subject, measure
from trtopt.measure.loop.stopping import Limits
from trtopt.records import Contract, EngineRef, Measurement

BATCH = 8
DATA = np.arange(BATCH * 4, dtype=np.float32).reshape(BATCH, 4)
ENGINE = EngineRef(path="batch8.engine", sha256="a" * 64, label="batch8")
SHAPES, INPUTS = {"x": (BATCH, 4)}, {"x": DATA}
INPUT_BYTES, OUTPUT_BYTES = BATCH * 4 * 4, BATCH * 2 * 4
"""Of the scripted session's x (float32, [N, 4]) and y (float32, [N, 2])."""

ENQUEUE, COMPUTE, H2D, D2H = 0.125, 1.0, 0.5, 0.25
SCRIPT = Script(compute_ms=[COMPUTE], enqueue_ms=[ENQUEUE], h2d_ms=H2D, d2h_ms=D2H)

Mode = Literal["latency", "throughput"]


def counted(queries: int, warmups: int = 1) -> Limits:
    """End a pass by count: so many queries, and then each slot's last one, which is in flight by then."""
    return Limits(
        warmup_s=0.0, max_warmup_s=0.0, duration_s=0.0, min_warmups=warmups + 1, min_queries=queries + 1
    )


def terms(name: str, **changes: Any) -> Contract:
    """A contract with other terms; None leaves a term as it is."""
    given = {term: value for term, value in changes.items() if value is not None}
    return with_terms(contract_named(name), given)


def subject_of(session: Session) -> Subject:
    """What passes measure."""
    return Subject(session, ENGINE, BATCH, SHAPES, INPUTS)


def run(device: ScriptedDevice, contract: Contract, mode: Mode, limits: Limits) -> Measurement:
    """One pass; whatever becomes of it, nothing but the session may have been left open."""
    target = ScriptedTarget(device)
    session = target.load(b"engine")
    try:
        return measure(subject_of(session), contract, mode, limits)
    finally:
        session.close()
        target.close()


def calls_of(work: Callable[[ScriptedDevice], object]) -> list[tuple[str, int]]:
    """(name, n) for every n-th call of that name that `work` makes on a device where nothing fails."""
    device = ScriptedDevice(Script())
    work(device)
    made = [name for name in device.calls if name != "close device"]
    return [(name, made[: index + 1].count(name)) for index, name in enumerate(made)]
