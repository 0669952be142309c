"""Whole records for tests: every optional field is set, so that each can be changed or left out."""

from __future__ import annotations

from trtopt.records import (
    AllocationEvent,
    Backend,
    BatchVerdict,
    BenchPoint,
    BenchReport,
    BuildPlan,
    BuildSettings,
    Candidate,
    CandidateTime,
    ClockReading,
    ClockReference,
    CompareReport,
    ComparisonVerdict,
    Component,
    Contract,
    DeviceInfo,
    EngineArtifact,
    EngineRef,
    Environment,
    InterleavedRun,
    LayerPass,
    LayerTime,
    Loading,
    MachineSurvey,
    Manifest,
    MeasuredRunSpread,
    Measurement,
    MemoryPass,
    OnnxArtifact,
    Plugin,
    PointMemory,
    PrecisionVerdict,
    Profile,
    RegionTime,
    Samples,
    ShapeRange,
    Spread,
    SweepPoint,
    SweepReport,
    SweepSetting,
    SweepTerms,
    TensorSpec,
    TurnSamples,
)
from trtopt.records.precision import OutputDifference, Violation

TENSORRT = Backend(name="tensorrt", version="10.16.1")
X = TensorSpec(name="x", dtype="float32", shape=("N", 4))
Y = TensorSpec(name="y", dtype="float16", shape=("N", "?"))
GPU = DeviceInfo(
    kind="gpu",
    name="A GPU",
    uuid="GPU-1",
    compute_capability="8.9",
    memory_bytes=1 << 34,
    driver="580.95.05",
    cuda="13.0",
    binding="cuda-python 13.4",
)


def plan(batch: int = 8) -> BuildPlan:
    return BuildPlan(
        onnx_sha256="a" * 64,
        batch=ShapeRange(min=(batch,), opt=(batch,), max=(batch,)),
        shapes={
            "x": ShapeRange(min=(batch, 1), opt=(batch, 2), max=(batch, 3)),
            "ids": ShapeRange(min=(batch, 4), opt=(batch, 5), max=(batch, 6)),
        },
        settings=BuildSettings(
            opt_level=3,
            workspace_bytes=1 << 30,
            tactic_sources=("JIT_CONVOLUTIONS",),
            compute_capabilities=("8.9",),
            plugins=(Plugin(path="/plugin.so", sha256="b" * 64),),
            reproducible=True,
            aux_streams=2,
            avg_timing=4,
            tiling="full",
            l2_limit_bytes=1 << 20,
            build_route="-knob=1",
            graph_optimization="basic",
            intra_op_threads=2,
            execution_mode="parallel",
        ),
        backend=TENSORRT,
        multi_profile=(
            Profile(
                batch=ShapeRange(min=(batch,), opt=(batch,), max=(batch,)),
                shapes={
                    "x": ShapeRange(min=(batch, 1), opt=(batch, 2), max=(batch, 3)),
                    "ids": ShapeRange(min=(batch, 4), opt=(batch, 5), max=(batch, 6)),
                },
            ),
        ),
        io_layouts={"x": "chw4"},
    )


def run_spread(deviation: float, runs: int) -> MeasuredRunSpread:
    return MeasuredRunSpread(created="", device=GPU, deviation=deviation, runs=runs)


def engine(batch: int = 8) -> EngineArtifact:
    return EngineArtifact(
        path=f"batch{batch}.engine",
        sha256="c" * 64,
        size_bytes=1000,
        plan=plan(batch),
        inputs=(X,),
        outputs=(Y,),
        device=GPU,
        build_seconds=12.5,
        builder_config={"flags": "FP16"},
        timing_cache_in="d" * 64,
        timing_cache_out="e" * 64,
        timing_cache_hits=3,
        log=f"batch{batch}.log",
        warnings=2,
    )


