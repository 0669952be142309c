"""Builds measured in turns, forwards and backwards, for scripts that hold several against one another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROUNDS = 4
SOURCES = ("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")
"""TensorRT 8.6's tactics that need neither cuDNN nor cuBLAS."""


def measure(folders: Mapping[str, Path], batch: int, note: Callable[[str, float], None]) -> None:
    """Give `note` each side and its median of the time between device events, in ms, turn after turn.

    Half a second at a time, with a CUDA graph and without copies.
    """
    import trtopt

    for turn in range(ROUNDS):
        for side in list(folders) if turn % 2 == 0 else [*folders][::-1]:
            report = trtopt.bench(folders[side], batch=(batch,), contract="trtexec-11", duration=0.5)
            times = report.points[0].latency.staged.gpu_compute_ms
            note(side, round(trtopt.summarise(times).median, 4))


def medians(sides: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Over the turns of each side, of those that were measured."""
    return {side: float(np.median(summary["p50_ms"])) for side, summary in sides.items() if summary["p50_ms"]}
