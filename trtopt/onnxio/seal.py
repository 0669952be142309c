"""How a model shows that trtopt wrote it and that nobody has edited it since: only such a one is replaced.

A seal ends the file: an entry of the model's metadata with the hash of all that is before it. Fields may come
in any order, so every reader sees one more entry; whoever saves the model again breaks the seal.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import onnx

from trtopt.files.bounded_reading import open_regular
from trtopt.files.outputs import Kind

_KEY = "trtopt.seal"
_PIECE_BYTES = 1 << 20
WEIGHTS_END = b"\0weights written by trtopt\0"
"""What ends a file of weights; models refer to what is before it."""


def sealed(chunks: Iterable[Any]) -> Iterator[Any]:
    """A model's bytes, and its seal."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
        yield chunk
    yield _seal(digest.hexdigest())


def remove_seal(model: onnx.ModelProto) -> None:
    """Take a seal off a model that is written again."""
    kept = [entry for entry in model.metadata_props if entry.key != _KEY]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)


def is_sealed(path: Path) -> bool:
    """Whether trtopt wrote the model, and it is as it was written."""
    digest, seal = hashlib.sha256(), len(_seal(hashlib.sha256().hexdigest()))
    with open_regular(path) as file:
        left = os.fstat(file.fileno()).st_size - seal
        if left <= 0:
            return False
        file.seek(left)
        end = file.read(seal)
        if _KEY.encode() not in end:
            return False
        file.seek(0)
        while left > 0 and (piece := file.read(min(left, _PIECE_BYTES))):
            digest.update(piece)
            left -= len(piece)
    return end == _seal(digest.hexdigest())


def _seal(text: str) -> bytes:
    entry = onnx.StringStringEntryProto(key=_KEY, value=text)
    return bytes(onnx.ModelProto(metadata_props=[entry]).SerializeToString())


MODEL = Kind("an ONNX file", is_sealed)
