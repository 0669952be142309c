"""Device memory that an engine needs: checked before it is loaded, and again before it runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from trtopt.device.api import Device, Session
from trtopt.device.memory_check import require_memory, warn_if_short
from trtopt.files.manifests import read_verified
from trtopt.measure.loop.inference_stream import sets_of
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.records import Contract, EngineArtifact, Shape, TensorSpec


def vouched_engine(
    device: Device, path: Path, artifact: EngineArtifact, shapes: Mapping[str, Shape]
) -> bytes:
    """The engine's content, once its hash is right and the device has room for the least that it takes.

    That is its file, for its weights are in it, and one set of inputs and outputs; `shapes` are those of its
    inputs, and outputs count where the engine knows their shapes.
    """
    content = read_verified(path, artifact.sha256)
    tensors = _nbytes((*artifact.inputs, *artifact.outputs), shapes)
    require_memory(
        artifact.path,
        {"engine": len(content), "inputs and outputs": tensors},
        device.device_memory(),
        "use a smaller batch or model",
    )
    return content


def check_stream_memory(
    device: Device, session: Session, name: str, shapes: Mapping[str, Shape], contract: Contract
) -> None:
    """Warn if the streams of a contract may find too little room.

    A stream takes what the engine states for a context's activations, at the largest shapes that it admits,
    and its sets of inputs and outputs.
    """
    tensors = _nbytes((*session.inputs, *session.outputs), shapes)
    parts = {
        "activations": contract.streams * (session.device_memory_bytes or 0),
        "inputs and outputs": contract.streams * sets_of(contract) * tensors,
    }
    warn_if_short(name, parts, device.device_memory())


def _nbytes(specs: Iterable[TensorSpec], shapes: Mapping[str, Shape]) -> int:
    """Bytes of the tensors whose shapes are given or known."""
    known = ((spec.dtype, shapes.get(spec.name, spec.shape)) for spec in specs)
    return sum(
        numpy_dtype(dtype).itemsize * math.prod(axis for axis in shape if isinstance(axis, int))
        for dtype, shape in known
        if all(isinstance(axis, int) for axis in shape)
    )
