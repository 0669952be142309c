"""The frozen records that flow between stages, and their JSON form.

Every record is immutable and knows nothing of files or devices. JSON is read strictly: an unknown field,
a missing one or one of another type is an error that names its place. Files carry a `schema` of the form
`trtopt.KIND/N`; `records.schemas` knows which of them are read.

Units are in the names: `_ms` milliseconds, `_s` seconds, `_bytes` bytes. Shapes are tuples of integers;
in a model's own description a symbolic axis is its name, an anonymous one is "?".
"""

from trtopt.records.base import (
    AnyRecord as AnyRecord,
)
from trtopt.records.base import (
    Record as Record,
)
from trtopt.records.base import (
    Shape as Shape,
)
from trtopt.records.base import (
    from_json as from_json,
)
from trtopt.records.base import (
    to_json as to_json,
)
from trtopt.records.building import (
    BUILD_SCHEMA as BUILD_SCHEMA,
)
from trtopt.records.building import (
    Backend as Backend,
)
from trtopt.records.building import (
    BuildClocks as BuildClocks,
)
from trtopt.records.building import (
    BuildPlan as BuildPlan,
)
from trtopt.records.building import (
    BuildSettings as BuildSettings,
)
from trtopt.records.building import (
    EngineArtifact as EngineArtifact,
)
from trtopt.records.building import (
    Manifest as Manifest,
)
from trtopt.records.building import (
    Plugin as Plugin,
)
from trtopt.records.building import (
    RewriteSummary as RewriteSummary,
)
from trtopt.records.caching import (
    CacheDifference as CacheDifference,
)
from trtopt.records.caching import (
    CacheEntry as CacheEntry,
)
from trtopt.records.caching import (
    CacheTerms as CacheTerms,
)
from trtopt.records.caching import (
    Identity as Identity,
)
from trtopt.records.caching import (
    Tactic as Tactic,
)
from trtopt.records.caching import (
    TimedBuild as TimedBuild,
)
from trtopt.records.collecting import (
    Collected as Collected,
)
from trtopt.records.comparing import (
    COMPARE_SCHEMA as COMPARE_SCHEMA,
)
from trtopt.records.comparing import (
    CompareReport as CompareReport,
)
from trtopt.records.comparing import (
    InterleavedRun as InterleavedRun,
)
from trtopt.records.comparing import (
    Purpose as Purpose,
)
from trtopt.records.comparing import (
    TurnSamples as TurnSamples,
)
from trtopt.records.inspecting import (
    PEAKS_SCHEMA as PEAKS_SCHEMA,
)
from trtopt.records.inspecting import (
    PROFILE_SCHEMA as PROFILE_SCHEMA,
)
from trtopt.records.inspecting import (
    Change as Change,
)
from trtopt.records.inspecting import (
    Coverage as Coverage,
)
from trtopt.records.inspecting import (
    DevicePeaks as DevicePeaks,
)
from trtopt.records.inspecting import (
    EngineDescription as EngineDescription,
)
from trtopt.records.inspecting import (
    EngineDifference as EngineDifference,
)
from trtopt.records.inspecting import (
    EngineLayer as EngineLayer,
)
from trtopt.records.inspecting import (
    EngineProfile as EngineProfile,
)
from trtopt.records.inspecting import (
    EngineTensor as EngineTensor,
)
from trtopt.records.inspecting import (
    Fallback as Fallback,
)
from trtopt.records.inspecting import (
    Fusion as Fusion,
)
from trtopt.records.inspecting import (
    LayerChange as LayerChange,
)
from trtopt.records.inspecting import (
    LayerCost as LayerCost,
)
from trtopt.records.inspecting import (
    LayerGroup as LayerGroup,
)
from trtopt.records.inspecting import (
    LiveAllocation as LiveAllocation,
)
from trtopt.records.inspecting import (
    MappedBy as MappedBy,
)
from trtopt.records.inspecting import (
    MeasuredPeaks as MeasuredPeaks,
)
from trtopt.records.inspecting import (
    MemoryTimeline as MemoryTimeline,
)
from trtopt.records.inspecting import (
    Peak as Peak,
)
from trtopt.records.inspecting import (
    PhaseMemory as PhaseMemory,
)
from trtopt.records.inspecting import (
    PrecisionReceipt as PrecisionReceipt,
)
from trtopt.records.inspecting import (
    ProfiledLayer as ProfiledLayer,
)
from trtopt.records.inspecting import (
    ProfileReport as ProfileReport,
)
from trtopt.records.inspecting import (
    RooflineTotal as RooflineTotal,
)
from trtopt.records.inspecting import (
    Unfused as Unfused,
)
from trtopt.records.machine import (
    Component as Component,
)
from trtopt.records.machine import (
    DeviceInfo as DeviceInfo,
)
from trtopt.records.machine import (
    MachineSurvey as MachineSurvey,
)
from trtopt.records.measuring import (
    BENCH_SCHEMA as BENCH_SCHEMA,
)
from trtopt.records.measuring import (
    MORE_CONTEXTS as MORE_CONTEXTS,
)
from trtopt.records.measuring import (
    AllocationEvent as AllocationEvent,
)
from trtopt.records.measuring import (
    AllocationKind as AllocationKind,
)
from trtopt.records.measuring import (
    BenchPoint as BenchPoint,
)
from trtopt.records.measuring import (
    BenchReport as BenchReport,
)
from trtopt.records.measuring import (
    ClockReading as ClockReading,
)
from trtopt.records.measuring import (
    ClockReference as ClockReference,
)
from trtopt.records.measuring import (
    Contract as Contract,
)
from trtopt.records.measuring import (
    EngineRef as EngineRef,
)
from trtopt.records.measuring import (
    Environment as Environment,
)
from trtopt.records.measuring import (
    LayerPass as LayerPass,
)
from trtopt.records.measuring import (
    LayerTime as LayerTime,
)
from trtopt.records.measuring import (
    LoadPass as LoadPass,
)
from trtopt.records.measuring import (
    LoadSearch as LoadSearch,
)
from trtopt.records.measuring import (
    Measurement as Measurement,
)
from trtopt.records.measuring import (
    MemoryPass as MemoryPass,
)
from trtopt.records.measuring import (
    RateProbe as RateProbe,
)
from trtopt.records.measuring import (
    Samples as Samples,
)
from trtopt.records.measuring import (
    Terms as Terms,
)
from trtopt.records.models import (
    OnnxArtifact as OnnxArtifact,
)
from trtopt.records.models import (
    TensorSpec as TensorSpec,
)
from trtopt.records.planning import (
    PLAN_SCHEMA as PLAN_SCHEMA,
)
from trtopt.records.planning import (
    BatchPlan as BatchPlan,
)
from trtopt.records.planning import (
    Beyond as Beyond,
)
from trtopt.records.planning import (
    Estimate as Estimate,
)
from trtopt.records.planning import (
    PackingEstimate as PackingEstimate,
)
from trtopt.records.planning import (
    PlannedEngine as PlannedEngine,
)
from trtopt.records.planning import (
    PlannedLoad as PlannedLoad,
)
from trtopt.records.planning import (
    Prediction as Prediction,
)
from trtopt.records.planning import (
    Rejected as Rejected,
)
from trtopt.records.planning import (
    Served as Served,
)
from trtopt.records.planning import (
    ServingCost as ServingCost,
)
from trtopt.records.planning import (
    Verification as Verification,
)
from trtopt.records.profiles import (
    MAX_PROFILES as MAX_PROFILES,
)
from trtopt.records.profiles import (
    Profile as Profile,
)
from trtopt.records.profiles import (
    ShapeRange as ShapeRange,
)
from trtopt.records.profiles import (
    Span as Span,
)
from trtopt.records.profiles import (
    suited as suited,
)
from trtopt.records.schemas import (
    kind_of as kind_of,
)
from trtopt.records.schemas import (
    read_versioned as read_versioned,
)
from trtopt.records.serving import (
    BatcherStatistics as BatcherStatistics,
)
from trtopt.records.serving import (
    BatchPolicy as BatchPolicy,
)
from trtopt.records.serving import (
    PoolUsage as PoolUsage,
)
from trtopt.records.serving import (
    Spread as Spread,
)
from trtopt.records.sweeping import (
    SWEEP_SCHEMA as SWEEP_SCHEMA,
)
from trtopt.records.sweeping import (
    PointMemory as PointMemory,
)
from trtopt.records.sweeping import (
    PointPower as PointPower,
)
from trtopt.records.sweeping import (
    SweepPoint as SweepPoint,
)
from trtopt.records.sweeping import (
    SweepReport as SweepReport,
)
from trtopt.records.sweeping import (
    SweepSetting as SweepSetting,
)
from trtopt.records.sweeping import (
    SweepTerms as SweepTerms,
)
from trtopt.records.verdicts import (
    BatchVerdict as BatchVerdict,
)
from trtopt.records.verdicts import (
    Candidate as Candidate,
)
from trtopt.records.verdicts import (
    CandidateTime as CandidateTime,
)
from trtopt.records.verdicts import (
    ComparisonVerdict as ComparisonVerdict,
)
from trtopt.records.verdicts import (
    PrecisionVerdict as PrecisionVerdict,
)
from trtopt.records.verdicts import (
    RegionTime as RegionTime,
)
