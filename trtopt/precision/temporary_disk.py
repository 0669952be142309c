"""What the stages of casting and quantising write to temporary files."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import onnx

from trtopt.files.atomic import cannot_write, scratch_folder
from trtopt.onnxio.disk_space import check_temporary_room
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.shape_inference import LARGE_BYTES
from trtopt.precision.casting.widen import is_low


def of_casting(model: ModelFile) -> int:
    """Bytes at most: weights in 16 bits, twice in a search, in FP32 to compare, and before if in 16."""
    return _wide_bytes(model.proto) * (3 if is_low(model.proto) else 2)


def of_quantising(model: ModelFile) -> int:
    """Bytes at most: the weights rewritten, smoothed, in 16 bits, and what Q/DQ make of them."""
    return _wide_bytes(model.proto) * (5 if is_low(model.proto) else 4)


def of_opening(*models: ModelFile) -> int:
    """Bytes at most: 16-bit weights in FP32, and behind Q and DQ in the type of their scales before."""
    return sum(map(_of_opening, models))


@contextmanager
def passing(model: ModelFile) -> Iterator[ModelFile]:
    """The model with a spool that goes when the block ends: what is mapped from it stays readable.

    It lies in the model's own or, if that has none, in the system's temporary folder.
    """
    if model.spool is None:
        check_temporary_room(of_opening(model))
        with scratch_folder() as folder:
            yield replace(model, spool=folder)
        return
    try:
        held = tempfile.TemporaryDirectory(dir=model.spool, ignore_cleanup_errors=True)
    except OSError as error:
        raise cannot_write(model.spool, error) from None
    with held as name:
        yield replace(model, spool=Path(name))


def _of_opening(model: ModelFile) -> int:
    has_pairs = any(node.op_type == "DequantizeLinear" for node in model.proto.graph.node)
    wide = _wide_bytes(model.proto)
    if is_low(model.proto):
        return wide * 3 // 2 if has_pairs else wide
    return wide if has_pairs else 0


def _wide_bytes(model: onnx.ModelProto) -> int:
    """What large weights take in FP32."""
    sizes = (4 * math.prod(item.dims) for item in model.graph.initializer)
    return sum(size for size in sizes if size >= LARGE_BYTES)
