"""Building an engine with any flavour of TensorRT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtopt.builder_settings import check_backend, plain_attributes
from trtopt.device.api import (
    BuildInput,
    BuiltEngine,
    DeviceMemory,
    EngineBuilder,
    LogSink,
    ProgressSink,
)
from trtopt.device.nvml import device_memory_of
from trtopt.device.tensorrt.library import Library, describe_serialized, load_plugins, make, make_logger
from trtopt.device.tensorrt.precision import constrain
from trtopt.device.tensorrt.progress import make_monitor, progress_from_log
from trtopt.device.tensorrt.tactics import require_held, select
from trtopt.device.tensorrt.timing_cache import attach, detach, hits_in, merge, require_unchanged, tactics_in
from trtopt.errors import BuildError, DeviceMemoryError, RefusedGraphError, UnsupportedOpError, UsageError
from trtopt.records import BuildPlan, BuildSettings, DeviceInfo, TensorSpec
from trtopt.targets import NUMPY_TYPES, PRECISION_FLAGS, Target


def allow_decomposing(trt: Any, network: Any) -> int:
    """Let attention without a fused kernel run as several; returns how many the network has.

    Unless this is set TensorRT refuses to build an IAttention that no fused kernel fits ("Attention operation
    was not supported by a dedicated kernel": FP32, and heads of 4, 8 or 512, seen on TensorRT-RTX 1.7). Where
    one fits it is still taken (the documentation of `IAttention`).
    """
    whole = getattr(trt, "IAttentionInputLayer", None)
    found = 0
    for layer in map(network.get_layer, range(network.num_layers)) if whole is not None else ():
        if layer.type.name == "ATTENTION_INPUT":
            layer.__class__ = whole  # `get_layer` gives the base class
            layer.attention.decomposable = True
            found += 1
    return found


def set_formats(trt: Any, network: Any, layouts: Mapping[str, str]) -> str:
    """Give inputs and outputs their vectorised formats; returns what was set, in TensorRT's names."""
    tensors = {
        tensor.name: tensor
        for get, count in ((network.get_input, network.num_inputs), (network.get_output, network.num_outputs))
        for tensor in map(get, range(count))
    }
    for name, layout in layouts.items():
        if name not in tensors:
            raise BuildError(
                f"--io {name}: the network has no such input or output", "name one of the model's"
            )
        tensors[name].allowed_formats = 1 << int(getattr(trt.TensorFormat, layout.upper()))
    return " ".join(f"{name}:{layout.upper()}" for name, layout in layouts.items())


def add_profiles(trt: Any, target: Target, builder: Any, network: Any, config: Any, plan: BuildPlan) -> None:
    """Give the builder's config the plan's profiles, in its order; inputs of one shape become static."""
    tensors = [network.get_input(index) for index in range(network.num_inputs)]
    for tensor in tensors:
        if tensor.is_shape_tensor:
            raise UsageError(
                f"input {tensor.name!r} is a shape tensor: its values decide other tensors' shapes",
                "make it a constant in the model, or derive the shapes from another input's shape",
            )
        if plan.shapes[tensor.name].is_fixed:
            tensor.shape = plan.shapes[tensor.name].min  # a static network, not merely a narrow profile
    for wanted in plan.profiles:
        profile = builder.create_optimization_profile()
        for tensor in tensors:
            shapes = wanted.shapes[tensor.name]
            profile.set_shape(tensor.name, shapes.min, shapes.opt, shapes.max)
        if config.add_optimization_profile(profile) < 0:
            raise BuildError(
                "TensorRT refuses the requested shapes",
                "see whether every --shape fits the model's own shapes",
            )
    sharing = target.profile_sharing
    if sharing is not None and not all(wanted.is_fixed for wanted in plan.shapes.values()):
        config.set_preview_feature(getattr(trt.PreviewFeature, sharing), True)


_NO_TACTIC = ("Could not find any implementation", "within workspace limit")
"""What TensorRT logs where scratch memory was too small for every tactic."""
_OUT_OF_MEMORY = ("out of memory", "OutOfMemory", "outofmemory", "cudaErrorMemoryAllocation")
_LAST_WORDS = 5
_TIMINGS = 8
"""Runs of a tactic that its timing is the average of: trtexec's default; TensorRT's own is 1."""


class TensorRTBuilder(EngineBuilder):
    """Builds engines; see `device.api.EngineBuilder`."""

    def __init__(self, library: Library, device: DeviceInfo) -> None:
        self._library = library
        self.backend = library.backend
        self.max_opset = library.target.loaded_opset
        self.uses_timing_cache = library.target.timing_cache
        self.device = device

    def device_memory(self) -> DeviceMemory | None:
        """As NVML reports it, where it needs a GPU to build."""
        return device_memory_of(self.device) if self._library.target.needs_gpu_to_build else None

    def build(self, given: BuildInput, progress: ProgressSink, log: LogSink) -> BuiltEngine:
        errors: list[str] = []
        hits: list[int] = []

        def remember(severity: str, message: str) -> None:
            if severity == "error":
                errors.append(message)
            hits.extend(hits_in(message))
            log(severity, message)

        target = self._library.target
        sink = remember if target.progress_monitor else progress_from_log(remember, progress)
        logger = make_logger(self._library.trt, sink)
        load_plugins(self._library, logger, given.plan.settings.plugins)
        built = self._build(logger, given, progress, errors)
        text = None
        if target.needs_gpu_to_build:
            text = describe_serialized(self._library.trt, logger, built.engine)
        # TensorRT logs the cache's hits when it deletes the cache, which it has done by now
        return replace(built, timing_cache_hits=max(hits, default=None), inspector=text)

    def _build(
        self, logger: Any, given: BuildInput, progress: ProgressSink, errors: list[str]
    ) -> BuiltEngine:
        """Everything TensorRT makes here goes before `logger` does, also when building fails."""
        trt, target, plan = self._library.trt, self._library.target, given.plan
        builder = network = config = cache = selector = None
        monitor = make_monitor(trt, progress) if target.progress_monitor else None
        try:
            builder = make(trt.Builder, logger)
            network = builder.create_network(mask_of(trt.NetworkDefinitionCreationFlag, target.network_flags))
            progress("Parsing the model", 0.0)
            self._parse(network, logger, given.onnx, errors)
            formats = set_formats(trt, network, plan.io_layouts)
            config = builder.create_builder_config()
            add_profiles(trt, target, builder, network, config, plan)
            if given.tactics is not None:
                selector = select(trt, config, given.tactics)
            applied = self._configure(config, given.types, plan.settings)
            if plan.multi_profile:
                applied["optimization_profiles"] = str(config.num_optimization_profiles)
            if formats:
                applied["io_formats"] = formats
            if target.weakly_typed:
                applied |= constrain(trt, network, config, given.types, given.onnx)
            if attentions := allow_decomposing(trt, network):
                applied["attentions_allowed_to_decompose"] = str(attentions)
            if monitor is not None:
                config.progress_monitor = monitor
            if self.uses_timing_cache and selector is None:
                cache = attach(config, given.timing_cache)
            known = tactics_in(cache) if plan.settings.reproducible else {}
            serialized = builder.build_serialized_network(network, config)
            if serialized is None:
                bound = plan.settings.workspace_bytes
                raise _failure("TensorRT could not build the engine", errors, bound)
            if plan.settings.reproducible:
                require_unchanged(known, tactics_in(cache))
            if selector is not None:
                require_held(given.tactics or (), selector.made)
            return BuiltEngine(
                engine=bytes(serialized),
                inputs=_specs(network.get_input, network.num_inputs),
                outputs=_specs(network.get_output, network.num_outputs),
                config=applied,
                timing_cache=detach(config, cache) if cache is not None else None,
                tactics=tuple(selector.made) if selector is not None else (),
            )
        finally:
            cache = config = selector = network = builder = None

    def merge_timing_caches(self, ours: bytes, theirs: bytes) -> bytes:
        reasons: list[str] = []
        logger = make_logger(
            self._library.trt,
            lambda severity, text: reasons.append(text) if severity in ("error", "warning") else None,
        )
        builder = make(self._library.trt.Builder, logger)
        return merge(builder.create_builder_config(), ours, theirs, reasons)

    def _parse(self, network: Any, logger: Any, onnx: Path, errors: list[str]) -> None:
        parser = self._library.trt.OnnxParser(network, logger)
        if parser.parse_from_file(str(onnx)):
            return
        faults = [parser.get_error(index) for index in range(parser.num_errors)]
        raise _parse_failure(self._library, onnx, faults, errors)

    def _configure(self, config: Any, types: Sequence[str], settings: BuildSettings) -> dict[str, str]:
        """Set the builder up; returns every setting as the builder then reports it."""
        trt, target = self._library.trt, self._library.target
        check_backend(settings, self.backend)
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        config.avg_timing_iterations = settings.avg_timing or _TIMINGS
        for attribute, setting in plain_attributes(self.backend).items():
            if (value := getattr(settings, setting.recorded)) is not None:
                setattr(config, attribute, value)
        if settings.workspace_bytes is not None:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings.workspace_bytes)
        if settings.tactic_sources is not None:
            chosen = mask_of(trt.TacticSource, settings.tactic_sources, "--tactic-sources")
            if not config.set_tactic_sources(chosen):
                raise UsageError(
                    f"--tactic-sources {','.join(settings.tactic_sources)}: refused by {self.backend}",
                    "omit it for the default",
                )
        if settings.tiling is not None:
            config.tiling_optimization_level = getattr(trt.TilingOptimizationLevel, settings.tiling.upper())
        if target.weakly_typed:
            for name in _precision_flags(trt, types):
                config.set_flag(getattr(trt.BuilderFlag, name))
        if target.editable_cache:  # caches that name their entries
            config.set_flag(trt.BuilderFlag.EDITABLE_TIMING_CACHE)
        if settings.reproducible:
            config.set_flag(trt.BuilderFlag.ERROR_ON_TIMING_CACHE_MISS)
        self._choose_compute_capabilities(config, settings.compute_capabilities)
        return self._report(config)

    def _choose_compute_capabilities(self, config: Any, wanted: tuple[str, ...]) -> None:
        trt = self._library.trt
        if not wanted:
            return  # TensorRT-RTX's own default: Ampere and newer
        known = {name: one for name, one in _members(trt.ComputeCapability) if name.startswith("SM")}
        config.num_compute_capabilities = len(wanted)
        for index, name in enumerate(wanted):
            chosen = known.get("SM" + "".join(filter(str.isdigit, name)))
            if chosen is None or not config.set_compute_capability(chosen, index):
                as_typed = sorted((f"{one[2:-1]}.{one[-1]}" for one in known), key=float)  # 8.9 of SM89
                raise UsageError(
                    f"--compute-capability {name}: {self.backend} does not support it",
                    f"choose among {', '.join(as_typed)}",
                )

    def _report(self, config: Any) -> dict[str, str]:
        """Every setting that decides the engine, read back from the builder."""
        trt, target = self._library.trt, self._library.target
        flags = [name for name, flag in _members(trt.BuilderFlag) if config.get_flag(flag)]
        sources = config.get_tactic_sources()
        report = {
            "flags": " ".join(flags),
            "network_flags": " ".join(target.network_flags),
            "tactic_sources": " ".join(
                name for name, source in _members(trt.TacticSource) if sources & (1 << int(source))
            ),
            "profiling_verbosity": config.profiling_verbosity.name,
            "avg_timing_iterations": str(config.avg_timing_iterations),
        }
        report |= {name: str(getattr(config, name)) for name in plain_attributes(self.backend)}
        if target.tiling:
            report["tiling_optimization_level"] = config.tiling_optimization_level.name
        if target.reports_hardware_compatibility:
            report["hardware_compatibility_level"] = config.hardware_compatibility_level.name
        for name, pool in _members(trt.MemoryPoolType):
            if not name.startswith("DLA"):
                report[f"memory_pool.{name}"] = str(config.get_memory_pool_limit(pool))
        if target.compute_capability_choice:
            report["compute_capabilities"] = (
                " ".join(
                    config.get_compute_capability(index).name
                    for index in range(config.num_compute_capabilities)
                )
                or "the default (SM80 and newer)"
            )
        return report