def onnx() -> OnnxArtifact:
    return OnnxArtifact(
        path="model.onnx",
        sha256="a" * 64,
        opset=17,
        inputs=(X,),
        outputs=(Y,),
        types=("float16", "float32"),
        parent="trained.onnx",
    )


def manifest() -> Manifest:
    return Manifest(
        trtopt="0.1.0",
        created="2025-01-01T00:00:00+00:00",
        argv=("trtopt", "build"),
        onnx=onnx(),
        graphs=(onnx(),),
        engines=(engine(1), engine(8)),
        verdict=verdict(),
        notes=("a note",),
    )


def verdict() -> PrecisionVerdict:
    region = RegionTime(
        nodes=("conv",),
        float_ms=1.0,
        quantised_ms=1.5,
        loses=True,
    )
    judged = ComparisonVerdict(batch=8, verdict="SLOWER", ratio=1.5, low=1.25, high=1.75, reasons=("slower",))
    difference = OutputDifference(output="y", values=8, cosine=0.5, sqnr_db=20.0, max_abs=0.25, top1=0.75)
    violation = Violation(output="y", measure="cosine", found=0.5, bound=0.99)
    return PrecisionVerdict(
        requested="int8",
        baseline="fp16",
        threshold=0.01,
        device="A GPU",
        contract="trtexec-11",
        data="samples.npz",
        bounds={"min_cosine": 0.99},
        candidates=(
            Candidate(
                name="int8",
                precision="int8",
                onnx_sha256="a" * 64,
                differences=(difference,),
                violations=(violation,),
                left=("conv",),
            ),
        ),
        batches=(
            BatchVerdict(
                engine="batch8",
                batch=8,
                chosen="fp16",
                reason="int8 is slower",
                times=(CandidateTime(candidate="int8", latency_ms=1.5, against_baseline=judged),),
                regions={"int8": (region,)},
            ),
        ),
        notes=("a note",),
    )


def samples() -> Samples:
    return Samples(
        start_ms=[0.0, 1.0],
        end_ms=[2.0, 3.5],
        enqueue_ms=[0.1, 0.1],
        gpu_compute_ms=[1.0, 1.25],
        h2d_ms=[0.5, 0.5],
        d2h_ms=[0.25, 0.25],
        inference_stream=[0, 1],
        group=[0, 2],
    )


def measurement() -> Measurement:
    return Measurement(
        mode="throughput",
        contract=Contract(name="own", graph=True, transfers=True, queue_ahead=1, sync="spin", streams=2),
        engine=EngineRef(path="batch8.engine", sha256="c" * 64, label="batch8"),
        batch=8,
        shapes={"x": (8, 4)},
        samples=samples(),
        staged=samples(),
        warmups=samples(),
        clocks=(
            ClockReading(
                at_ms=0.5,
                sm_mhz=1980,
                power_w=321.5,
                energy_j=1000.5,
                temperature_c=61,
                throttle=("sw_power_cap",),
                other_processes=1,
            ),
        ),
        clock_reference=ClockReference(mhz=1980, kind="maximum", problem="a problem"),
        groups=((), ("hw slowdown",), ()),
        discarded=2,
        discarded_samples=samples(),
        untrustworthy=("too hot",),
        failure="a failure",
        stop_reason="time limit",
        warmup_reason="settled",
        notes=("a note",),
    )


def report() -> BenchReport:
    event = AllocationEvent(at_ms=0.5, kind="allocate", size_bytes=256, address=1024, phase="load", stream=7)
    point = BenchPoint(
        batch=8,
        latency=measurement(),
        throughput=measurement(),
        single_stream=measurement(),
        failure="another failure",
        layers=LayerPass(runs=2, layers=(LayerTime(name="conv", ms=[0.5, 0.75]),)),
        memory=MemoryPass(
            events=(event,), buffers_bytes=512, engine_device_bytes=1024, driver_used_bytes=4096
        ),
    )
    return BenchReport(
        created="2025-01-01T00:00:00+00:00",
        argv=("trtopt", "bench"),
        environment=Environment(
            device=GPU,
            backend=TENSORRT,
            trtopt="0.1.0",
            python="3.11.7",
            platform="Linux",
            cpu="A CPU",
            git_revision="f" * 40,
        ),
        model_sha256="a" * 64,
        source_sha256="b" * 64,
        points=(point,),
        notes=("a note",),
    )


