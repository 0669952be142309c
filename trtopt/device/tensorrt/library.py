"""Importing a flavour of TensorRT, loading plugins, its logger and its inspector."""

from __future__ import annotations

import ctypes
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtopt.device.api import LogSink
from trtopt.errors import ArtifactError, BackendMissingError, DeviceError
from trtopt.extras import RTX_EXTRA, install
from trtopt.files.bounded_reading import sha256_of
from trtopt.logs import heard
from trtopt.records import Backend, Plugin
from trtopt.targets import MODULES, Target, target_of_version

INSTALL = {"tensorrt": install("tensorrt"), "tensorrt-rtx": install(RTX_EXTRA)}


@dataclass(frozen=True)
class Library:
    """An imported binding: `trt` is the module, `target` its row of `targets.py`."""

    trt: Any
    target: Target
    backend: Backend


def load_library(name: str) -> Library:
    """Import a flavour."""
    try:
        trt = importlib.import_module(MODULES[name])
        version = str(trt.__version__)
        target = target_of_version(name, version)
        trt.Builder  # noqa: B018  (a binding whose libraries are missing imports, but is empty)
    except ModuleNotFoundError as error:
        raise BackendMissingError(f"{name} is not installed ({error})", INSTALL[name]) from None
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise BackendMissingError(
            f"{name} is installed but cannot be loaded: {error}",
            f"{INSTALL[name]}, or repair the installation",
        ) from None
    except ValueError as error:
        raise BackendMissingError(f"{error}", "install TensorRT 8.6 or newer") from None
    return Library(trt=trt, target=target, backend=Backend(name=name, version=version))


def load_plugins(library: Library, logger: Any, plugins: tuple[Plugin, ...]) -> None:
    """Register TensorRT's own plugins and load the user's libraries, whose hashes must be as planned."""
    if library.target.registers_plugins:
        library.trt.init_libnvinfer_plugins(logger, "")
    for plugin in plugins:
        path = Path(plugin.path)
        if not path.is_file() or sha256_of(path) != plugin.sha256:
            raise ArtifactError(
                f"--plugin {plugin.path}: missing, or not the file that was named when the build was planned",
                "restore the library, or build again",
            )
        try:
            ctypes.CDLL(plugin.path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise ArtifactError(
                f"--plugin {plugin.path}: cannot be loaded ({error})",
                "check that it was built for this TensorRT and system",
            ) from None


def make(factory: Any, *arguments: Any) -> Any:
    """Call one of TensorRT's factories; where C++ gives null, the binding raises TypeError."""
    try:
        made = factory(*arguments)
    except TypeError as error:
        if "nullptr" not in str(error):
            raise
        made = None
    if made is None:
        raise DeviceError(
            f"TensorRT could not make its {factory.__name__}",
            "see whether `trtopt doctor` finds a healthy GPU",
        )
    return made


def make_logger(trt: Any, sink: LogSink) -> Any:
    """A TensorRT logger; messages go to the log and to `sink`. It must outlive all that is made with it."""
    severities = {
        trt.ILogger.INTERNAL_ERROR: "error",
        trt.ILogger.ERROR: "error",
        trt.ILogger.WARNING: "warning",
        trt.ILogger.INFO: "info",
        trt.ILogger.VERBOSE: "verbose",
    }

    class Logger(trt.ILogger):  # type: ignore[misc]  # the base class is only known at run time
        def log(self, severity: Any, msg: str) -> None:
            name = severities.get(severity, "info")
            heard(trt.__name__, name, msg)
            sink(name, msg)

    return Logger()


def describe(trt: Any, engine: Any, context: Any = None) -> str | None:
    """The engine's layers in JSON; a dynamic engine's shapes and types are known only with a context."""
    inspector = engine.create_engine_inspector()
    if context is not None:
        inspector.execution_context = context
    try:
        text: str = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    except UnicodeDecodeError:  # a layer's name that the binding cannot turn into text
        return None
    return text or None


def describe_serialized(trt: Any, logger: Any, engine: bytes) -> str | None:
    """The layers of an engine that was just built here; None where there is no memory to load it."""
    runtime = make(trt.Runtime, logger)
    loaded = runtime.deserialize_cuda_engine(engine)
    return None if loaded is None else describe(trt, loaded)