def _members(enum: Any) -> list[tuple[str, Any]]:
    return sorted(enum.__members__.items())


def mask_of(enum: Any, names: Sequence[str], flag: str = "") -> int:
    """Bits for members of a TensorRT enum by name."""
    mask = 0
    for name in names:
        member = enum.__members__.get(name.upper())
        if member is None:
            raise UsageError(
                f"{flag} {name}: this version of TensorRT has no such choice",
                f"choose among {', '.join(sorted(enum.__members__))}",
            )
        mask |= 1 << int(member)
    return mask


def _precision_flags(trt: Any, types: Sequence[str]) -> list[str]:
    """The flags that the types in the graph need on a weakly typed builder."""
    flags = [PRECISION_FLAGS[name] for name in types if name in PRECISION_FLAGS]
    missing = [flag for flag in flags if flag not in trt.BuilderFlag.__members__]
    if missing:
        raise UsageError(
            f"the graph contains {missing[0]}, which TensorRT {trt.__version__} does not have",
            "convert the graph to FP16, or use TensorRT 10 or newer",
        )
    return flags


def _specs(get: Any, count: int) -> tuple[TensorSpec, ...]:
    """The network's inputs or outputs; open axes are anonymous here."""
    return tuple(
        TensorSpec(
            name=tensor.name,
            dtype=NUMPY_TYPES[tensor.dtype.name],
            shape=tuple("?" if axis < 0 else axis for axis in tensor.shape),
        )
        for tensor in map(get, range(count))
    )


