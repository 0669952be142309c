"""Models whose large weights stay where they are, such as mapped files, while ONNX Runtime runs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trtopt.files.atomic import scratch_folder
from trtopt.onnxio.model_file import WEIGHTS_FILE


@contextmanager
def model_without_weights(model: bytes) -> Iterator[Path]:
    """The model in a file of its own, while it is being loaded.

    ONNX Runtime copies weights given by `add_external_initializers`. Those given by `add_initializer` it
    shares, but the file that the model names for a weight must exist: an empty one does.
    """
    with scratch_folder() as folder:
        (folder / WEIGHTS_FILE).touch()
        path = folder / "model.onnx"
        path.write_bytes(model)
        yield path