def comparison() -> CompareReport:
    reading = ClockReading(
        at_ms=0.5,
        sm_mhz=1980,
        power_w=321.5,
        temperature_c=61,
        throttle=("power",),
        other_processes=0,
    )
    turns = TurnSamples(
        name="A",
        engine=EngineRef(path="batch8.engine", sha256="c" * 64, label="batch8"),
        contract=measurement().contract,
        mode="latency",
        blocks=(samples(),),
        warmups=(samples(),),
        notes=("a note",),
    )
    run = InterleavedRun(
        purpose="comparison",
        batch=8,
        environment=report().environment,
        turns=(turns,),
        clocks=(reading,),
        clock_reference=ClockReference(mhz=1980, kind="application", problem="none"),
        seed=7,
        order=(0,),
        loadings=(Loading(round=0, order=(0,), took_s=0.1, clock=reading),),
    )
    verdict = ComparisonVerdict(
        batch=8, verdict="SAME", ratio=1.0, low=0.99, high=1.01, reasons=("a reason",)
    )
    return CompareReport(
        created="2025-01-01T00:00:00+00:00",
        argv=("trtopt", "compare"),
        threshold=0.01,
        runs=(run,),
        built=(engine(),),
        verdicts=(verdict,),
        notes=("a note",),
    )


def sweep_terms() -> SweepTerms:
    return SweepTerms(
        model_sha256="a" * 64,
        backend=TENSORRT,
        device=GPU,
        contract=Contract(name="own", graph=True, transfers=True, queue_ahead=1, sync="spin"),
        recipe="{}",
        warmup_s=0.25,
        duration_s=2.0,
        data="b" * 64,
    )


def sweep_point() -> SweepPoint:
    setting = SweepSetting(precision="fp16", batch=8, streams=2, axes={"seq": 4})
    return SweepPoint(
        key=setting.key(sweep_terms()),
        setting=setting,
        shapes={"x": (8, 4)},
        build="builds/fp16-seq4",
        engine=EngineRef(path="builds/fp16-seq4/batch8.engine", sha256="c" * 64, label="batch8"),
        engine_bytes=1000,
        build_seconds=12.5,
        result="results/fp16-batch8-seq4-streams2.json",
        queries=100,
        latency=Spread(p50_ms=1.0, p90_ms=1.25, p99_ms=1.5, max_ms=2.0),
        busy_latency=Spread(p50_ms=2.0, p90_ms=2.25, p99_ms=2.5, max_ms=3.0),
        samples_per_s=8000.0,
        queries_per_s=1000.0,
        memory=PointMemory(peak_bytes=4096, buffers_bytes=512, context_bytes=1024),
        watts=250.0,
        untrustworthy=("too hot",),
        unsteady=("latency drifted",),
        failure="a failure",
    )


def sweep() -> SweepReport:
    return SweepReport(
        created="2025-01-01T00:00:00+00:00",
        argv=("trtopt", "sweep"),
        model="model.onnx",
        terms=sweep_terms(),
        environment=report().environment,
        points=(sweep_point(),),
    )


def survey() -> MachineSurvey:
    missing = Component(name="tensorrt", version=None, problem="not installed", remedy="pip install it")
    present = Component(name="onnxruntime", version="1.31.1")
    return MachineSurvey(
        python="3.11.7",
        platform="Linux",
        cpu="A CPU",
        gpus=(GPU,),
        tensorrt=missing,
        tensorrt_rtx=missing,
        onnxruntime=present,
        cuda_bindings=(present, missing),
        nvml=present,
    )
