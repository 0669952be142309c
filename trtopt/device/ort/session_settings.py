"""Session settings of an engine of ONNX Runtime: kept in the engine itself, so that every run uses them."""

from __future__ import annotations

import json
import os
from typing import Any

from trtopt.device.affinity import present_cores
from trtopt.errors import IncompatibleEngineError
from trtopt.records import BuildSettings

KEY = "trtopt.session"
_LEVELS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
_MODES = {"sequential": "ORT_SEQUENTIAL", "parallel": "ORT_PARALLEL"}


def keep_settings(model: Any, settings: BuildSettings) -> None:
    """Write the settings that differ from the defaults into a model's metadata."""
    names = ("graph_optimization", "intra_op_threads", "execution_mode")
    given = {name: value for name in names if (value := getattr(settings, name)) is not None}
    if given:
        model.metadata_props.add(key=KEY, value=json.dumps(given, sort_keys=True))


def session_options(engine: bytes = b"") -> Any:
    """Options of a session: the engine's own, and no more threads than the process has cores."""
    import onnxruntime

    settings = _settings_of(engine)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    cores = len(present_cores())
    if settings.intra_op_threads is not None:
        options.intra_op_num_threads = settings.intra_op_threads
    elif 0 < cores < (os.cpu_count() or 0):  # by default it starts threads outside of the cores it may use
        options.intra_op_num_threads = cores
    level = _LEVELS[settings.graph_optimization or "all"]
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    mode = _MODES[settings.execution_mode or "sequential"]
    options.execution_mode = getattr(onnxruntime.ExecutionMode, mode)
    return options


def described(options: Any) -> dict[str, str]:
    """The settings of a session as a manifest lists them."""
    return {
        "graph_optimization_level": options.graph_optimization_level.name,
        "execution_mode": options.execution_mode.name,
        "intra_op_threads": str(options.intra_op_num_threads or "the default"),
        "execution_provider": "CPU",
    }


def _settings_of(engine: bytes) -> BuildSettings:
    if KEY.encode() not in engine:
        return BuildSettings()
    import onnx
    from google.protobuf.message import DecodeError

    try:
        kept = {entry.key: entry.value for entry in onnx.load_model_from_string(engine).metadata_props}
        settings = BuildSettings(**json.loads(kept.get(KEY, "{}")))
        known = (settings.graph_optimization in {None, *_LEVELS}) and (
            settings.execution_mode in {None, *_MODES}
        )
    except (DecodeError, TypeError, ValueError):
        known = False
    if not known:
        raise IncompatibleEngineError("the engine's session settings cannot be read", "build it again")
    return settings
