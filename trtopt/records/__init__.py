"""The frozen records that flow between stages, and their JSON form.

Every record is immutable and knows nothing of files or devices. JSON is read strictly: an unknown field,
a missing one or one of another type is an error that names its place. Files carry a `schema` of the form
`trtopt.KIND/N`; `records.schemas` knows which of them are read.

Units are in the names: `_ms` milliseconds, `_s` seconds, `_bytes` bytes. Shapes are tuples of integers;
in a model's own description a symbolic axis is its name, an anonymous one is "?".
"""

from trtopt.records.base import (
    AnyRecord as AnyRecord,
    Record as Record,
    Shape as Shape,
    from_json as from_json,
    to_json as to_json,
)
from trtopt.records.batch_split import BatchSplit as BatchSplit
from trtopt.records.building import (
    BUILD_SCHEMA as BUILD_SCHEMA,
    Backend as Backend,
    BuildClocks as BuildClocks,
    BuildPlan as BuildPlan,
    BuildSettings as BuildSettings,
    EngineArtifact as EngineArtifact,
    Manifest as Manifest,
    OnnxArtifact as OnnxArtifact,
    Plugin as Plugin,
    RewriteSummary as RewriteSummary,
    Segment as Segment,
    TensorSpec as TensorSpec,
)
from trtopt.records.caching import (
    CacheDifference as CacheDifference,
    CacheEntry as CacheEntry,
    CacheTerms as CacheTerms,
    Identity as Identity,
    Tactic as Tactic,
    TimedBuild as TimedBuild,
)
from trtopt.records.comparing import (
    COMPARE_SCHEMA as COMPARE_SCHEMA,
    CompareReport as CompareReport,
    InterleavedRun as InterleavedRun,
    Loading as Loading,
    MeasuredRunSpread as MeasuredRunSpread,
    Purpose as Purpose,
    TurnSamples as TurnSamples,
)
from trtopt.records.inspecting import (
    PEAKS_SCHEMA as PEAKS_SCHEMA,
    PROFILE_SCHEMA as PROFILE_SCHEMA,
    Change as Change,
    Collected as Collected,
    Coverage as Coverage,
    DevicePeaks as DevicePeaks,
    EngineDescription as EngineDescription,
    EngineDifference as EngineDifference,
    EngineLayer as EngineLayer,
    EngineProfile as EngineProfile,
    EngineTensor as EngineTensor,
    Fallback as Fallback,
    Fusion as Fusion,
    LayerChange as LayerChange,
    LayerCost as LayerCost,
    LayerGroup as LayerGroup,
    LiveAllocation as LiveAllocation,
    MappedBy as MappedBy,
    MeasuredPeaks as MeasuredPeaks,
    MemoryTimeline as MemoryTimeline,
    Peak as Peak,
    PhaseMemory as PhaseMemory,
    PrecisionReceipt as PrecisionReceipt,
    ProfiledLayer as ProfiledLayer,
    ProfileReport as ProfileReport,
    RooflineTotal as RooflineTotal,
    Unfused as Unfused,
)
from trtopt.records.kernels import (
    ActivityKind as ActivityKind,
    Confidence as Confidence,
    KernelActivity as KernelActivity,
    KernelChange as KernelChange,
    KernelFamily as KernelFamily,
    KernelGroup as KernelGroup,
    KernelLaunch as KernelLaunch,
    KernelPass as KernelPass,
    KernelReport as KernelReport,
    KernelRow as KernelRow,
    LaunchCall as LaunchCall,
    NvtxRange as NvtxRange,
    TracedRun as TracedRun,
)
from trtopt.records.machine import (
    Component as Component,
    DeviceInfo as DeviceInfo,
    MachineSurvey as MachineSurvey,
)
from trtopt.records.measuring import (
    BENCH_SCHEMA as BENCH_SCHEMA,
    MORE_CONTEXTS as MORE_CONTEXTS,
    AllocationEvent as AllocationEvent,
    AllocationKind as AllocationKind,
    BenchPoint as BenchPoint,
    BenchReport as BenchReport,
    ClockReading as ClockReading,
    ClockReference as ClockReference,
    Contract as Contract,
    EngineRef as EngineRef,
    Environment as Environment,
    LayerPass as LayerPass,
    LayerTime as LayerTime,
    LoadPass as LoadPass,
    LoadSearch as LoadSearch,
    Measurement as Measurement,
    MemoryPass as MemoryPass,
    RateProbe as RateProbe,
    Samples as Samples,
    Terms as Terms,
    Trust as Trust,
)
from trtopt.records.planning import (
    PLAN_SCHEMA as PLAN_SCHEMA,
    BatchPlan as BatchPlan,
    Beyond as Beyond,
    Estimate as Estimate,
    PlannedEngine as PlannedEngine,
    PlannedLoad as PlannedLoad,
    Prediction as Prediction,
    Rejected as Rejected,
    Served as Served,
    ServingCost as ServingCost,
    Verification as Verification,
)
from trtopt.records.profiles import (
    MAX_PROFILES as MAX_PROFILES,
    Profile as Profile,
    ShapeRange as ShapeRange,
    Span as Span,
    suited as suited,
)
from trtopt.records.schemas import kind_of as kind_of, read_versioned as read_versioned
from trtopt.records.serving import (
    BatcherStatistics as BatcherStatistics,
    BatchPolicy as BatchPolicy,
    PoolUsage as PoolUsage,
    Spread as Spread,
)
from trtopt.records.starting import (
    ColdStart as ColdStart,
    ColdStarts as ColdStarts,
    IdleGap as IdleGap,
    IdlePass as IdlePass,
)
from trtopt.records.sweeping import (
    SWEEP_SCHEMA as SWEEP_SCHEMA,
    PointMemory as PointMemory,
    PointPower as PointPower,
    SweepPoint as SweepPoint,
    SweepReport as SweepReport,
    SweepSetting as SweepSetting,
    SweepTerms as SweepTerms,
)
from trtopt.records.tuning import (
    LEDGER_SCHEMA as LEDGER_SCHEMA,
    FinalRace as FinalRace,
    Ledger as Ledger,
    LedgerEntry as LedgerEntry,
    Objective as Objective,
    PredictionScore as PredictionScore,
    TuneBaseline as TuneBaseline,
    Tuned as Tuned,
    TuneScore as TuneScore,
    TuneTerms as TuneTerms,
)
from trtopt.records.verdicts import (
    BatchVerdict as BatchVerdict,
    Candidate as Candidate,
    CandidateTime as CandidateTime,
    ComparisonVerdict as ComparisonVerdict,
    PrecisionVerdict as PrecisionVerdict,
    RegionTime as RegionTime,
    TuningChoice as TuningChoice,
)
