"""Building an ONNX file with TensorRT-RTX on the CPU: does the parser take it, does an engine come out?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tensorrt_rtx as trt

from trtopt.export.spec import Axis, Input


class _Logger(trt.ILogger):
    def __init__(self) -> None:
        super().__init__()
        self.errors: list[str] = []

    def log(self, severity: trt.ILogger.Severity, message: str) -> None:
        if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
            self.errors.append(message)


def build(
    path: Path, inputs: tuple[Input, ...], axes: Mapping[str, Axis], sizes: Mapping[str, int]
) -> list[str]:
    """Build an engine over the axes' whole ranges; returns what TensorRT said was wrong."""
    logger = _Logger()
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(path)):
        return [parser.get_error(index).desc() for index in range(parser.num_errors)]
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    if axes:
        profile = builder.create_optimization_profile()
        for entry in inputs:
            low, best, high = (
                entry.shape_at({**sizes, **{name: getattr(axis, end) for name, axis in axes.items()}})
                for end in ("min", "opt", "max")
            )
            profile.set_shape(entry.name, low, best, high)
        config.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, config)
    return [] if engine is not None and engine.nbytes else (logger.errors or ["no engine and no reason"])
