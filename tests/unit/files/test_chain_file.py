"""A chain's file: what is packed comes out again, and damage does not."""

from __future__ import annotations

import hashlib

import pytest

from trtopt.errors import IncompatibleEngineError
from trtopt.files.chain_file import Chain, is_chain, pack_chain, unpack_chain
from trtopt.records import Segment, TensorSpec

SPECS = (TensorSpec(name="x", dtype="float32", shape=(4, 2)),)
ENGINES = (b"first engine", b"second")
CHAIN = Chain(
    inputs=SPECS,
    outputs=SPECS,
    segments=tuple(
        Segment(
            batch=2,
            repeats=2,
            inputs=SPECS,
            outputs=SPECS,
            size_bytes=len(engine),
            sha256=hashlib.sha256(engine).hexdigest(),
        )
        for engine in ENGINES
    ),
)


def test_what_is_packed_comes_out_again() -> None:
    content = pack_chain(CHAIN, ENGINES)
    assert is_chain(content)
    assert unpack_chain(content) == (CHAIN, ENGINES)


def test_damage_is_an_error_wherever_it_is() -> None:
    content = pack_chain(CHAIN, ENGINES)
    mark = content.index(b"{") - 8
    damaged = [content[:end] for end in range(mark, len(content))]
    damaged += [content + b"!", content[:mark] + b"\xff" * 8 + content[mark + 8 :]]
    damaged.append(content[:-1] + b"!")
    for one in damaged:
        with pytest.raises(IncompatibleEngineError):
            unpack_chain(one)
