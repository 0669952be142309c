"""ONNX files as Protocol Buffers: read without their weights, and written one weight at a time.

A model is a Protocol Buffers message: a run of fields, each a tag, a length and its bytes. Walking the
tags is enough to find where every weight lies in the file; the weights themselves are then never parsed,
only mapped, so that a model of any size costs little more memory than its graph.

Source: https://protobuf.dev/programming-guides/encoding and `onnx.proto` for the field numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_LENGTH_DELIMITED = 2


def varint(value: int) -> bytes:
    """`value` in base 128, least significant group first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def header(field: int, length: int) -> bytes:
    """The tag and length that open a length-delimited field."""
    return varint(field << 3 | _LENGTH_DELIMITED) + varint(length)


GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9  # ModelProto.graph, GraphProto.initializer, TensorProto.raw_data


def _read_varint(data: Any, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number runs past its message")


def fields(data: Any, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Each field of the message in `data[at:end]`: number, start of its tag, start and end of its content.

    A field that is no run of bytes has its number or fixed-size value as content.
    """
    while at < end:
        begin = at
        tag, at = _read_varint(data, at, end)
        kind = tag & 7
        start = at
        if kind == 0:
            _, at = _read_varint(data, at, end)
        elif kind == _LENGTH_DELIMITED:
            length, start = _read_varint(data, at, end)
            at = start + length
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError(f"unknown wire type {kind} at byte {begin}")
        if at > end or not tag >> 3:
            raise ValueError(f"the field at byte {begin} runs past its message")
        yield tag >> 3, begin, start, at
