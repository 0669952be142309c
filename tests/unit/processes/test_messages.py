"""What passes between processes arrives as it was sent."""

from __future__ import annotations

import socket
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from trtopt.processes.messages import frame, receive, send


def sent_through(value: Any) -> Any:
    """What arrives of a value."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sending = threading.Thread(target=send, args=(ours, frame(value)))
        sending.start()
        found = receive(theirs, Any)
        sending.join()
        return found


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6, dtype=np.float16).reshape(2, 3).T,
        np.arange(4, dtype=">f4"),
        np.array(3.5),
        np.zeros((0, 4), np.int8),
        np.array([True, False]),
        np.array([1, 2], ml_dtypes.bfloat16),
        np.array([1, 2], ml_dtypes.float8_e4m3fn),
        np.array([-8, 7], ml_dtypes.int4),
        np.array(["ü", ""]),
        np.array([b"\xff", b""]),
        np.array([["a", "bc"]], object),
        np.zeros((0,), object),
        np.arange(1 << 20),
    ],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)
def test_arrays_of_any_type_arrive_as_they_were_sent(array: np.ndarray) -> None:
    found = sent_through({"x": [array, None, 3]})["x"]
    assert found[1:] == [None, 3]
    assert found[0].dtype == array.dtype.newbyteorder("=") if array.dtype.kind != "V" else array.dtype
    assert found[0].shape == array.shape
    assert found[0].tolist() == array.tolist()
    assert found[0].flags.writeable


def test_what_is_no_message_is_not_awaited() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b'{"type":"benched"')
        with pytest.raises(EOFError):
            receive(theirs, Any)
