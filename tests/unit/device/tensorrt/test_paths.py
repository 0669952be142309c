"""The builder's and the runtime's paths against TensorRT's Python API, version by version.

Nothing here runs TensorRT: `trt_surface.py` says what stands in for it. A name or an argument that a version
does not know fails in here as it would there.
"""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_device.device import Script, ScriptedDevice
from tests.support.trt_behaviour import HITS, IMAGES, LAYER, LOGITS, MESSAGES, STREAM
from tests.support.trt_exercise import (
    FIXED,
    SHAPES,
    SIZED,
    UNSUPPORTED,
    VERSIONS,
    beside_fp16,
    build,
    builder,
    each_version,
    every_setting,
    flags_set,
    layers,
    load,
    run,
    run_sized,
    target,
    tracker,
)
from tests.support.trt_surface import Surface
from trtopt.device.tensorrt.allocator import make_allocator
from trtopt.device.tensorrt.builder import _failure
from trtopt.errors import (
    BuildError,
    DeviceError,
    DeviceMemoryError,
    IncompatibleEngineError,
    TimingCacheError,
    TrtoptError,
    UnsupportedOpError,
    UsageError,
)
from trtopt.records import BuildSettings, TensorSpec
from trtopt.targets import PRECISION_FLAGS

NULL = "pybind11::init(): factory function returned nullptr"  # so it fails where the C++ side gives null

each_with_cache = pytest.mark.parametrize("dump", [dump for dump in VERSIONS if target(dump).timing_cache])


def say(severity: str, text: str, result: Any = None) -> Any:
    """A replacement for a method: it logs each line through its object's logger and returns `result`."""

    def told(target: Any, *_: Any) -> Any:
        logger = target._surface.deref(target._state["logger"])
        for line in text.splitlines():
            type(logger).log(logger, target._surface.member("ILogger.Severity", severity), line)
        return result

    return told


# ── building ────────────────────────────────────────────────────────────────────────────────────────────


@each_version
def test_a_build_with_every_setting_requests_exactly_these(dump: str) -> None:
    surface = Surface(dump)
    built = build(surface, every_setting(surface), cache=b"a cache")
    row, sources = target(dump), surface.api["enums"]["TacticSource"]
    flags = surface.api["enums"]["NetworkDefinitionCreationFlag"]
    assert surface.called("Builder.create_network") == [
        {"flags": sum(1 << flags[f] for f in row.network_flags)}
    ]
    assert surface.called("IBuilderConfig.builder_optimization_level") == [{"value": 5}]
    assert surface.called("IBuilderConfig.avg_timing_iterations") == [{"value": 4}]
    wanted = sources["EDGE_MASK_CONVOLUTIONS"], sources["JIT_CONVOLUTIONS"]
    assert surface.called("IBuilderConfig.set_tactic_sources") == [
        {"tactic_sources": sum(1 << s for s in wanted)}
    ]
    (pool,) = surface.called("IBuilderConfig.set_memory_pool_limit")
    assert (pool["pool"].name, pool["pool_size"]) == ("WORKSPACE", 1 << 28)
    assert surface.called("IBuilderConfig.profiling_verbosity")[0]["value"].name == "DETAILED"
    assert built.engine == b"engine"
    assert built.config["memory_pool.WORKSPACE"] == str(1 << 28)
    assert built.config["tactic_sources"] == "EDGE_MASK_CONVOLUTIONS JIT_CONVOLUTIONS"
    assert built.config.get("compute_capabilities", "SM89 SM120") == "SM89 SM120"
    assert ("compute_capabilities" in built.config) == row.compute_capability_choice


@each_version
def test_a_build_without_settings_leaves_the_builders_defaults(dump: str) -> None:
    surface = Surface(dump)
    built = build(surface)
    for name in ("builder_optimization_level", "set_memory_pool_limit", "set_tactic_sources"):
        assert surface.called(f"IBuilderConfig.{name}") == []
    assert flags_set(surface) == []
    assert built.config["builder_optimization_level"] == "3"
    assert surface.called("IBuilderConfig.avg_timing_iterations") == [{"value": 8}]  # as trtexec's


