"""Importing what a model file names, with errors that say what to do."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from trtopt.errors import BackendMissingError, UsageError
from trtopt.extras import install
from trtopt.files.user_code import where


def need(*modules: str, line: str = install("export")) -> None:
    """Raise unless the modules are installed; nothing is imported."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise BackendMissingError(f"{module} is not installed", line)


def sibling_function(path: Path, reference: str) -> Callable[..., Any]:
    """`FILE.py:FUNCTION` of the folder that the model file `path` lies in.

    Files of one folder may import one another by name.
    """
    file, _, name = reference.partition(":")
    source = path.parent / file
    if not source.is_file() or not name:
        raise UsageError(
            f"{path}: {reference!r} does not name FILE.py:FUNCTION next to it", "correct the field"
        )
    function: Callable[..., Any] | None = getattr(_module(source), name, None)
    if not callable(function):
        raise UsageError(f"{source}: has no function {name!r}", f"correct {path.name}")
    return function


def _module(source: Path) -> ModuleType:
    """The module of a file, imported once; its folder is importable while its code is run."""
    key = f"trtopt_models_{hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:12]}_{source.stem}"
    if key in sys.modules:
        return sys.modules[key]
    spec = importlib.util.spec_from_file_location(key, source)
    assert spec is not None  # a .py file always has a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module
    sys.path.insert(0, str(source.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[key]
        raise UsageError(f"{source}: cannot be imported: {where(error)}", "correct the file") from error
    finally:
        sys.path.remove(str(source.parent))
    return module
