"""Pools on the scripted device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tests.support.scripted_device.device import ScriptedDevice, ScriptedSession, ScriptedTarget
from tests.support.scripted_device.script import Script
from trtopt.records import Backend, BuildPlan, BuildSettings, DeviceInfo, EngineArtifact, ShapeRange
from trtopt.serving.load_folder import Source, offers_of
from trtopt.serving.pool import BOUND_BYTES, EnginePool

ACTIVATIONS = ScriptedSession.device_memory_bytes
ROW_BYTES = 4 * 4 + 2 * 4
"""Of the scripted session's x (float32, [N, 4]) and y (float32, [N, 2])."""


def artifact(low: int, high: int | None = None) -> EngineArtifact:
    high = high or low
    batch = ShapeRange(min=(low,), opt=(high,), max=(high,))
    plan = BuildPlan(
        onnx_sha256="a" * 64,
        batch=batch,
        shapes={"x": ShapeRange(min=(low, 4), opt=(high, 4), max=(high, 4))},
        settings=BuildSettings(),
        backend=Backend(name="scripted", version="1"),
    )
    return EngineArtifact(
        path=f"{plan.label}.engine",
        sha256=f"{low:032x}{high:032x}",
        size_bytes=6,
        plan=plan,
        inputs=ScriptedSession.inputs,
        outputs=ScriptedSession.outputs,
        device=DeviceInfo(kind="scripted", name="scripted device"),
        build_seconds=0.0,
        builder_config={},
        log="build.log",
        warnings=0,
    )


def sources(batches: Iterable[int]) -> list[Source]:
    return [Source(artifact(batch), b"engine", offers_of(artifact(batch))) for batch in batches]


def pool_on(
    device: ScriptedDevice,
    batches: Sequence[int] = (1, 8),
    *,
    workers: int = 1,
    bound_bytes: int = BOUND_BYTES,
    graphs: bool = True,
) -> EnginePool:
    target = ScriptedTarget(device)
    return EnginePool(target, sources(batches), workers=workers, bound_bytes=bound_bytes, graphs=graphs)


def rows(count: int) -> np.ndarray:
    return np.arange(count * 4, dtype=np.float32).reshape(count, 4)


def calls_in(device: ScriptedDevice, work: Any) -> list[str]:
    """What `work` calls of the device."""
    before = len(device.calls)
    work()
    return [call for call in device.calls[before:] if call != "adopt_thread"]


def device(**script: Any) -> ScriptedDevice:
    return ScriptedDevice(Script(**script))
