"""Rules that make a graph easier for TensorRT to fuse, their driver, and the proof that nothing else changed.

`rewrite_model(source, out, target="10")` rewrites a file and answers with a `RewriteTrace`. It is loaded
when it is first used, so that importing this package loads neither onnx nor onnx-graphsurgeon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtopt.rewrite.rewrite_trace import RewriteTrace

if TYPE_CHECKING:
    from trtopt.rewrite.rewrite import rewrite_model

__all__ = ["RewriteTrace", "rewrite_model"]


def __getattr__(name: str) -> Any:
    if name == "rewrite_model":
        from trtopt.rewrite.rewrite import rewrite_model

        return rewrite_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
