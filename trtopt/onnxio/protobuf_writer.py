"""A minimal Protocol Buffers writer, for weights that are streamed into a file and never held whole.

Source: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

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
