"""What the objects of a surface do: enough for a build and a run to go from end to end.

One model, `images` [-1, 1, 8, 8] → `logits` [-1, 10], and an engine of it for batches 1 to 8. Loggers,
monitors, profilers and allocators are called as TensorRT calls them.
"""

from __future__ import annotations

import weakref
from typing import Any

IMAGES, LOGITS = ("images", (-1, 1, 8, 8)), ("logits", (-1, 10))
SHAPES = dict((IMAGES, LOGITS))
STREAM = 0x7F00_0000_1000
LAYER = "conv1 + relu1", 0.25
HITS = 7
MESSAGES = {
    "VERBOSE": "=============== Computing costs for ",
    "INFO": "Engine generation completed in 1.5 seconds.",
    "WARNING": "Weights were clipped",
}


def _log(surface: Any, logger: Any, severity: str, text: str) -> None:
    surface.call_back(logger, "log", severity=surface.member("ILogger.Severity", severity), msg=text)


def _allocate(surface: Any, allocator: Any, size: int) -> int | None:
    """None where nobody has set an allocator: TensorRT then uses its own."""
    if allocator is None:
        return None
    arguments = {"size": size, "alignment": 256, "flags": 0}
    if _is_async(surface, allocator):
        return int(surface.call_back(allocator, "allocate_async", **arguments, stream=STREAM))
    return int(surface.call_back(allocator, "allocate", **arguments))


def _free(surface: Any, allocator: Any, address: int | None) -> None:
    if allocator is not None and _is_async(surface, allocator):
        surface.call_back(allocator, "deallocate_async", memory=address, stream=STREAM)
    elif allocator is not None:
        surface.call_back(allocator, "deallocate", memory=address)


def _is_async(surface: Any, allocator: Any) -> bool:
    name = "IGpuAsyncAllocator"
    return surface.has(name) and isinstance(surface.deref(allocator), surface.type(name))


def _keep_logger(surface: Any, target: Any, *arguments: Any) -> None:
    target._state["logger"] = surface.hold(arguments[-1])


# ── building ────────────────────────────────────────────────────────────────────────────────────────────


def _tensor(surface: Any, network: Any, name: str) -> Any:
    tensors = network._state.setdefault("tensors", {})
    if name not in tensors:
        data_type = surface.member("DataType", "FLOAT")
        tensors[name] = surface.make("ITensor", name=name, shape=SHAPES[name], dtype=data_type)
    return tensors[name]


def _build(surface: Any, builder: Any, network: Any, config: Any, *_: Any) -> Any:
    logger, monitor = builder._state["logger"], config._state.get("progress_monitor")
    for severity, text in MESSAGES.items():
        _log(surface, logger, severity, text)
    if monitor is not None:
        _drive(surface, monitor)
    if (selector := config._state.get("algorithm_selector")) is not None:
        _select(surface, selector)
    return surface.make("IHostMemory", b"engine")


LAYERS = {"conv1 + relu1": (-1, 7), "pool": (1002,), "fc": (7, 9)}
"""Each with the tactics that it may have."""


def _select(surface: Any, selector: Any) -> None:
    """Ask for each layer, take the fastest of what is selected, report all."""
    contexts, taken = [], []
    for name, tactics in LAYERS.items():
        context = surface.make("IAlgorithmContext", name=name, num_inputs=1, num_outputs=1)
        choices = [surface.make("IAlgorithm", tactic=tactic) for tactic in tactics]
        given = surface.call_back(selector, "select_algorithms", context=context, choices=choices)

        def ms(at: int, choices: list[Any] = choices) -> float:
            timing = "IAlgorithm.timing_msec"
            return float(surface.evaluate(timing, "float", choices[at], is_call=False))

        contexts.append(context)
        taken.append(choices[min(given, key=ms)])
    surface.call_back(selector, "report_algorithms", contexts=contexts, choices=taken)


def _variant(surface: Any, algorithm: Any) -> Any:
    return surface.make("IAlgorithmVariant", implementation=-2, tactic=algorithm._state["tactic"])


def _port(surface: Any, algorithm: Any, index: int) -> Any:
    half = surface.member("DataType", "HALF")
    state = {"strides": (64, 8, 1), "vectorized_dim": -1, "components_per_element": 1}
    return surface.make("IAlgorithmIOInfo", dtype=half, **state)


def _drive(surface: Any, monitor: Any) -> None:
    def phase(name: str, parent: str | None, steps: int) -> None:
        surface.call_back(monitor, "phase_start", phase_name=name, parent_phase=parent, num_steps=steps)

    phase("Building", None, 2)
    phase("Timing", "Building", 3)
    for step in range(3):
        surface.call_back(monitor, "step_complete", phase_name="Timing", step=step)
    for name in ("Timing", "Building"):
        surface.call_back(monitor, "phase_finish", phase_name=name)


