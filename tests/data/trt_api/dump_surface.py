"""Write down the part of a TensorRT binding's Python API that the tests hold trtopt to.

    python dump_surface.py MODULE OUT.json.gz

MODULE is an importable binding: tensorrt, tensorrt_bindings or tensorrt_rtx. Everything comes from the
binding itself: names, pybind11's docstrings (which are the signatures) and properties' setters.
"""

from __future__ import annotations

import gzip
import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

CLASS_NAMES = """
    Builder IBuilderConfig INetworkDefinition ITensor ILayer IAttentionBoundaryLayer IAttentionInputLayer
    IAttention
    IOptimizationProfile IHostMemory
    ITimingCache TimingCacheKey TimingCacheValue OnnxParser ParserError
    IAlgorithmSelector IAlgorithmContext IAlgorithm IAlgorithmVariant IAlgorithmIOInfo
    Runtime IRuntimeConfig IRuntimeCache ICudaEngine IExecutionContext EngineInspector ISerializationConfig
    Refitter OnnxParserRefitter Weights Dims IPluginRegistry IStreamReader IStreamReaderV2 IStreamWriter
    ILogger Logger IProfiler Profiler IProgressMonitor IErrorRecorder IDebugListener IOutputAllocator
    IVersionedInterface IGpuAllocator IGpuAsyncAllocator IInt8Calibrator IInt8EntropyCalibrator2
"""
ENUM_NAMES = """
    AllocatorFlag BuilderFlag CalibrationAlgoType ComputeCapability CudaGraphStrategy DataType DeviceType
    DynamicShapesKernelSpecializationStrategy EngineCapability EngineInvalidityDiagnostics EngineStat
    EngineValidity ErrorCode ErrorCodeTRT ExecutionContextAllocationStrategy HardwareCompatibilityLevel
    LayerInformationFormat LayerType MemoryPoolType NetworkDefinitionCreationFlag OnnxParserFlag
    PreviewFeature ProfilingVerbosity QuantizationFlag RuntimePlatform SerializationFlag TacticSource
    TempfileControlFlag TensorFormat TensorIOMode TensorLocation TensorRTPhase TilingOptimizationLevel
    WeightsRole
"""
CLASSES, ENUMS = CLASS_NAMES.split(), ENUM_NAMES.split()
FUNCTIONS = ("init_libnvinfer_plugins", "get_nv_onnx_parser_version")
LAYERS = "add_"  # INetworkDefinition's methods that add layers: trtopt adds none, the ONNX parser does
NAMESPACES = r"\b(tensorrt\w*\.tensorrt\w*\.|typing(_extensions)?\.|collections\.abc\.|(nv\w+|v_\d+_\d+)::)"
SIGNATURE = r"(\d+\. )?\w*\((?!\*args)"


def describe(module: Any) -> dict[str, Any]:
    """The surface as JSON; see README.md for its form."""
    present = [name for name in CLASSES if hasattr(module, name)]
    functions = [name for name in FUNCTIONS if hasattr(module, name)]
    enums = {name: _values(getattr(module, name)) for name in ENUMS if hasattr(module, name)}
    for name in present:
        nested = {key: value for key, value in vars(getattr(module, name)).items() if _is_enum(value)}
        enums |= {f"{name}.{key}": _values(value) for key, value in nested.items()}
    return {
        "module": module.__name__.removesuffix("_bindings"),
        "version": module.__version__,
        "functions": {name: _signatures(getattr(module, name)) for name in functions},
        "enums": enums,
        "classes": {name: _describe_class(getattr(module, name)) for name in present},
    }


def _describe_class(cls: Any) -> dict[str, Any]:
    methods, properties, values = {}, {}, {}
    for name in dir(cls):
        member = getattr(cls, name, None)
        if name.startswith("_") or (name.startswith(LAYERS) and cls.__name__ == "INetworkDefinition"):
            continue
        if isinstance(member, property):
            returns = (_signatures(member.fget) or [""])[0].rpartition("-> ")[2]
            properties[name] = [returns, member.fset is not None]
        elif isinstance(member, type) or not callable(member):
            values[name] = type(member).__name__ if not isinstance(member, type) else member.__name__
        else:
            methods[name] = _signatures(member)
    return {
        "bases": [base.__name__ for base in cls.__mro__[1:] if base.__name__ in CLASSES],
        "init": _signatures(cls.__init__),
        "methods": methods,
        "properties": properties,
        "values": values,
    }


def _signatures(function: Any) -> list[str]:
    """Every overload as `(name: type, ...) -> type`, without `self` and without namespaces."""
    doc = re.sub(r" at 0x[0-9a-f]+", "", (function.__doc__ or "").strip())
    lines = [line for line in doc.split("\n") if re.match(SIGNATURE, line)]
    overloads = [line for line in lines if line[0].isdigit()] or lines[:1]
    short = (re.sub(NAMESPACES, "", line).replace("::", ".") for line in overloads)
    return [re.sub(r"^[^(]*\(((self|arg0): [\w.]+(, )?)?", "(", line, count=1) for line in short]


def _values(enum: Any) -> dict[str, int]:
    return {name: int(value) for name, value in dict(enum.__members__).items()}


def _is_enum(value: Any) -> bool:
    return isinstance(value, type) and hasattr(value, "__members__")


def main(module: str, out: str) -> None:
    """Dump one binding."""
    text = json.dumps(describe(importlib.import_module(module)), separators=(",", ":"))
    Path(out).write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main(*sys.argv[1:])
