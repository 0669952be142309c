"""Calling a user's `package.module:callable`, with errors that name a remedy."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trtopt.errors import UsageError


def function_of_user(reference: str) -> Callable[[], Any]:
    """`package.module:callable`, with the working folder importable.

    Raises:
        UsageError: the module cannot be imported or has no such callable.
    """
    module_name, _, name = reference.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{reference}: no module named {error.name!r}",
            "run from the folder that holds it, or set PYTHONPATH",
        ) from None
    except Exception as error:
        raise UsageError(f"{reference}: importing it failed: {where(error)}", "correct the module") from error
    finally:
        sys.path.remove(here)
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"{module_name} has no callable {name!r}", "give package.module:callable")
    return function  # type: ignore[no-any-return]


def where(error: BaseException) -> str:
    """`Type: message (file:line in function)` of the innermost frame that raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}{place}"