def _stored(config: Any, kind: str) -> dict[Any, Any]:
    stored: dict[Any, Any] = config._state.setdefault(kind, {})
    return stored


def _store(kind: str) -> Any:
    def set_(surface: Any, config: Any, key: Any, value: Any) -> bool:
        _stored(config, kind)[key] = value
        return True

    return set_


def _all_sources(surface: Any) -> int:
    return sum(1 << value for value in surface.api["enums"]["TacticSource"].values())


def _set_sources(surface: Any, config: Any, mask: int) -> bool:
    config._state["sources"] = mask
    return bool(mask & ~_all_sources(surface) == 0)


def _capability(surface: Any, config: Any, index: int) -> Any:
    return _stored(config, "capabilities").get(index, surface.member("ComputeCapability", "NONE"))


def _set_capability(surface: Any, config: Any, capability: Any, index: int) -> bool:
    _stored(config, "capabilities")[index] = capability
    return bool(index < config._state.get("num_compute_capabilities", 0))


def _cache(surface: Any, config: Any, blob: bytes) -> Any:
    """When a cache goes, TensorRT logs of how much use it was."""
    cache = surface.make("ITimingCache", blob=blob, hits=0)
    weakref.finalize(cache, _tell_hits, surface, config._state["logger"], cache._state)
    return cache


def _tell_hits(surface: Any, logger: Any, state: dict[str, Any]) -> None:
    told = f"Deleting timing cache: {len(state['blob'])} entries, served {state['hits']} hits since creation."
    try:
        _log(surface, logger, "VERBOSE", told)
    except ReferenceError as error:  # nobody would hear of it: Python ignores exceptions in finalizers
        surface.dangling.append(str(error))


def _use_cache(surface: Any, config: Any, cache: Any, ignore_mismatch: bool) -> bool:
    cache._state["hits"] = HITS
    return True


def _combine(surface: Any, cache: Any, other: Any, ignore_mismatch: bool) -> bool:
    cache._state["blob"] += other._state["blob"]
    return True


TACTICS = {"conv 3x3": (255, 0.25), "conv 1x1": (1, 0.5)}


def _keys(surface: Any, cache: Any) -> list[Any]:
    return [surface.make("TimingCacheKey", text=text) for text in TACTICS]


def _query(surface: Any, cache: Any, key: Any) -> Any:
    tactic, ms = TACTICS[str(key)]
    return surface.make("TimingCacheValue", tacticHash=tactic, timingMSec=ms)


# ── running ─────────────────────────────────────────────────────────────────────────────────────────────


def _deserialize(surface: Any, runtime: Any, engine: bytes) -> Any:
    allocator = runtime._state.get("gpu_allocator")
    _log(surface, runtime._state["logger"], "INFO", f"Loaded engine size: {len(engine)} bytes")
    weights, scratch = (_allocate(surface, allocator, size) for size in (4096, 512))
    if weights == 0:
        _log(surface, runtime._state["logger"], "ERROR", "Requested size was 4096 bytes: out of memory")
        return None
    _free(surface, allocator, scratch)
    return surface.make("ICudaEngine", allocator=allocator, logger=runtime._state["logger"])


def _mode(surface: Any, engine: Any, name: str) -> Any:
    return surface.member("TensorIOMode", "INPUT" if name == IMAGES[0] else "OUTPUT")


def _context(surface: Any, engine: Any, *_: Any) -> Any:
    _allocate(surface, engine._state["allocator"], 2048)
    return surface.make("IExecutionContext", engine=engine)


def _concrete(surface: Any, context: Any, name: str) -> tuple[int, ...]:
    shapes = _stored(context, "shapes")
    if name in shapes:
        return tuple(shapes[name])
    batch = next(iter(shapes[IMAGES[0]])) if shapes else -1
    return (batch, *SHAPES[name][1:])


def _report(surface: Any, context: Any) -> bool:
    profiler = context._state.get("profiler")
    if profiler is not None:
        surface.call_back(profiler, "report_layer_time", layer_name=LAYER[0], ms=LAYER[1])
    return profiler is not None


def _execute(surface: Any, context: Any, stream: int) -> bool:
    if context._state.get("enqueue_emits_profile", True):
        _report(surface, context)
    return set(_stored(context, "addresses")) == set(SHAPES)


def _describe(surface: Any, inspector: Any, layout: Any) -> str:
    """Shapes are known only where a context tells them."""
    context = inspector._state.get("execution_context")
    known = context is not None and layout == surface.member("LayerInformationFormat", "JSON")
    return f'{{"Layers": [{_concrete(surface, context, LOGITS[0])[0]}]}}' if known else ""


