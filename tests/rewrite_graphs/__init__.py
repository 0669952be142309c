"""Small graphs for each rewrite rule: where it fires, and where each of its guards declines.

They are written in ONNX's own text form. Weights named `w…`, `v…` are filled with seeded numbers. The
fusion audit builds `FIRES` before and after on a GPU; the tests run all of them on the CPU. Every module here
but `case` has its graphs as `CASES`.
"""

import importlib
import pkgutil

from tests.rewrite_graphs.case import Case, model

_ALL: list[Case] = [
    case
    for module in pkgutil.iter_modules(__path__)
    if module.name != "case"
    for case in importlib.import_module(f"{__name__}.{module.name}").CASES
]

FIRES = tuple(case for case in _ALL if not case.reason)
DECLINES = tuple(case for case in _ALL if case.reason)

__all__ = ["DECLINES", "FIRES", "Case", "model"]
