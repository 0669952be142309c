"""What the stages that write graphs call a backend."""

from __future__ import annotations

from trtopt.records import Backend


def target_of(backend: Backend) -> str:
    """`8.6`, `10`, `11` or `rtx`; what is no TensorRT gets the newest one's graph."""
    if backend.name == "tensorrt-rtx":
        return "rtx"
    major = backend.version.partition(".")[0] if backend.name == "tensorrt" else "11"
    return {"8": "8.6", "9": "8.6", "10": "10"}.get(major, "11")