BEHAVIOUR: dict[str, Any] = {
    "Builder.__init__": _keep_logger,
    "OnnxParser.__init__": _keep_logger,
    "Runtime.__init__": _keep_logger,
    "Dims.__init__": lambda surface, dims, shape=(): dims._state.update(dims=tuple(shape)),
    "IHostMemory.nbytes": lambda surface, memory: memoryview(memory).nbytes,
    "Builder.create_builder_config": lambda surface, builder: surface.make(
        "IBuilderConfig", logger=builder._state["logger"]
    ),
    "Builder.build_serialized_network": _build,
    "INetworkDefinition.num_inputs": lambda surface, network: 1,
    "INetworkDefinition.num_outputs": lambda surface, network: 1,
    "INetworkDefinition.get_input": lambda surface, network, index: _tensor(surface, network, IMAGES[0]),
    "INetworkDefinition.get_output": lambda surface, network, index: _tensor(surface, network, LOGITS[0]),
    "IBuilderConfig.builder_optimization_level": lambda surface, config: 3,
    "IBuilderConfig.get_flag": lambda surface, config, flag: flag in _stored(config, "on"),
    "IBuilderConfig.set_flag": lambda surface, config, flag: _stored(config, "on").update({flag: True}),
    "IBuilderConfig.clear_flag": lambda surface, config, flag: _stored(config, "on").pop(flag, None),
    "IBuilderConfig.get_memory_pool_limit": lambda surface, config, pool: _stored(config, "pools").get(
        pool, 0
    ),
    "IBuilderConfig.set_memory_pool_limit": _store("pools"),
    "IBuilderConfig.get_tactic_sources": lambda surface, config: config._state.get(
        "sources", _all_sources(surface)
    ),
    "IBuilderConfig.set_tactic_sources": _set_sources,
    "IBuilderConfig.get_compute_capability": _capability,
    "IBuilderConfig.set_compute_capability": _set_capability,
    "IBuilderConfig.create_timing_cache": _cache,
    "IBuilderConfig.set_timing_cache": _use_cache,
    "ITimingCache.serialize": lambda surface, cache: surface.make("IHostMemory", cache._state["blob"] + b"+"),
    "ITimingCache.combine": _combine,
    "ITimingCache.queryKeys": _keys,
    "ITimingCache.query": _query,
    "IAlgorithm.algorithm_variant": _variant,
    "IAlgorithm.get_algorithm_io_info": _port,
    "Runtime.deserialize_cuda_engine": _deserialize,
    "ICudaEngine.num_io_tensors": lambda surface, engine: len(SHAPES),
    "ICudaEngine.get_tensor_name": lambda surface, engine, index: list(SHAPES)[index],
    "ICudaEngine.get_tensor_mode": _mode,
    "ICudaEngine.get_tensor_shape": lambda surface, engine, name: SHAPES[name],
    "ICudaEngine.num_optimization_profiles": lambda surface, engine: 1,
    "ICudaEngine.get_tensor_profile_shape": lambda surface, engine, name, index: [
        (batch, *SHAPES[name][1:]) for batch in (1, 4, 8)
    ],
    "ICudaEngine.device_memory_size": lambda surface, engine: 2048,
    "ICudaEngine.device_memory_size_v2": lambda surface, engine: 2048,
    "ICudaEngine.create_execution_context": _context,
    "EngineInspector.get_engine_information": _describe,
    "IExecutionContext.set_input_shape": _store("shapes"),
    "IExecutionContext.get_tensor_shape": _concrete,
    "IExecutionContext.set_tensor_address": _store("addresses"),
    "IExecutionContext.execute_async_v3": _execute,
    "IExecutionContext.report_to_profiler": _report,
    "ICudaEngine.profiling_verbosity": lambda surface, engine: surface.member(
        "ProfilingVerbosity", "DETAILED"
    ),
}


# ── what is no public name ──────────────────────────────────────────────────────────────────────────────


def _equal(dims: Any, other: object) -> bool:
    if not isinstance(other, (tuple, list)):
        raise TypeError("Dims compare with tuples and lists only, not even with Dims")
    return bool(dims._state["dims"] == tuple(other))


def _no_length(memory: Any) -> int:
    raise TypeError("object of type 'IHostMemory' has no len()")


def _only_dumped(memory: Any, name: str) -> Any:
    if not name.startswith("_") and name not in memory._surface.names("IHostMemory"):
        raise AttributeError(f"'IHostMemory' object has no attribute {name!r}")
    return object.__getattribute__(memory, name)


DUNDERS: dict[str, dict[str, Any]] = {
    "Dims": {
        "__len__": lambda dims: len(dims._state["dims"]),
        "__getitem__": lambda dims, index: dims._state["dims"][index],
        "__eq__": _equal,
        "__hash__": None,
        "__repr__": lambda dims: repr(dims._state["dims"]),
    },
    "TimingCacheKey": {"__str__": lambda key: key._state["text"]},
    "IHostMemory": {"__len__": _no_length, "__getattribute__": _only_dumped},
}
