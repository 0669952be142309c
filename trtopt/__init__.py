"""trtopt: from a trained model to the fastest TensorRT engine that meets your bounds.

`trtopt.optimize("model.onnx", data="samples.npz")` does it in one call. Step by step:

    build, tune, sweep, verify                              make engines and look after them
    bench, compare, profile, explain, report                measure them, judge them, explain the time
    history, add_to_history                                 results over time, and where they changed
    export, rewrite, extract, cast, quantize                make graphs
    inspect, diff, lint, check, bisect, reduce              look at them, and judge them
    plan, deploy, pack, unpack                              serve them
    models, doctor                                          what there is, and what works here

Most return a record with `table()`, `rows()` and `to_dict()`; all raise a `trtopt.TrtoptError` that says
what to do. The command line is a thin layer over these functions.

Importing `trtopt` loads nothing heavy.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from trtopt.version import __version__ as __version__

if TYPE_CHECKING:
    from trtopt.api import *  # noqa: F403

_ALSO_PACKAGES = ("export", "inspect", "report", "rewrite")
"""Public functions, also once the packages of these names are loaded."""


def _views() -> Any:
    from trtopt import results

    return results


def _is_module(name: str) -> bool:
    """Whether this is one of the package's own, which `from trtopt import` asks for before it imports it."""
    from importlib.util import find_spec

    return find_spec(f"{__name__}.{name}") is not None


class _PublicModule(ModuleType):
    """Loads the public functions, which `trtopt.api` lists, on first use.

    Records know nothing of how they are shown: their views are attached here, when they are loaded.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name == "records" and isinstance(value, ModuleType):
            value.Result.views = _views
        if not (name in _ALSO_PACKAGES and isinstance(value, ModuleType)):  # as import does for a loaded one
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name in ("__all__", *_ALSO_PACKAGES) or not (name.startswith("__") or _is_module(name)):
            from trtopt import api

            if name in (*api.__all__, "__all__"):
                return getattr(api, name)
        raise AttributeError(f"module 'trtopt' has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        return list(self.__all__)


sys.modules[__name__].__class__ = _PublicModule
