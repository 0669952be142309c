"""What a stream writes where its encoding lacks a character."""

from __future__ import annotations

import codecs

import pytest

from trtopt.printable import spelled_out


@pytest.mark.parametrize(
    ("encoding", "written"),
    [("ascii", b"1.31 +/- 0.02 -> a...b - \\u4e2d"), ("latin-1", b"1.31 \xb1 0.02 -> a...b - \\u4e2d")],
)
def test_signs_have_spellings_and_other_characters_escapes(encoding: str, written: bytes) -> None:
    codecs.register_error("spelled-out-here", spelled_out)
    assert "1.31 ± 0.02 → a…b – 中".encode(encoding, "spelled-out-here") == written


def test_an_error_of_another_kind_is_raised() -> None:
    with pytest.raises(UnicodeDecodeError):
        spelled_out(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"))
