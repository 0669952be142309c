"""trtopt: from a trained model to the fastest TensorRT engine its owner can trust.

The library is what the command line is a skin over: `build`, `bench`, `profile` and `sweep` return the
records of `trtopt.records`, and errors are those of `trtopt.errors`. Importing `trtopt` loads nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtopt.version import __version__

if TYPE_CHECKING:
    from trtopt.measure.statistics.summaries import summarise, throughput
    from trtopt.workflows.bench.bench import bench
    from trtopt.workflows.build.build import build
    from trtopt.workflows.profile.profile import profile
    from trtopt.workflows.sweep.sweep import sweep

__all__ = ["__version__", "bench", "build", "profile", "summarise", "sweep", "throughput"]

_HOMES = {
    "bench": "trtopt.workflows.bench.bench",
    "build": "trtopt.workflows.build.build",
    "profile": "trtopt.workflows.profile.profile",
    "sweep": "trtopt.workflows.sweep.sweep",
    "summarise": "trtopt.measure.statistics.summaries",
    "throughput": "trtopt.measure.statistics.summaries",
}


def __getattr__(name: str) -> Any:
    """Load the public functions on first use."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'trtopt' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
