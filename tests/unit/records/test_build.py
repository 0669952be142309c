"""How `--split` is read."""

from __future__ import annotations

import pytest

from trtopt.errors import UsageError
from trtopt.records.build import read_splits


def test_tensors_formats_and_parts_are_read_and_written_alike() -> None:
    texts = ["stem/relu:1", "a:0,b=chw32:4"]
    first, second = splits = read_splits(texts)
    assert (first.tensors, first.parts) == (("stem/relu",), 1)
    assert (second.tensors, second.layouts, second.parts) == (("a:0", "b"), {"b": "chw32"}, 4)
    assert list(map(str, splits)) == texts


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("relu", "expected TENSOR"),
        (":4", "expected TENSOR"),
        ("a,,b:4", "expected TENSOR"),
        ("relu:x", "expected TENSOR"),
        ("relu=nchw:4", "unknown layout 'nchw'"),
        ("relu:0", "out of range"),
        ("relu:2000", "out of range"),
        ("relu:1", "every engine would run the whole batch"),
        ("a,a:2", "'a' is given twice"),
    ],
)
def test_what_is_no_cut_is_refused(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        read_splits([text])
