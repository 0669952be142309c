"""ONNX Runtime's sessions whose large weights stay where they are, such as mapped files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtopt.workspace import scratch_folder

WEIGHTS_FILE = "weights"
"""What models give as the file of each weight that is handed over beside them."""


def session_over(model: bytes, weights: Mapping[str, Any], options: Any) -> Any:
    """A session in which the OrtValues `weights`, which must outlive it, stand for initializers.

    `add_external_initializers` would copy each of them. `add_initializer` does not, but the file that the
    model gives for a weight must exist: an empty one does.
    """
    import onnxruntime

    providers = ["CPUExecutionProvider"]
    if not weights:
        return onnxruntime.InferenceSession(model, options, providers=providers)
    for name, value in weights.items():
        options.add_initializer(name, value)
    with scratch_folder() as folder:
        (folder / WEIGHTS_FILE).touch()
        path = folder / "model.onnx"
        path.write_bytes(model)
        return onnxruntime.InferenceSession(str(path), options, providers=providers)
