"""Every option of trtexec 8.6, 10 and 11, and what it is in trtopt: the one table.

The translator (`trtopt trtexec`), the answers to options of trtexec given to other commands, and the table in
docs/coming-from/trtexec.md are made from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trtopt.targets import ROWS, TENSORRT

VERSIONS = tuple(dict.fromkeys(row.name for row in ROWS if row.backend == TENSORRT))
"""Of trtexec: it comes with TensorRT."""
GRAPHS_BY_DEFAULT = VERSIONS[2:]
"""Those that by default measure with a CUDA graph, without copies and with a spinning host."""
LIBRARIES_BY_DEFAULT = VERSIONS[:1]
"""Those whose default tactic sources depend on the libraries that are installed."""
Kind = Literal["translated", "no effect", "refused"]
CALIBRATION_DATA = "--data"
"""The option of `trtopt build` for samples."""
INPUT_DATA = "--data"
"""The option of `trtopt bench` for samples."""


@dataclass(frozen=True)
class TrtexecOption:
    """One option: who has it, and what becomes of it.

    `value` is the placeholder of its value, empty for a switch. `build` and `bench` are the words for these
    commands, with `{}` for the value; empty where the translator works it out together with other options.
    `harmless` are values of a refused option that change nothing.
    """

    name: str
    versions: tuple[str, ...]
    value: str
    kind: Kind
    form: str
    note: str = ""
    build: tuple[str, ...] = ()
    bench: tuple[str, ...] = ()
    harmless: tuple[str, ...] = ()


_ALL = VERSIONS
_TO_10, _FROM_10 = VERSIONS[:2], VERSIONS[1:]
_ONLY_8, _ONLY_10, _FROM_11 = VERSIONS[:1], VERSIONS[1:2], VERSIONS[2:]


def _build(
    name: str, versions: tuple[str, ...], value: str, words: str, note: str = "", *, bench: str = ""
) -> TrtexecOption:
    """An option that becomes words of `trtopt build`, and perhaps of `trtopt bench`."""
    form = f"build {words}".replace("{}", value)
    return TrtexecOption(
        name, versions, value, "translated", form, note, tuple(words.split()), tuple(bench.split())
    )


def _bench(name: str, versions: tuple[str, ...], value: str, words: str, note: str = "") -> TrtexecOption:
    form = f"bench {words}".replace("{}", value)
    return TrtexecOption(name, versions, value, "translated", form, note, bench=tuple(words.split()))


def _joint(name: str, versions: tuple[str, ...], value: str, form: str, note: str = "") -> TrtexecOption:
    """An option that the translator works out together with others."""
    return TrtexecOption(name, versions, value, "translated", form, note)


def _none(name: str, versions: tuple[str, ...], value: str, note: str) -> TrtexecOption:
    return TrtexecOption(name, versions, value, "no effect", "–", note)


def _refused(
    name: str, versions: tuple[str, ...], value: str, remedy: str, harmless: tuple[str, ...] = ()
) -> TrtexecOption:
    return TrtexecOption(name, versions, value, "refused", "–", remedy, harmless=harmless)


_OTHER_FORMATS = "convert the model to ONNX"
_EXPLICIT_BATCH = "ONNX models have an explicit batch axis: give --shapes=INPUT:Nx…"
_ALLOWED = "trtexec allows the type, trtopt writes it into the graph"
_CALIBRATED = f"{_ALLOWED}; a model without Q/DQ needs samples: trtopt trtexec --data DATA"
_IN_THE_GRAPH = "types are written into the graph: trtopt cast MODEL -o OUT --exclude PATTERN"
_DEFAULTS = "TensorRT's default is used"
_NO_REFIT = "trtopt's engines are not refitted: omit it, and build again where weights change"
_NO_COMPATIBILITY = "omit it, and build on each system: trtopt build --locked FOLDER repeats a build"
_NO_DLA = "trtopt builds for GPUs only: omit it, or stay with trtexec for DLA"
_NO_SAFETY = "trtopt builds no safety-certified engines: omit it, or stay with trtexec"
_NO_STREAMING = "trtopt's engines keep all weights on the GPU: omit it"
_NO_DEBUG = "omit it; trtopt check MODEL --against REFERENCE --layers compares inner tensors"
_NO_REFERENCE = "omit it; trtopt check ENGINE --against MODEL --min-cosine 0.99 compares outputs"
_TYPED_IO = "omit it; trtopt build --io NAME=TYPE:LAYOUT types inputs and outputs"
_NO_ROUTES = "omit it; trtopt sweep measures batch sizes and precisions"
_CHECK_OUTPUTS = "outputs are not stored; trtopt check ENGINE --against MODEL compares them"
_GENTLE = "omit it; trtopt bench --load RATE sends queries at a rate"
_PLUGIN = "native code: trtopt bench loads it by --trust"

OPTIONS = (
    # model
    _joint("--onnx", _ALL, "FILE", "build FILE"),
    _refused("--uff", _ONLY_8, "FILE", _OTHER_FORMATS),
    _refused("--uffInput", _ONLY_8, "SPEC", _OTHER_FORMATS),
    _refused("--uffNHWC", _ONLY_8, "", _OTHER_FORMATS),
    _refused("--model", _ONLY_8, "FILE", _OTHER_FORMATS),
    _refused("--deploy", _ONLY_8, "FILE", _OTHER_FORMATS),
    _refused("--output", _ONLY_8, "NAME", _OTHER_FORMATS),
    # engines
    _joint("--saveEngine", _ALL, "FILE", "build -o FOLDER", "a folder: the engine, its logs and a manifest"),
    _joint("--loadEngine", _ALL, "FILE", "bench FILE --trust FILE", "an engine is native code"),
    _joint("--skipInference", _ALL, "", "build", "without it the engines are measured too"),
    _joint("--buildOnly", _ONLY_8, "", "build", "without it the engines are measured too"),
    _none("--asyncFileReader", _FROM_10, "", "engines are read in one piece"),
    _refused("--getPlanVersionOnly", _FROM_10, "", "omit it; manifest.json of a build names the version"),
    _refused("--timeDeserialize", _ALL, "", "omit it: trtopt does not time loading an engine"),
    # shapes
    _joint("--minShapes", _ALL, "SPEC", "build --dynamic --batch MIN,OPT,MAX --shape NAME:MIN,OPT,MAX"),
    _joint("--optShapes", _ALL, "SPEC", "build --dynamic --batch MIN,OPT,MAX --shape NAME:MIN,OPT,MAX"),
    _joint("--maxShapes", _ALL, "SPEC", "build --dynamic --batch MIN,OPT,MAX --shape NAME:MIN,OPT,MAX"),
    _joint("--shapes", _ALL, "SPEC", "build, bench --batch N --shape NAME:SHAPE", "axis 0 is the batch"),
    _joint("--profile", _FROM_10, "N", "build --dynamic --batch …", "one --batch per optimisation profile"),
    _none("--useProfile", _FROM_10, "N", "trtopt selects the profile by the batch size"),
    _none("--minShapesCalib", _TO_10, "SPEC", "calibration takes the shapes of the samples"),
    _none("--optShapesCalib", _TO_10, "SPEC", "calibration takes the shapes of the samples"),
    _none("--maxShapesCalib", _TO_10, "SPEC", "calibration takes the shapes of the samples"),
    _none("--calibProfile", _ONLY_10, "N", "calibration takes the shapes of the samples"),
    _refused("--batch", _ONLY_8, "N", _EXPLICIT_BATCH),
    _refused("--maxBatch", _ONLY_8, "N", _EXPLICIT_BATCH),
    _none("--explicitBatch", _ONLY_8, "", "always so for ONNX"),
    # types
    _joint("--fp16", _TO_10, "", "build --precision fp16", _ALLOWED),
    _joint("--bf16", _ONLY_10, "", "build --precision bf16", _ALLOWED),
    _joint("--int8", _TO_10, "", "build --precision int8", _CALIBRATED),
    _joint("--fp8", _TO_10, "", "build --precision fp8", _CALIBRATED),
    _joint("--int4", _ONLY_10, "", "build --precision int4", _ALLOWED),
    _joint(
        "--best", _TO_10, "", "build --precision best", "measured; needs samples: trtopt trtexec --data DATA"
    ),
    _none(
        "--stronglyTyped", _FROM_10, "", "the types of the graph always hold; trtexec 11 has no other mode"
    ),
    _none("--explicitPrecision", _ONLY_8, "", "deprecated in trtexec"),
    _refused("--noTF32", _ALL, "", "omit it: trtopt leaves TF32 as TensorRT has it"),
    _refused(
        "--calib", _TO_10, "FILE", "give samples instead of a calibration cache: trtopt trtexec --data DATA"
    ),
    _refused("--precisionConstraints", _TO_10, "MODE", _IN_THE_GRAPH, ("none",)),
    _refused("--layerPrecisions", _TO_10, "SPEC", _IN_THE_GRAPH),
    _refused("--layerOutputTypes", _TO_10, "SPEC", _IN_THE_GRAPH),
    _refused("--inputIOFormats", _ALL, "SPEC", _TYPED_IO, ("chw", "fp32:chw")),
    _refused("--outputIOFormats", _ALL, "SPEC", _TYPED_IO, ("chw", "fp32:chw")),
    _none("--directIO", _ALL, "", "deprecated in trtexec"),
    # builder
    _build("--workspace", _ONLY_8, "MIB", "--workspace {}"),
    _joint("--memPoolSize", _ALL, "SPEC", "build --workspace MIB", "of the pools only workspace"),
    _build("--builderOptimizationLevel", _ALL, "N", "--opt-level {}"),
    _joint(
        "--tacticSources",
        _ALL,
        "SPEC",
        "build --tactic-sources NAME,NAME",
        "trtopt lists the sources to use; trtexec those that differ from the default",
    ),
    _build(
        "--timingCacheFile", _ALL, "FILE", "--timing-cache {}", "without it trtopt keeps a store of caches"
    ),
    _build("--noBuilderCache", _ALL, "", "--timing-cache none"),
    _none("--noCompilationCache", _FROM_10, "", _DEFAULTS),
    _build("--errorOnTimingCacheMiss", _FROM_10, "", "--reproducible"),
    _none("--profilingVerbosity", _ALL, "MODE", "trtopt's engines always carry detailed names"),
    _none("--nvtxMode", _ONLY_8, "MODE", "trtopt's engines always carry detailed names"),
    _none("--minTiming", _ONLY_8, "N", _DEFAULTS),
    _build("--avgTiming", _ALL, "N", "--avg-timing {}"),
    _none("--heuristic", _ONLY_8, "", _DEFAULTS),
    _none("--maxTactics", _FROM_10, "N", _DEFAULTS),
    _build("--maxAuxStreams", _ALL, "N", "--aux-streams {}"),
    _joint(
        "--tilingOptimizationLevel",
        _FROM_10,
        "N",
        "build --tiling LEVEL",
        "0 to 3: none, fast, moderate, full",
    ),
    _joint("--l2LimitForTiling", _FROM_10, "BYTES", "build --l2-limit MIB", "MiB instead of bytes"),
    _none("--preview", _ALL, "SPEC", _DEFAULTS),
    _none("--decomposableAttentions", _FROM_10, "SPEC", _DEFAULTS),
    _none("--distributiveIndependence", _FROM_10, "", _DEFAULTS),
    _none("--pluginInstanceNorm", _FROM_10, "", _DEFAULTS),
    _none("--pi", _FROM_10, "", _DEFAULTS),
    _none("--enablePluginOverride", _FROM_10, "", _DEFAULTS),
    _none("--tempdir", _ALL, "DIR", "the environment's TMPDIR counts"),
    _none("--tempfileControls", _ALL, "SPEC", _DEFAULTS),
    _none("--monitorMemory", _FROM_10, "", "trtopt build --memory traces the builder's allocations"),
    _refused("--sparsity", _ALL, "MODE", "omit it: trtopt builds dense tactics only", ("disable",)),
    _refused("--refit", _ALL, "", _NO_REFIT),
    _refused("--stripWeights", _FROM_10, "", _NO_REFIT),
    _refused("--stripAllWeights", _FROM_10, "", _NO_REFIT),
    _refused("--weightless", _ONLY_10, "", _NO_REFIT),
    _refused("--refitFromOnnx", _FROM_10, "FILE", _NO_REFIT),
    _refused("--timeRefit", _ALL, "", _NO_REFIT),
    _refused("--dumpRefit", _ALL, "", _NO_REFIT),
    _refused("--versionCompatible", _ALL, "", _NO_COMPATIBILITY),
    _refused("--vc", _ALL, "", _NO_COMPATIBILITY),
    _refused("--excludeLeanRuntime", _ALL, "", _NO_COMPATIBILITY),
    _refused("--leanDLLPath", _ALL, "FILE", _NO_COMPATIBILITY),
    _refused("--useRuntime", _ALL, "NAME", _NO_COMPATIBILITY, ("full",)),
    _refused("--runtimePlatform", _FROM_10, "NAME", _NO_COMPATIBILITY, ("SameAsBuild",)),
    _refused(
        "--hardwareCompatibilityLevel",
        _ALL,
        "MODE",
        "omit it, and build on each GPU; TensorRT-RTX: trtopt build --compute-capability CC,CC",
        ("none",),
    ),
    _refused("--allowWeightStreaming", _FROM_10, "", _NO_STREAMING),
    _refused("--weightStreamingBudget", _FROM_10, "SIZE", _NO_STREAMING, ("-2",)),
    _refused("--markDebug", _FROM_10, "NAMES", _NO_DEBUG),
    _refused("--markUnfusedTensorsAsDebugTensors", _FROM_10, "", _NO_DEBUG),
    _refused("--saveDebugTensors", _FROM_10, "SPEC", _NO_DEBUG),
    _refused("--saveAllDebugTensors", _FROM_10, "SPEC", _NO_DEBUG),
    # search of trtexec 11
    _refused("--tuneBuildRoutes", _FROM_11, "SPEC", _NO_ROUTES),
    _refused("--tuneBuildRouteFile", _FROM_11, "FILE", _NO_ROUTES),
    _refused("--tuningSearch", _FROM_11, "MODE", _NO_ROUTES),
    _refused("--tuningCacheFile", _FROM_11, "FILE", _NO_ROUTES),
    _refused("--tuningResultFile", _FROM_11, "FILE", _NO_ROUTES),
    _refused("--tuningTimeOut", _FROM_11, "S", _NO_ROUTES),
    _refused("--saveAllEngines", _FROM_11, "", _NO_ROUTES),
    _refused("--dryRun", _FROM_11, "", _NO_ROUTES),
    _refused("--continue", _FROM_11, "", _NO_ROUTES),
    _refused("--helpBuildRoute", _FROM_11, "", _NO_ROUTES),
    _build("--setBuildRoute", _FROM_11, "SPEC", "--build-route {}"),
    # DLA and safety
    _refused("--useDLACore", _ALL, "N", _NO_DLA),
    _refused("--allowGPUFallback", _ALL, "", _NO_DLA),
    _refused("--buildDLAStandalone", _ALL, "", _NO_DLA),
    _refused("--layerDeviceTypes", _ALL, "SPEC", _NO_DLA),
    _refused("--adjustForDLA", _FROM_10, "", _NO_DLA),
    _refused("--reportCapabilityDLA", _FROM_10, "", _NO_DLA),
    _refused("--uint8AsymmetricQuantizationDLA", _FROM_10, "", _NO_DLA),
    _refused("--safe", _ALL, "", _NO_SAFETY),
    _refused("--consistency", _ALL, "", _NO_SAFETY),
    _refused("--restricted", _TO_10, "", _NO_SAFETY),
    _refused("--dumpKernelText", _FROM_10, "", _NO_SAFETY),
    _refused("--safetyPlugins", _FROM_10, "SPEC", _NO_SAFETY),
    _refused("--remoteAutoTuningConfig", _FROM_10, "SPEC", _NO_SAFETY),
    _refused("--cpuOnly", _FROM_10, "", _NO_SAFETY),
    # plugins and device
    _build("--plugins", _ALL, "LIB.so", "--plugin {}", _PLUGIN, bench="--trust {}"),
    _build("--staticPlugins", _ALL, "LIB.so", "--plugin {}", _PLUGIN, bench="--trust {}"),
    _build("--dynamicPlugins", _ALL, "LIB.so", "--plugin {}", _PLUGIN, bench="--trust {}"),
    _refused(
        "--setPluginsToSerialize", _ALL, "LIB.so", "give --staticPlugins=LIB.so: an engine carries no plugins"
    ),
    _none("--ignoreParsedPluginLibs", _ALL, "", "only libraries that are named are loaded"),
    _joint("--device", _ALL, "N", "CUDA_VISIBLE_DEVICES=N"),
    # measuring
    _none("--iterations", _ALL, "N", "bench samples by time: --duration"),
    _joint(
        "--duration", _ALL, "S", "bench --duration S", "0, which leaves it to --iterations, has no effect"
    ),
    _joint("--warmUp", _ALL, "MS", "bench --warmup S", "seconds instead of milliseconds"),
    _bench("--infStreams", _ALL, "N", "--streams {}"),
    _bench("--streams", _ALL, "N", "--streams {}"),
    _bench("--threads", _ALL, "", "--threads per-stream"),
    _joint("--useCudaGraph", _ALL, "", "bench --graph", "the default from trtexec 11 on"),
    _joint("--noCudaGraph", _FROM_11, "", "bench --no-graph"),
    _joint("--noDataTransfers", _ALL, "", "bench --no-transfers", "the default from trtexec 11 on"),
    _joint("--includeDataTransfers", _FROM_11, "", "bench --transfers"),
    _joint("--useSpinWait", _ALL, "", "bench --sync spin", "the default from trtexec 11 on"),
    _joint("--noSpinWait", _FROM_11, "", "bench --sync blocking"),
    _bench("--exposeDMA", _ALL, "", "--queue 0"),
    _refused(
        "--useManagedMemory", _ALL, "", "omit it: trtopt allocates on the device and in page-locked memory"
    ),
    _refused("--sleepTime", _ALL, "MS", _GENTLE, ("0",)),
    _refused("--idleTime", _ALL, "MS", _GENTLE, ("0",)),
    _refused(
        "--persistentCacheRatio", _ALL, "SHARE", "omit it: trtopt leaves the L2 cache to TensorRT", ("0",)
    ),
    _none("--allocationStrategy", _FROM_10, "MODE", "memory is allocated for the largest shapes"),
    _refused(
        "--loadInputs",
        _ALL,
        "SPEC",
        "store the inputs with numpy.savez('inputs.npz', NAME=array): trtopt trtexec --data inputs.npz",
    ),
    _refused("--loadRefOutputs", _FROM_11, "SPEC", _NO_REFERENCE),
    _refused("--refPair", _FROM_11, "N", _NO_REFERENCE),
    _refused("--accuracyAlgorithm", _FROM_11, "NAME", _NO_REFERENCE),
    _refused("--accuracyThreshold", _FROM_11, "NUMBER", _NO_REFERENCE),
    _refused("--atol", _FROM_11, "NUMBER", _NO_REFERENCE),
    _refused("--rtol", _FROM_11, "NUMBER", _NO_REFERENCE),
    # reporting
    TrtexecOption("--verbose", _ALL, "", "translated", "-vv", "", ("-vv",), ("-vv",)),
    _none("--avgRuns", _ALL, "N", "bench keeps every sample: --json FILE"),
    _none("--percentile", _ALL, "P,P", "bench shows p50, p90 and p99, and keeps every sample: --json FILE"),
    _bench("--dumpProfile", _ALL, "", "--layers", "always in a separate pass"),
    _none("--separateProfileRun", _ALL, "", "always so; also in trtexec from 11 on"),
    _bench("--exportTimes", _ALL, "FILE", "--export-times {}"),
    _bench("--exportProfile", _ALL, "FILE", "--export-profile {}"),
    _none("--dumpLayerInfo", _ALL, "", "trtopt profile FOLDER shows the layers"),
    _none("--exportLayerInfo", _ALL, "FILE", "the build folder holds it: *.layers.json"),
    _none("--dumpOptimizationProfile", _FROM_10, "", "manifest.json lists the profiles"),
    _none("--dumpOutput", _ALL, "", _CHECK_OUTPUTS),
    _none("--exportOutput", _ALL, "FILE", _CHECK_OUTPUTS),
    _none("--dumpRawBindingsToFile", _ALL, "", _CHECK_OUTPUTS),
    _joint("--help", _ALL, "", "trtopt trtexec --help"),
)

BY_NAME = {option.name: option for option in OPTIONS}