@each_version
def test_a_build_reports_the_models_inputs_and_outputs(dump: str) -> None:
    built = build(Surface(dump))
    assert built.inputs == (TensorSpec(name=IMAGES[0], dtype="float32", shape=("?", 1, 8, 8)),)
    assert built.outputs == (TensorSpec(name=LOGITS[0], dtype="float32", shape=("?", 10)),)


@each_version
def test_a_shape_with_one_value_makes_the_network_static_and_a_range_does_not(dump: str) -> None:
    static, dynamic = Surface(dump), Surface(dump)
    build(static, shape=FIXED)
    build(dynamic)
    assert static.called("ITensor.shape") == [{"value": (8, 1, 8, 8)}]
    assert dynamic.called("ITensor.shape") == []
    (profile,) = dynamic.called("IOptimizationProfile.set_shape")
    assert (profile["min"], profile["max"]) == ((1, 1, 8, 8), (8, 1, 8, 8))


@each_version
def test_what_the_builder_logs_reaches_the_log_and_progress_ends_at_the_whole(dump: str) -> None:
    told: list[tuple[Any, ...]] = []
    build(Surface(dump), told=told)
    assert {(severity.lower(), text) for severity, text in MESSAGES.items()} <= set(told)
    fractions = [entry[1] for entry in told if isinstance(entry[1], float)]
    assert fractions == sorted(fractions)
    assert fractions[-1] == (1.0 if target(dump).progress_monitor else 0.0)
    assert any("Engine generated" in entry[0] for entry in told) != target(dump).progress_monitor


@each_version
def test_precision_flags_are_set_where_typing_is_weak_and_nowhere_else(dump: str) -> None:
    surface = Surface(dump)
    build(surface, types=("float16", "float32", "int8"))
    assert flags_set(surface) == (["FP16", "INT8"] if target(dump).weakly_typed else [])


@each_version
def test_layers_that_the_file_declares_as_fp32_are_held_there_where_typing_is_weak(
    dump: str, tmp_path: Path
) -> None:
    surface = Surface(dump)
    layers(surface)
    built = build(surface, model=beside_fp16(str(tmp_path)), types=("float16", "float32"))
    is_weak = target(dump).weakly_typed
    assert len(surface.called("ILayer.precision")) == (1 if is_weak else 0)
    assert [call["index"] for call in surface.called("ILayer.set_output_type")] == ([0] if is_weak else [])
    assert flags_set(surface) == (["FP16", "PREFER_PRECISION_CONSTRAINTS"] if is_weak else [])
    assert built.config.get("layers_held_in_fp32") == ("1" if is_weak else None)


@each_version
def test_ranges_in_the_file_are_set_by_name_where_typing_is_weak(dump: str, tmp_path: Path) -> None:
    surface = Surface(dump)
    layers(surface)
    built = build(surface, model=beside_fp16(str(tmp_path)), types=("float16", "float32", "int8"))
    is_weak = target(dump).weakly_typed
    calls = surface.called("ITensor.set_dynamic_range")
    assert [call["max"] for call in calls] == ([1.5, 2.5] if is_weak else [])
    assert all(call["min"] == -call["max"] for call in calls)
    assert built.config.get("ranges") == ("2" if is_weak else None)


@pytest.mark.parametrize("types", [("float32",), ("float16", "float32", "int8")])
def test_nothing_is_held_without_16_bit_types_nor_next_to_qdq(types: tuple[str, ...]) -> None:
    surface = Surface("tensorrt-8.6.0")
    layers(surface)
    build(surface, types=types)
    assert surface.called("ILayer.precision") == []


@pytest.mark.parametrize("dump", [dump for dump in VERSIONS if target(dump).weakly_typed])
def test_a_type_without_a_precision_flag_in_this_version_is_refused_by_name(dump: str) -> None:
    for kind, flag in PRECISION_FLAGS.items():
        if not Surface(dump).has(f"BuilderFlag.{flag}"):
            with pytest.raises(UsageError, match=flag):
                build(Surface(dump), types=(kind,))


