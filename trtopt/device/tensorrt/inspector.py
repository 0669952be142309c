"""TensorRT's inspector: an engine's layers as text."""

from __future__ import annotations

from typing import Any

from trtopt.device.tensorrt.library import make


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
