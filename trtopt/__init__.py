"""trtopt: from a trained model to the fastest TensorRT engine its owner can trust.

The library is what the command line is a skin over: `build`, `bench`, `profile` and `sweep` return the
records of `trtopt.records`, and errors are those of `trtopt.errors`. Importing `trtopt` loads nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtopt.version import __version__

if TYPE_CHECKING:
    from trtopt.measure.statistics import summarise, throughput
    from trtopt.pipeline.bench import bench
    from trtopt.pipeline.build import build
    from trtopt.pipeline.profile import profile
    from trtopt.pipeline.sweep import sweep

__all__ = ["__version__", "bench", "build", "profile", "summarise", "sweep", "throughput"]

_HOMES = {
    "bench": "trtopt.pipeline.bench",
    "build": "trtopt.pipeline.build",
    "profile": "trtopt.pipeline.profile",
    "sweep": "trtopt.pipeline.sweep",
    "summarise": "trtopt.measure.statistics",
    "throughput": "trtopt.measure.statistics",
}


def __getattr__(name: str) -> Any:
    """Load the public functions on first use."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'trtopt' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
