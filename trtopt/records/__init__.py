"""The frozen records that flow between stages, and their JSON form.

Every record is immutable and knows nothing of files or devices. JSON is read strictly: an unknown field,
a missing one or one of another type is an error that names its place. Files carry a `schema` of the form
`trtopt.KIND/N`; `records.schemas` knows which of them are read.

Units are in the names: `_ms` milliseconds, `_s` seconds, `_bytes` bytes. Shapes are tuples of integers;
in a model's own description a symbolic axis is its name, an anonymous one is "?".
"""

from trtopt.records.base import (
    AnyRecord,
    Record,
    Shape,
    from_json,
    to_json,
)
from trtopt.records.building import (
    BUILD_SCHEMA,
    Backend,
    BuildPlan,
    BuildSettings,
    EngineArtifact,
    Manifest,
    Plugin,
    ShapeRange,
)
from trtopt.records.machine import (
    Component,
    DeviceInfo,
    Survey,
)
from trtopt.records.measuring import (
    BENCH_SCHEMA,
    AllocationEvent,
    AllocationKind,
    BenchPoint,
    BenchReport,
    ClockReading,
    ClockReference,
    Contract,
    EngineRef,
    Environment,
    LayerPass,
    LayerTime,
    Measurement,
    MemoryPass,
    Samples,
    Terms,
)
from trtopt.records.models import (
    OnnxArtifact,
    TensorSpec,
)
from trtopt.records.schemas import read_versioned

__all__ = [
    "BENCH_SCHEMA",
    "BUILD_SCHEMA",
    "AllocationEvent",
    "AllocationKind",
    "AnyRecord",
    "Backend",
    "BenchPoint",
    "BenchReport",
    "BuildPlan",
    "BuildSettings",
    "ClockReading",
    "ClockReference",
    "Component",
    "Contract",
    "DeviceInfo",
    "EngineArtifact",
    "EngineRef",
    "Environment",
    "LayerPass",
    "LayerTime",
    "Manifest",
    "Measurement",
    "MemoryPass",
    "OnnxArtifact",
    "Plugin",
    "Record",
    "Samples",
    "Shape",
    "ShapeRange",
    "Survey",
    "TensorSpec",
    "Terms",
    "from_json",
    "read_versioned",
    "to_json",
]