@each_version
def test_a_choice_that_a_version_lacks_is_refused_before_the_engine_is_built(dump: str) -> None:
    chosen: list[dict[str, Any]] = [{"tactic_sources": ("CUDA_MAGIC",)}]
    chosen += [{"compute_capabilities": (capability,)} for capability in ("9.9", "8.9")]
    for settings in chosen:
        surface = Surface(dump, {"IBuilderConfig.set_compute_capability": False})
        with pytest.raises(UsageError, match=r"CUDA_MAGIC|--compute-capability"):
            build(surface, BuildSettings(**settings))
        assert surface.called("Builder.build_serialized_network") == []


def test_compute_capabilities_are_listed_as_they_are_typed() -> None:
    dump = next(dump for dump in VERSIONS if target(dump).compute_capability_choice)
    with pytest.raises(UsageError) as caught:
        build(Surface(dump), BuildSettings(compute_capabilities=("9.9",)))
    listed = caught.value.remedy.removeprefix("choose among ").split(", ")
    assert {"8.9", "12.0"} <= set(listed)
    assert listed == sorted(listed, key=float)
    build(Surface(dump), BuildSettings(compute_capabilities=tuple(listed)))


@pytest.mark.parametrize(
    "logged",
    [
        "Error Code 10: Internal Error (Could not find any implementation for node Conv_0.)",
        "Tactic Selection: no tactics to implement the operation within workspace limit.",
    ],
)
def test_too_little_scratch_memory_is_answered_with_the_option_that_bounds_it(logged: str) -> None:
    errors = [logged]
    bounded = _failure("TensorRT could not build the engine", errors, 1 << 20)
    assert isinstance(bounded, BuildError)
    assert bounded.remedy.startswith("raise --workspace, which leaves 1 MiB")
    unbounded = _failure("TensorRT could not build the engine", errors)
    assert isinstance(unbounded, BuildError)
    assert "--workspace" not in unbounded.remedy


@each_version
def test_an_operator_that_the_parser_lacks_is_named_with_its_node(dump: str) -> None:
    with pytest.raises(UnsupportedOpError, match=r"node '(first|/stem/conv/Conv)' \(Conv\): No importer"):
        build(Surface(dump, UNSUPPORTED))


@each_version
@pytest.mark.parametrize("code", ["UNSUPPORTED_NODE", "INVALID_NODE"])
def test_the_parsers_error_code_tells_unsupported_from_broken(dump: str, code: str) -> None:
    told = {
        "ParserError.code": lambda fault: fault._surface.member("ErrorCode", code),
        "ParserError.desc": "bad",
    }
    with pytest.raises(TrtoptError, match="bad") as error:
        build(Surface(dump, UNSUPPORTED | told))
    assert isinstance(error.value, UnsupportedOpError) == (code == "UNSUPPORTED_NODE")


@each_version
@pytest.mark.parametrize(
    ("replaced", "error", "words"),
    [
        ({"OnnxParser.parse_from_file": say("ERROR", "truncated", False)}, BuildError, "truncated"),
        ({"Builder.build_serialized_network": say("ERROR", "a\na\nb")}, BuildError, "engine: a; b"),
        (
            {"Builder.build_serialized_network": say("ERROR", "out of memory")},
            DeviceMemoryError,
            "device memory",
        ),
        ({"IBuilderConfig.add_optimization_profile": -1}, BuildError, "shapes"),
        ({"ITensor.is_shape_tensor": True}, UsageError, "shape tensor"),
    ],
)
def test_a_failing_build_raises_the_fitting_error_with_tensorrts_words(
    dump: str, replaced: dict[str, Any], error: type[TrtoptError], words: str
) -> None:
    with pytest.raises(error, match=words):
        build(Surface(dump, replaced))


@each_version
@pytest.mark.parametrize("made", ["Builder", "Runtime"])
def test_a_builder_or_runtime_that_cannot_be_made_is_an_error_of_ours(dump: str, made: str) -> None:
    surface = Surface(dump, {f"{made}.__init__": TypeError(NULL)})
    with pytest.raises(TrtoptError):
        build(surface) if made == "Builder" else load(surface)


# ── timing caches ───────────────────────────────────────────────────────────────────────────────────────


