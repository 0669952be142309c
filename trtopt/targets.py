"""What is known of each TensorRT by the name that `--target` gives it: `8.6`, `10`, `11` or `rtx`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Opsets:
    """ONNX opsets: `read` is the newest that a model may have, in whichever version's parser takes the most.

    `operators` is the newest whose operators all versions have: what may be written into a graph.
    """

    read: int
    operators: int


OPSETS = {
    "8.6": Opsets(read=19, operators=17),  # 17 by its documents; Q/DQ of opset 19 with FP32 scales loads
    "10": Opsets(read=24, operators=22),
    "11": Opsets(read=25, operators=24),
    "rtx": Opsets(read=25, operators=25),
}
"""By the parsers' release notes and operator support matrices."""
