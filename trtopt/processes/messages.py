"""What passes between processes: values with arrays among them, over a socket.

A message is MessagePack behind its length; the bytes of its arrays follow.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from socket import socket
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from trtopt.onnxio.element_types import numpy_dtype
from trtopt.records.base import as_text

_LENGTH = struct.Struct("<Q")
_LONGEST = 1 << 32
"""More bytes than any message has, its arrays aside."""
_NUMBERS, _OBJECTS = 1, 2


@dataclass(frozen=True)
class Frame:
    """A value ready to be sent; `arrays` are emptied by sending, so that each can be freed behind it."""

    message: bytes
    arrays: list[NDArray[Any]]


def frame(value: Any) -> Frame:
    """A value of msgspec's, with arrays of any element type in it, ready to be sent.

    A TypeError or ValueError where it holds what is neither data nor text, or text that is not UTF-8.
    """
    arrays: list[NDArray[Any]] = []

    def extended(item: Any) -> Any:
        if not isinstance(item, np.ndarray):
            raise TypeError(f"{type(item).__name__} is none")
        if item.dtype.kind == "O":
            return msgspec.msgpack.Ext(
                _OBJECTS, msgspec.msgpack.encode((item.shape, item.reshape(-1).tolist()))
            )
        arrays.append(item)
        name = item.dtype.str if item.dtype.kind in "SU" else item.dtype.name
        return msgspec.msgpack.Ext(_NUMBERS, msgspec.msgpack.encode((name, item.shape)))

    return Frame(msgspec.msgpack.encode(value, enc_hook=extended), arrays)


def frame_for_reading(value: Any) -> Frame:
    """As `frame`, with escapes for what is not UTF-8: no file is looked for by a name in it."""
    try:
        return frame(value)
    except UnicodeEncodeError:
        return frame(as_text(msgspec.to_builtins(value, builtin_types=[bytes])))


def send(channel: socket, frame: Frame) -> None:
    """Send it whole; an OSError where the other side has closed it."""
    channel.sendall(_LENGTH.pack(len(frame.message)) + frame.message)
    while frame.arrays:
        array = frame.arrays.pop(0)
        if array.size:
            native = array.dtype if array.dtype.kind == "V" else array.dtype.newbyteorder("=")
            channel.sendall(_bytes_of(np.ascontiguousarray(array, native)))


def receive(channel: socket, kind: Any) -> Any:
    """What was sent by `send`, as a `kind` of msgspec's; arrays are fresh and writable.

    An EOFError or OSError where the other side is gone, a DecodeError where it is none of the `kind`.
    """
    arrays: list[NDArray[Any]] = []

    def restored(code: int, data: memoryview) -> Any:
        first, second = msgspec.msgpack.decode(data)
        if code == _OBJECTS:
            found = np.empty(math.prod(first), object)
            found[:] = second
            return found.reshape(first)
        arrays.append(np.empty(tuple(second), numpy_dtype(first)))
        return arrays[-1]

    length = bytearray(_LENGTH.size)
    _fill(channel, memoryview(length))
    (nbytes,) = _LENGTH.unpack(length)
    if nbytes > _LONGEST:
        raise EOFError("what arrives is no message")
    message = bytearray(nbytes)
    _fill(channel, memoryview(message))
    value = msgspec.msgpack.Decoder(kind, ext_hook=restored).decode(message)
    for array in arrays:
        if array.size:
            _fill(channel, _bytes_of(array))
    return value


def _bytes_of(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _fill(channel: socket, part: memoryview) -> None:
    while part:
        count = channel.recv_into(part)
        if not count:
            raise EOFError("closed in the middle of a message")
        part = part[count:]