@each_version
def test_a_timing_cache_goes_in_and_comes_out_where_it_has_an_effect(dump: str) -> None:
    surface = Surface(dump)
    built = build(surface, cache=b"a saved cache")
    given = [call["serialized_timing_cache"] for call in surface.called("IBuilderConfig.create_timing_cache")]
    if target(dump).timing_cache:
        assert b"a saved cache" in given
        assert [call["ignore_mismatch"] for call in surface.called("IBuilderConfig.set_timing_cache")] == [
            False
        ]
        assert (built.timing_cache or b"").startswith(b"a saved cache")
    else:
        assert (given, built.timing_cache) == ([], None)


@each_with_cache
def test_the_hits_that_tensorrt_logs_as_its_cache_goes_are_counted(dump: str) -> None:
    surface = Surface(dump)
    assert build(surface, cache=b"a saved cache").timing_cache_hits == HITS
    assert surface.dangling == []


@each_with_cache
def test_a_failing_build_lets_its_cache_go_while_the_logger_still_hears_it(dump: str) -> None:
    surface = Surface(dump, {"Builder.build_serialized_network": None})
    with pytest.raises(BuildError):
        build(surface, cache=b"a saved cache")
    gc.collect()
    assert surface.dangling == []


@each_with_cache
@pytest.mark.parametrize(
    "replaced",
    [
        {"IBuilderConfig.set_timing_cache": False},
        {
            "IBuilderConfig.create_timing_cache": lambda c, blob: (
                None if blob else c._surface.make("ITimingCache", blob=b"")
            )
        },
        {"IBuilderConfig.create_timing_cache": lambda c, blob: c._surface.make("ITimingCache", blob=b"")},
    ],
    ids=["set refuses", "create refuses", "create starts empty"],
)
def test_a_timing_cache_that_tensorrt_does_not_take_is_refused_before_the_build(
    dump: str, replaced: dict[str, Any]
) -> None:
    surface = Surface(dump, replaced)
    with pytest.raises(TimingCacheError):
        build(surface, cache=b"a cache of another GPU")
    gc.collect()
    assert (surface.called("Builder.build_serialized_network"), surface.dangling) == ([], [])


@each_with_cache
def test_a_timing_cache_that_tensorrt_could_not_read_again_is_not_selected(dump: str) -> None:
    written = iter([b"header", b"header and what the graph compiler found", b"header", b"header"])
    surface = Surface(
        dump, {"ITimingCache.serialize": lambda cache: cache._surface.make("IHostMemory", next(written))}
    )
    assert build(surface).timing_cache is None


@each_with_cache
def test_merged_timing_caches_hold_both_and_a_refusal_is_reported_with_its_reason(dump: str) -> None:
    merged = builder(Surface(dump)).merge_timing_caches(b"ours", b"theirs")
    assert b"ours" in merged
    assert b"theirs" in merged
    surface = Surface(dump, {"ITimingCache.combine": False})
    with pytest.raises(TimingCacheError, match="merge"):
        builder(surface).merge_timing_caches(b"ours", b"theirs")


# ── running ─────────────────────────────────────────────────────────────────────────────────────────────


@each_version
def test_an_engine_is_loaded_bound_enqueued_and_profiled(dump: str) -> None:
    surface = Surface(dump)
    inputs, outputs, memory, bindings, layers, seen, _ = run(surface)
    assert [(spec.name, spec.shape) for spec in (*inputs, *outputs)] == [
        (IMAGES[0], ("?", 1, 8, 8)),
        (LOGITS[0], ("?", 10)),
    ]
    assert [(one.shape, one.is_input) for one in bindings] == [((8, 1, 8, 8), True), ((8, 10), False)]
    assert (memory, layers, seen) == (2048, [LAYER, LAYER, True], '{"Layers": [8]}')
    assert len(surface.called("IExecutionContext.execute_async_v3")) == 3
    assert not surface.called("Runtime.gpu_allocator")


@each_version
def test_a_closed_context_is_given_back_whatever_holds_its_launcher(dump: str) -> None:
    device = ScriptedDevice()
    context: Any = load(Surface(dump), device=device).context(SHAPES)
    held, launcher = weakref.ref(context._context), context.launcher(device.stream())
    context.close()
    gc.collect()
    assert held() is None
    del launcher


