"""Ray itself, of which this is the only importer, and the connection to a cluster."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from trtopt.errors import BackendMissingError, DeviceError, TrtoptError
from trtopt.executors.placement import KILLED_FOR_MEMORY, MEASURING
from trtopt.extras import install

_ANSWER_S = 10.0
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


def finished(refs: list[Any], wait_s: float, **options: Any) -> list[Any]:
    """Which tasks have finished, as soon as one has, or none after a while."""
    if not refs:
        return []
    ray = load_ray()
    done, _ = ray.wait(refs, num_returns=1, timeout=wait_s, **options)
    if done:
        done, _ = ray.wait(refs, num_returns=len(refs), timeout=0, **options)
    return list(done)


def is_full(what: str) -> DeviceError:
    """The error where the object store, and the disk behind it, have no room."""
    return DeviceError(
        f"{what}: does not fit into Ray's object store, and the disk that it would be moved to is full",
        "free space on the disk of /tmp/ray there, or start the node with a larger object store",
    )


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Make this process a cluster's driver: of the one at `address` or RAY_ADDRESS, or of a new one here."""
    there = address if address.startswith("ray://") else os.environ.get("RAY_ADDRESS", "")
    is_own = there in ("", "local")
    if is_own:
        _prepare_own_cluster()
    ray = load_ray()
    if ray.is_initialized():  # by the workflow that this one is a part of, or by the user
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    requested: list[SystemExit] = []

    def handle(number: int, frame: FrameType | None) -> None:
        try:
            handlers[signal.Signals(number)](number, frame)  # type: ignore[operator,misc]
        except SystemExit as error:
            requested.append(error)
            raise

    try:
        _start(ray, there, is_own=is_own)
        # Ray's print a stack trace, and an exit from within Ray gets a status of its own.
        _set_handlers({number: handle if callable(old) else old for number, old in handlers.items()})
        yield
    except SystemExit as error:
        raise (requested or [error])[0] from None
    finally:
        ray.shutdown()
        _set_handlers(handlers)


def _start(ray: Any, there: str, *, is_own: bool) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if is_own:
        options |= {"include_dashboard": False, "resources": {MEASURING: 1}}
    if not there.startswith("ray://"):  # there the driver's folders are the cluster's
        options["job_config"] = config = ray.job_config.JobConfig()
        config._py_driver_sys_path = _NoFolders()
    try:
        _reach(there)
        ray.init(address="local" if is_own else there, **options)
    except ImportError:
        raise BackendMissingError("Ray lacks what `ray://` needs", install("ray")) from None
    except (ray.exceptions.RayError, ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise DeviceError(
            f"no connection to the Ray cluster at {'this host' if is_own else there}: {reason_of(error)}",
            _remedy(there),
        ) from None


def _remedy(address: str) -> str:
    if address.startswith("http"):
        return (
            "that is the address of Ray's dashboard, for `ray job submit`: set RAY_ADDRESS to HOST:6379, "
            "or give --executor ray://HOST:10001"
        )
    return (
        "check the address with `ray status`; where the cluster has a token, give it in "
        "RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, with RAY_AUTH_MODE=token"
    )


def _set_handlers(handlers: Mapping[signal.Signals, Any]) -> None:
    """Have signals handled so, where that is Python's to say; only the main thread may."""
    for number, handler in handlers.items():
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(number, handler)


def _reach(address: str) -> None:
    """Find out whether anything listens there: Ray itself would try for more than a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()


class _NoFolders(list[str]):
    """What Ray would extend by folders of this process, for its workers to import from."""

    def extend(self, _folders: Iterable[str]) -> None:
        """Leave it unchanged."""


def _prepare_own_cluster() -> None:
    """Have a cluster that this process starts report to no one, and refuse drivers without its token.

    Ray reads the token when it is imported, and keeps it. Versions before 2.52 ignore it.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if "RAY_AUTH_MODE" not in os.environ and "ray" not in sys.modules:
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
