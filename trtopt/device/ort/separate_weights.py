"""Models whose large weights stay where they are, such as mapped files, while ONNX Runtime runs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from trtopt.files.atomic import cannot_write, scratch_folder
from trtopt.onnxio.disk_space import check_temporary_room
from trtopt.onnxio.model_file import PACKED_FILE, WEIGHTS_FILE


@contextmanager
def model_without_weights(model: bytes, packed: Sequence[NDArray[Any]]) -> Iterator[Path]:
    """The model in a file of its own, `packed` weights in one beside it, while it is being loaded.

    ONNX Runtime copies weights given by `add_external_initializers`. Those given by `add_initializer` it
    shares, but the file that the model names for a weight must exist: an empty one does. What it reads
    from a file it maps.

    Raises:
        OutputError: there is no room for the packed weights.
    """
    check_temporary_room(sum(array.nbytes for array in packed))
    with scratch_folder() as folder:
        path = folder / "model.onnx"
        try:
            (folder / WEIGHTS_FILE).touch()
            with (folder / PACKED_FILE).open("wb") as file:
                file.writelines(array.data for array in packed)
            path.write_bytes(model)
        except OSError as error:
            raise cannot_write(folder, error) from None
        yield path
