"""The table of differences and every name of TensorRT's API that trtopt spells or uses, version by version.

Nothing here runs TensorRT: `trt_surface.py` says what stands in for it. `test_tensorrt_paths.py` has the
builder's and the runtime's paths.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import trt_spelling as spelling
from tests.support.long import few
from tests.support.trt_exercise import RTX_DUMP, VERSIONS, each_version, exercise, run, target
from tests.support.trt_surface import DUMPS, Surface, load as load_dump
from trtopt import records, targets
from trtopt.builder_settings import plain_attributes
from trtopt.device import api
from trtopt.device.tensorrt import allocator, runtime
from trtopt.errors import TrtoptError
from trtopt.targets import NUMPY_TYPES, PRECISION_FLAGS, RTX, TENSORRT, target_of_version

FIRST_OF_10 = "tensorrt-10.0.1"

# What not every version has: the field of `Target` that says whether the code goes there. None: the code
# asks the object itself with `hasattr`.
CONDITIONS: dict[str, str | None] = {
    "IProgressMonitor": "progress_monitor",
    "progress_monitor": "progress_monitor",
    "IGpuAsyncAllocator": "async_allocator",
    "ComputeCapability": "compute_capability_choice",
    "num_compute_capabilities": "compute_capability_choice",
    "set_compute_capability": "compute_capability_choice",
    "get_compute_capability": "compute_capability_choice",
    "EDITABLE_TIMING_CACHE": "editable_cache",
    "ERROR_ON_TIMING_CACHE_MISS": "editable_cache",
    "queryKeys": "editable_cache",
    "query": "editable_cache",
    "tacticHash": "editable_cache",
    "IAlgorithmSelector": "algorithm_selector",
    "algorithm_selector": "algorithm_selector",
    "algorithm_variant": "algorithm_selector",
    "get_algorithm_io_info": "algorithm_selector",
    "components_per_element": "algorithm_selector",
    "implementation": "algorithm_selector",
    "strides": "algorithm_selector",
    "tactic": "algorithm_selector",
    "vectorized_dim": "algorithm_selector",
    "TilingOptimizationLevel": "tiling",
    "tiling_optimization_level": "tiling",
    "precision": "weakly_typed",
    "set_output_type": "weakly_typed",
    "set_dynamic_range": "weakly_typed",
    "attention": None,
    "decomposable": None,
    "node_name": None,
    "node_operator": None,
}


# ── the table of differences ────────────────────────────────────────────────────────────────────────────


def test_the_dumps_together_stay_below_60_kilobytes() -> None:
    assert sum(path.stat().st_size for path in DUMPS.glob("*.json.gz")) < 60_000


@pytest.mark.parametrize(
    ("name", "version", "like"),
    [
        (TENSORRT, "8.6.0", "tensorrt-8.6.0"),
        (TENSORRT, "8.6.1.post1", "tensorrt-8.6.0"),
        (TENSORRT, "9.3.0", "tensorrt-8.6.0"),
        (TENSORRT, "10.8.0.43", "tensorrt-10.16.1.11"),
        (TENSORRT, "10.16.1.11", "tensorrt-10.16.1.11"),
        (TENSORRT, "11.1.0.106", "tensorrt-11.4.0.106"),
        (TENSORRT, "12.0.0", "tensorrt-11.4.0.106"),
        (RTX, "1.2.0", RTX_DUMP),
        (RTX, "1.7.1.116", RTX_DUMP),
    ],
)
def test_a_version_gets_the_row_of_its_kind(name: str, version: str, like: str) -> None:
    assert target_of_version(name, version) == target(like)


@pytest.mark.parametrize("version", ["10.0.1", "10.7.0"])
def test_caches_became_editable_with_10_8(version: str) -> None:
    assert not target_of_version(TENSORRT, version).editable_cache


def test_build_routes_came_with_11_1_and_rtx_lists_none() -> None:
    """RTX 1.7 has the names, and gives an empty list."""
    assert not target_of_version(TENSORRT, "11.0.0").build_routes
    assert not target_of_version(RTX, "1.7.1").build_routes


@pytest.mark.parametrize("version", ["8.5.3", "7.2.1.6"])
def test_a_version_before_8_6_has_no_row(version: str) -> None:
    with pytest.raises(ValueError, match=r"older than 8\.6"):
        target_of_version(TENSORRT, version)


@each_version
def test_every_name_in_the_table_exists_in_the_version_that_it_is_for(dump: str) -> None:
    surface, row = Surface(dump), target(dump)
    assert set(row.network_flags) <= surface.names("NetworkDefinitionCreationFlag")
    assert surface.api["classes"]["ICudaEngine"]["properties"][row.device_memory][0] == "int"
    assert row.async_allocator == surface.has("IGpuAsyncAllocator.allocate_async")
    assert row.async_allocator or surface.has("IGpuAllocator.allocate")
    assert row.progress_monitor == surface.has("IProgressMonitor.phase_start")
    assert row.progress_monitor == surface.has("IBuilderConfig.progress_monitor")
    assert row.compute_capability_choice == surface.has("IBuilderConfig.set_compute_capability")
    assert row.compute_capability_choice == surface.has("ComputeCapability.SM89")
    assert row.timing_cache <= surface.has("ITimingCache.combine")
    backend = records.Backend(name=row.backend, version=dump.rpartition("-")[2])
    assert [name for name in plain_attributes(backend) if not surface.has(f"IBuilderConfig.{name}")] == []


@each_version
def test_a_network_is_strongly_typed_wherever_the_version_can(dump: str) -> None:
    surface, row = Surface(dump), target(dump)
    assert row.weakly_typed != surface.has("NetworkDefinitionCreationFlag.STRONGLY_TYPED")
    by_choice = surface.has("BuilderFlag.FP16") and not row.weakly_typed
    assert ("STRONGLY_TYPED" in row.network_flags) == by_choice


@each_version
def test_every_data_type_of_a_version_has_a_numpy_name(dump: str) -> None:
    assert Surface(dump).names("DataType") <= NUMPY_TYPES.keys()


def test_precision_flags_are_flags_of_some_version_and_types_that_the_table_knows() -> None:
    flags = {name for dump in VERSIONS for name in Surface(dump).names("BuilderFlag")}
    assert set(PRECISION_FLAGS.values()) <= flags
    assert PRECISION_FLAGS.keys() <= set(NUMPY_TYPES.values())


def test_the_first_release_of_the_10_row_can_be_run_like_the_last() -> None:
    assert run(Surface(FIRST_OF_10)) == run(Surface("tensorrt-10.16.1.11"))


# ── every name, spelled or used ─────────────────────────────────────────────────────────────────────────


@each_version
def test_every_name_spelled_on_the_module_exists_wherever_the_code_goes(dump: str) -> None:
    surface, row = Surface(dump), target(dump)
    for name, place in spelling.module_names().items():
        condition = CONDITIONS.get(name.partition(".")[0]) or CONDITIONS.get(name.rpartition(".")[2])
        assert surface.has(name) or (condition and not getattr(row, condition)), f"{place}: {name}"


@each_version
def test_every_member_spelled_that_some_version_lacks_is_guarded_by_the_table(dump: str) -> None:
    row, ours = target(dump), spelling.names_of_ours(api, records, targets, allocator)
    known = {other: Surface(other).members() for other in VERSIONS}
    for name, place in spelling.member_names().items():
        if any(name in names for names in known.values()) and name not in known[dump] and name not in ours:
            assert name in CONDITIONS, f"{place}: {dump} has no {name}; is that path closed to it?"
            condition = CONDITIONS[name]
            assert condition is None or not getattr(row, condition), f"{place}: {name}"


def test_every_condition_is_still_needed() -> None:
    spelled = spelling.module_names().keys() | spelling.member_names().keys()
    assert CONDITIONS.keys() <= spelled


def test_every_member_of_tensorrt_that_the_source_spells_is_used_in_these_runs() -> None:
    used = {name.rpartition(".")[2] for dump in VERSIONS for name in exercise(dump)[1]}
    known = {name for dump in VERSIONS for name in Surface(dump).members()}
    ours = spelling.names_of_ours(api, records, targets, allocator, runtime)
    missed = {name: place for name, place in spelling.member_names().items() if name in known - used - ours}
    assert not missed, f"trt_exercise.py comes by none of these: {missed}"


def test_no_integer_stands_for_a_member_of_an_enum() -> None:
    for path in spelling.SOURCES:
        assert spelling.enum_integers(path.read_text("utf-8"), path.name) == []


@pytest.mark.parametrize(
    "line",
    ["trt.DataType(3)", "mask = 1 << 3", "b.create_network(1)", "int(flag) == 3", "mode.value != 1"],
)
def test_an_integer_that_stands_for_a_member_of_an_enum_is_found(line: str) -> None:
    assert spelling.enum_integers(line, "line") == ["line:1"]


@pytest.mark.parametrize("dump", few(RTX_DUMP, of=VERSIONS))
def test_every_name_that_is_used_is_missed_when_a_version_lacks_it(dump: str) -> None:
    expected, used = exercise(dump)
    assert len(used) > 60

    def goes_unnoticed(name: str) -> bool:
        try:
            return exercise(dump, without=name)[0] == expected
        except (AttributeError, TypeError, KeyError, TrtoptError):
            return False

    assert [name for name in sorted(used) if goes_unnoticed(name)] == []


# ── the installed binding ───────────────────────────────────────────────────────────────────────────────


def test_the_installed_tensorrt_rtx_is_what_its_dump_says() -> None:
    module = pytest.importorskip("tensorrt_rtx", exc_type=ImportError)
    installed = runpy.run_path(str(DUMPS / "dump_surface.py"))["describe"](module)
    real, dumped = Surface(RTX_DUMP), load_dump(RTX_DUMP)
    if installed["version"] == dumped["version"] and sys.version_info < (3, 12):
        assert installed == dumped  # from 3.12 on the binding spells some types otherwise
    real.api = installed
    documented = {
        f"IOutputAllocator.{name}" for name in re.findall(r"def (\w+)", module.IOutputAllocator.__doc__)
    }
    assert [name for name in sorted(exercise(RTX_DUMP)[1] - documented) if not real.has(name)] == []


# ── the stand-ins themselves ────────────────────────────────────────────────────────────────────────────


class Made:
    """What the probes below need, made from a surface or from the real binding."""

    def __init__(self, trt: Any) -> None:
        class Logger(trt.ILogger):  # type: ignore[misc]
            def __init__(self) -> None:
                trt.ILogger.__init__(self)

            def log(self, severity: Any, msg: str) -> None:
                pass

        class Hasty(trt.IProfiler):  # type: ignore[misc]
            def __init__(self) -> None:
                pass

        self.trt, self.logger, self.hasty = trt, Logger(), Hasty
        self.builder = trt.Builder(self.logger)
        self.network = self.builder.create_network(0)
        self.config = self.builder.create_builder_config()
        self.parser = trt.OnnxParser(self.network, self.logger)


PROBES: dict[str, Callable[[Made], Any]] = {
    "a name that there is not": lambda made: made.trt.NoSuchThing,
    "an enum member that there is not": lambda made: made.trt.BuilderFlag.NO_SUCH_FLAG,
    "an attribute that there is not": lambda made: made.config.no_such_setting,
    "setting an attribute that there is not": lambda made: setattr(made.config, "no_such_setting", 1),
    "setting what can only be read": lambda made: setattr(made.network, "num_inputs", 1),
    "setting an integer for an enum": lambda made: setattr(made.config, "profiling_verbosity", 2),
    "setting text for an integer": lambda made: setattr(made.config, "builder_optimization_level", "5"),
    "setting what can be set": lambda made: setattr(made.config, "builder_optimization_level", 5),
    "making what only TensorRT makes": lambda made: made.trt.ITensor(),
    "a class without its base's __init__": lambda made: made.hasty(),
    "an argument too few": lambda made: made.config.set_memory_pool_limit(made.trt.MemoryPoolType.WORKSPACE),
    "an argument too many": lambda made: made.builder.create_network(0, 0),
    "a keyword of another name": lambda made: made.builder.create_network(flag=0),
    "a keyword": lambda made: made.config.set_tactic_sources(tactic_sources=1),
    "a path where text is due": lambda made: made.parser.parse_from_file(Path("a")),
    "an integer where an enum is due": lambda made: made.config.set_flag(6),
    "another class": lambda made: made.trt.Builder(made.config),
    "a shift by an enum": lambda made: 1 << made.trt.BuilderFlag.TF32,
    "an enum as an integer": lambda made: int(made.trt.BuilderFlag.TF32),
    "an enum's name": lambda made: made.trt.ILogger.ERROR.name,
    "a nested enum": lambda made: made.trt.ILogger.ERROR == made.trt.ILogger.Severity.ERROR,
    "an enum equal to an integer": lambda made: (
        made.trt.BuilderFlag.TF32 in [made.trt.BuilderFlag.TF32.value]
    ),
    "going through an enum": lambda made: list(made.trt.BuilderFlag),
    "an enum's member by key": lambda made: made.trt.BuilderFlag["TF32"],
    "an enum's members in order": lambda made: list(made.trt.BuilderFlag.__members__),
    "dims as a tuple": lambda made: tuple(made.trt.Dims((1, 2))),
    "dims equal to a tuple": lambda made: made.trt.Dims((1, 2)) == (1, 2),
    "dims equal to dims": lambda made: made.trt.Dims((1, 2)) == made.trt.Dims((1, 2)),
    "the hash of dims": lambda made: hash(made.trt.Dims((1, 2))),
}


@pytest.fixture(scope="module")
def real_and_stand_in() -> tuple[Made, Made]:
    return Made(pytest.importorskip("tensorrt_rtx", exc_type=ImportError)), Made(Surface(RTX_DUMP).module)


@pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES.keys())
def test_a_stand_in_takes_and_refuses_what_the_real_binding_does(
    real_and_stand_in: tuple[Made, Made], probe: Callable[[Made], Any]
) -> None:
    def outcome(made: Made) -> Any:
        try:
            return probe(made)
        except (AttributeError, TypeError) as error:
            return type(error)

    real, stand_in = map(outcome, real_and_stand_in)
    assert real == stand_in


def test_a_stand_in_refuses_to_override_what_its_version_lacks() -> None:
    trt = Surface(RTX_DUMP).module
    with pytest.raises(AttributeError, match="allocate"):
        type("Allocator", (trt.IGpuAllocator,), {"allocate": lambda self, size, alignment, flags: 0})
    with pytest.raises(TypeError):  # TensorRT hands over three arguments
        type("Allocator", (trt.IGpuAllocator,), {"reallocate": lambda self, address: 0})


def test_a_stand_in_tells_of_a_logger_that_is_gone() -> None:
    surface = Surface(RTX_DUMP)
    made = Made(surface.module)
    del made.logger
    with pytest.raises(ReferenceError):
        made.builder.build_serialized_network(made.network, made.config)
