"""Calling a user's `package.module:callable` or `FILE.py:callable`, with errors that name a remedy."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from trtopt.errors import UsageError


def function_of_user(reference: str) -> Callable[..., Any]:
    """`package.module:callable`, or `FILE.py:callable`, with the module's folder importable."""
    module_name, _, name = reference.rpartition(":")
    file = Path(module_name) if module_name.endswith(".py") else None
    if file is not None and not file.is_file():
        raise UsageError(f"{reference}: there is no file {file}", "give FILE.py:callable or module:callable")
    here = str(Path.cwd() if file is None else file.resolve().parent)
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name) if file is None else _module_in(file)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{reference}: no module named {error.name!r}",
            "run from the folder that holds it, or set PYTHONPATH",
        ) from None
    except (Exception, SystemExit) as error:  # a script that is not guarded by its name ends the process
        raise UsageError(f"{reference}: importing it failed: {where(error)}", "correct the module") from error
    finally:
        sys.path.remove(here)
    function = getattr(module, name, None)
    if not callable(function):
        near = get_close_matches(name, [one for one in vars(module) if callable(getattr(module, one))], n=1)
        remedy = f"did you mean {module_name}:{near[0]}?" if near else f"define it in {module_name}"
        raise UsageError(f"{module_name} has no callable {name!r}", remedy)
    return function  # type: ignore[no-any-return]


def names_function(text: str) -> bool:
    """Whether text is a function of the user's, `module:function` or `FILE.py:function`, and no path."""
    module, colon, _ = text.rpartition(":")
    return bool(colon) and (module.endswith(".py") or "/" not in text) and not Path(text).exists()


def _module_in(file: Path) -> ModuleType:
    """The module of a file, which need not be importable by name; each file is executed once."""
    name = f"_trtopt_user.{file.resolve()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def where(error: BaseException) -> str:
    """`Type: message (file:line in function)` of the innermost frame that raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}{place}"
