"""The file of a chain: several engines in one, so that it has one hash and travels and loads as one engine.

After the mark come eight bytes with the header's length (little-endian), the header in JSON, and the engines
one after the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from trtopt.errors import IncompatibleEngineError
from trtopt.records import Record, Segment, TensorSpec, from_json, to_json

_MARK = b"trtopt chain of engines, 1\n"
_LENGTH = 8
_MAX_HEADER = 1 << 24
_REMEDY = "build it again"


class Chain(Record, frozen=True, kw_only=True):
    """What is in the file: the inputs and outputs of the whole, and its engines in order."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    segments: tuple[Segment, ...]


def is_chain(content: bytes) -> bool:
    """Whether a file holds a chain; any other holds one engine."""
    return content.startswith(_MARK)


def pack_chain(chain: Chain, engines: Sequence[bytes]) -> bytes:
    """The file of a chain."""
    header = to_json(chain, indent=None)
    return b"".join((_MARK, len(header).to_bytes(_LENGTH, "little"), header, *engines))


def unpack_chain(content: bytes) -> tuple[Chain, tuple[bytes, ...]]:
    """A chain and its engines."""
    start = len(_MARK) + _LENGTH
    length = int.from_bytes(content[len(_MARK) : start], "little")
    if length > _MAX_HEADER:
        raise IncompatibleEngineError("the chain's header is damaged", _REMEDY)
    try:
        chain = from_json(content[start : start + length], Chain)
    except ValueError as error:
        raise IncompatibleEngineError(f"the chain's header cannot be read: {error}", _REMEDY) from None
    engines, at = [], start + length
    for segment in chain.segments:
        engine = content[at : at + segment.size_bytes]
        if hashlib.sha256(engine).hexdigest() != segment.sha256:
            raise IncompatibleEngineError("an engine of the chain is cut short or damaged", _REMEDY)
        engines.append(engine)
        at += segment.size_bytes
    if not engines or at != len(content):
        raise IncompatibleEngineError("the chain's file does not hold what its header lists", _REMEDY)
    return chain, tuple(engines)
