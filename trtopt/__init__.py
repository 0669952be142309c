"""trtopt: from a trained model to the fastest TensorRT engine that meets your bounds.

`trtopt.optimize("model.onnx", data="samples.npz")` does it in one call. Step by step:

    build, tune, sweep, verify                              make engines and look after them
    bench, compare, profile                                 measure them, judge them, explain the time
    export, lint, rewrite, cast, quantize, check, bisect    make and judge the graphs
    plan, pack, unpack                                      serve them

Each returns a record with `table()`, `rows()` and `to_dict()`, and raises a `trtopt.TrtoptError` that says
what to do. The command line is a thin layer over these functions.

Importing `trtopt` loads nothing heavy.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from trtopt.version import __version__

if TYPE_CHECKING:
    from trtopt.api import (
        bench,
        bisect,
        build,
        cast,
        check,
        compare,
        export,
        lint,
        optimize,
        pack,
        plan,
        profile,
        quantize,
        rewrite,
        sweep,
        tune,
        unpack,
        verify,
    )
    from trtopt.errors import TrtoptError
    from trtopt.measure.statistics.summaries import summarise, throughput
    from trtopt.recipe import Recipe

__all__ = [
    "Recipe",
    "TrtoptError",
    "__version__",
    "bench",
    "bisect",
    "build",
    "cast",
    "check",
    "compare",
    "export",
    "lint",
    "optimize",
    "pack",
    "plan",
    "profile",
    "quantize",
    "rewrite",
    "summarise",
    "sweep",
    "throughput",
    "tune",
    "unpack",
    "verify",
]

_HOMES = dict.fromkeys(__all__, "trtopt.api") | {
    "Recipe": "trtopt.recipe",
    "TrtoptError": "trtopt.errors",
    "summarise": "trtopt.measure.statistics.summaries",
    "throughput": "trtopt.measure.statistics.summaries",
}


def _views() -> Any:
    from trtopt import results

    return results


class _PublicModule(ModuleType):
    """`trtopt.export` and `trtopt.rewrite` are functions, also once packages of these names are loaded.

    Records know nothing of how they are shown: their views are attached here, when they are loaded.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name == "records" and isinstance(value, ModuleType):
            value.Result.views = _views
        if not (name in _HOMES and isinstance(value, ModuleType)):  # as import does for a loaded package
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        """Load the public functions on first use."""
        import importlib

        if name not in _HOMES:
            raise AttributeError(f"module 'trtopt' has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)

    def __dir__(self) -> list[str]:
        return __all__


sys.modules[__name__].__class__ = _PublicModule