def _parse_failure(library: Library, onnx: Path, faults: list[Any], errors: list[str]) -> Exception:
    """What the parser objects to, with the operator and the node where it knows them."""
    backend = library.backend
    if not faults:
        return _failure(f"{backend} could not parse the model", errors)
    fault = faults[0]
    described = fault.desc()
    where = ""
    if hasattr(fault, "node_name"):  # from 10.0 on; an input is of no operator
        where = f" at node {fault.node_name()!r} ({fault.node_operator()})" if fault.node_operator() else ""
    elif fault.node() >= 0:
        where = f" at {_node_in_file(onnx, fault.node())}"
    problem = f"{backend} cannot import the model{where}: {described}"
    # no `.name`: the one of 8.6's codes is a method
    unsupported = (
        fault.code() == library.trt.ErrorCode.UNSUPPORTED_NODE or "No importer registered" in described
    )
    if unsupported or "Plugin not found" in described:
        return UnsupportedOpError(
            problem, "replace the operator, or load the plugin that implements it with --plugin LIB.so"
        )
    return RefusedGraphError(problem, "see the log for the parser's own words; a simpler export often helps")


def _node_in_file(onnx: Path, index: int) -> str:
    """8.6 gives only a node's index: look its name up in the file."""
    from trtopt.onnxio.model_info import load_graph

    nodes = load_graph(onnx).graph.node
    if not 0 <= index < len(nodes):
        return f"node {index}"
    return f"node {nodes[index].name!r} ({nodes[index].op_type})"


def _failure(problem: str, errors: list[str], workspace_bytes: int | None = None) -> Exception:
    """A builder's failure with its last errors, each once; out of memory is an error of its own."""
    text = "; ".join(list(dict.fromkeys(errors))[-_LAST_WORDS:]) or "it logged no error"
    if any(sign in message for sign in _OUT_OF_MEMORY for message in errors):
        return DeviceMemoryError(
            f"{problem}: out of device memory ({text})",
            "build for smaller batches or shapes, bound the scratch memory with --workspace, or free the GPU",
        )
    if workspace_bytes is not None and any(sign in message for sign in _NO_TACTIC for message in errors):
        return BuildError(
            f"{problem}: {text}",
            f"raise --workspace, which leaves {workspace_bytes >> 20} MiB of scratch memory, or omit it",
        )
    return RefusedGraphError(
        f"{problem}: {text}", "the messages name the node; simplify or replace it, or try another --opt-level"
    )