@each_version
def test_a_tracker_sees_every_allocation_of_loading_and_of_the_context(dump: str) -> None:
    events = run(Surface(dump), track=True)[-1]
    stream = STREAM if target(dump).async_allocator else None
    assert events == [
        ("allocate", 4096, stream),
        ("allocate", 512, stream),
        ("deallocate", 512, stream),
        ("allocate", 2048, stream),
    ]


@pytest.mark.parametrize("dump", [dump for dump in VERSIONS if target(dump).async_allocator])
@pytest.mark.parametrize("order", [(0, STREAM), (STREAM, 0), (1, STREAM), (STREAM, 1)])
def test_the_stream_of_an_allocation_is_found_in_either_order_of_arguments(
    dump: str, order: tuple[int, int]
) -> None:
    device = ScriptedDevice()
    tracked = tracker(device)
    made = make_allocator(Surface(dump).module, target(dump), device, tracked)
    assert made.allocate_async(64, 256, *order) != 0
    assert tracked.events[0].stream == STREAM


@each_version
def test_an_allocator_without_memory_gives_null_and_the_load_fails_as_out_of_memory(dump: str) -> None:
    device = ScriptedDevice(Script(memory_bytes=1000))
    with pytest.raises(DeviceMemoryError, match="out of memory"):
        load(Surface(dump), track=tracker(device), device=device)


@each_version
@pytest.mark.parametrize(
    ("replaced", "error", "words"),
    [
        (
            {"Runtime.deserialize_cuda_engine": say("ERROR", "other GPU")},
            IncompatibleEngineError,
            "other GPU",
        ),
        ({"Runtime.deserialize_cuda_engine": say("ERROR", "out of memory")}, DeviceMemoryError, "memory"),
        ({"ICudaEngine.create_execution_context": say("ERROR", "no room")}, DeviceMemoryError, "no room"),
        ({"IExecutionContext.set_input_shape": False}, DeviceError, IMAGES[0]),
        ({"IExecutionContext.infer_shapes": [IMAGES[0]]}, UsageError, "decide shapes by their values"),
        ({"IExecutionContext.execute_async_v3": False}, DeviceError, "enqueue"),
    ],
)
def test_a_failing_run_raises_the_fitting_error_with_tensorrts_words(
    dump: str, replaced: dict[str, Any], error: type[TrtoptError], words: str
) -> None:
    with pytest.raises(error, match=words):
        run(Surface(dump, replaced))


@each_version
def test_an_output_of_data_dependent_size_gets_memory_that_grows_with_it(dump: str) -> None:
    device = ScriptedDevice()
    bindings, first, second = run_sized(Surface(dump, SIZED), device)
    assert [one.is_data_dependent for one in bindings] == [False, True]
    assert (first[0], second[0]) == ((3, 10), (6, 10))
    assert second[1] - first[1] == 3 * 10 * 4  # the first memory is given back


@each_version
def test_without_room_for_such_an_output_the_run_fails_as_out_of_memory(dump: str) -> None:
    room = Script(memory_bytes=8 * 8 * 8 * 4 + 130)  # for the images and three rows
    with pytest.raises(DeviceMemoryError, match="allocating 240 bytes"):
        run_sized(Surface(dump, SIZED), ScriptedDevice(room))


@each_version
def test_a_shape_outside_the_engines_range_is_refused_before_a_context_is_made(dump: str) -> None:
    surface = Surface(dump)
    with pytest.raises(UsageError, match="outside"):
        load(surface).context({IMAGES[0]: (9, 1, 8, 8)})
    assert surface.called("ICudaEngine.create_execution_context") == []
    assert load(surface).context(SHAPES).bindings


@each_version
def test_a_buffer_that_tensorrt_does_not_take_is_an_error(dump: str) -> None:
    device = ScriptedDevice(Script())
    surface = Surface(dump, {"IExecutionContext.set_tensor_address": False})
    context = load(surface, device=device).context(SHAPES)
    buffers = {binding.name: device.device_buffer(binding.nbytes) for binding in context.bindings}
    with pytest.raises(DeviceError, match="took no buffer for 'images'"):
        context.bind(buffers)
