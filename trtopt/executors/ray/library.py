"""Ray itself: the only importer; and what its errors say."""

from __future__ import annotations

from typing import Any

from trtopt.errors import BackendMissingError, TrtoptError
from trtopt.executors.placement import KILLED_FOR_MEMORY
from trtopt.extras import install

OLDEST = (2, 50)
NODE_LABEL = "ray.io/node-id"
"""The label that a task's selector names nodes by."""


def load_ray() -> Any:
    """Ray."""
    try:
        import ray
    except ImportError:
        raise BackendMissingError("Ray is not installed", install("ray")) from None
    if tuple(map(int, ray.__version__.split(".")[:2])) < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise BackendMissingError(
            f"Ray {ray.__version__} is too old: trtopt needs {needed} or newer",
            f"pip install 'ray[client]>={needed}'",
        )
    return ray


def on_node(task: Any, node: str, **options: Any) -> Any:
    """A remote function, to be called on this very node whatever else runs there."""
    return task.options(num_cpus=0, max_retries=0, label_selector={NODE_LABEL: node}, **options)


def reason_of(error: BaseException) -> str:
    """What an error of Ray's says, in one line, without its tracebacks."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        error = cause
    if isinstance(error, TrtoptError):
        return error.problem
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    sentence = first.split(". ")[0].rstrip(".")
    if isinstance(error, load_ray().exceptions.OutOfMemoryError):
        return f"{KILLED_FOR_MEMORY}: {sentence}"
    return f"{type(error).__name__}: {sentence}" if sentence else type(error).__name__
