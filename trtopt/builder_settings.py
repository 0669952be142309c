"""The builder's settings: each is declared here once.

A declaration decides the option of every command that builds, the parameter of `trtopt.build` and of
`trtopt.sweep`, the range that a recipe must keep, and what a manifest records. It also decides which timing
caches a build may use, whether a sweep may continue, the refusal by a backend that lacks it, what tuning
tries, and the table in docs/reference/builder-settings.md. Records name the field with its type:
`RecipeSettings`, or `Recipe` and `BuildSettings` where a manifest has it otherwise; and `CacheTerms` if it
decides which tactics compete. A setting that is not a plain attribute of TensorRT's builder config is applied
in device/tensorrt/builder.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from trtopt.errors import UsageError
from trtopt.files.bounded_reading import sha256_of
from trtopt.options import Declared, Option, choices_of, declared_in, parse_mib, parse_names
from trtopt.records import Backend, Plugin, Record
from trtopt.targets import DISPLAYED, ONNXRUNTIME, ROWS, RTX, TENSORRT, target_of

AnyRecord = TypeVar("AnyRecord", bound=Record)


@dataclass(frozen=True, kw_only=True)
class Setting(Option):
    """The option of a setting; `recorded` in a manifest as a multiple of `unit`."""

    name: str = ""
    """Its field in a recipe."""
    is_library: bool = False
    """Whether it names native code, of which a manifest records the hash."""
    recorded_as: str | None = None
    unit: int = 1
    attribute: str | None = None
    """The attribute of TensorRT's builder config that takes the value unchanged."""
    decides_tactics: bool = False
    """Whether it decides which tactics compete: timing caches are kept apart by it."""
    backends: tuple[str, ...] = (TENSORRT, RTX)
    """Those that have it; the others refuse it."""
    tried: tuple[Any, ...] = ()
    """The values that tuning tries."""
    needs: str | None = None
    """The column of the table of targets that says which versions of these have it; None: all."""

    @property
    def recorded(self) -> str:
        """Its field in `BuildSettings`."""
        return self.recorded_as or self.name

    @property
    def available(self) -> str:
        """What has it."""
        if self.needs is not None:
            first = next(row for row in ROWS if getattr(row, self.needs))
            return f"{DISPLAYED[first.backend]} {'.'.join(map(str, first.since))} and newer"
        return "every TensorRT" if len(self.backends) > 1 else DISPLAYED[self.backends[0]]

    def is_of(self, backend: Backend) -> bool:
        """Whether a backend has it."""
        if backend.name not in self.backends:
            return False
        return self.needs is None or bool(getattr(target_of(backend), self.needs))

    def record(self, value: Any) -> Any:
        """The value of a recipe as a manifest has it."""
        if self.is_library:
            return tuple(_plugin(path) for path in value)
        return value if value is None or self.unit == 1 else value * self.unit


def _of_onnxruntime(text: str, **more: Any) -> Setting:
    python = text if "ONNX Runtime" in text else f"{text.rstrip('.')} (ONNX Runtime)."
    return Setting(text, python=python, backends=(ONNXRUNTIME,), **more)


@dataclass(frozen=True, kw_only=True)
class SweptSettings:
    """The settings that a sweep has too; None is not given."""

    opt_level: Annotated[
        int | None,
        Setting(
            "Builder optimisation level, 0 to 5.",
            range=(0, 5),
            tried=(5, 4),
            attribute="builder_optimization_level",
            decides_tactics=True,
        ),
    ] = None
    workspace_mib: Annotated[
        int | None,
        Setting(
            "Most scratch memory that a layer may use, in MiB.",
            flag="--workspace",
            metavar="MIB",
            parse=partial(parse_mib, "--workspace"),
            range=(1, 1 << 20),
            recorded_as="workspace_bytes",
            unit=2**20,
            decides_tactics=True,
        ),
    ] = None
    tactic_sources: Annotated[
        Sequence[str] | None,
        Setting(
            "Where tactics may come from: names of TensorRT's TacticSource, such as CUBLAS_LT.",
            metavar="NAME,NAME,…",
            parse=parse_names,
            decides_tactics=True,
        ),
    ] = None
    plugins: Annotated[
        Sequence[str | Path] | None,
        Setting(
            "Plugin library to load: native code.",
            flag="--plugin",
            metavar="LIB.so",
            is_path=True,
            is_library=True,
            decides_tactics=True,
        ),
    ] = None
    reproducible: Annotated[
        bool | None,
        Setting(
            "Fail if the timing cache lacks a timing (TensorRT 10.8 and newer).",
            needs="editable_cache",
        ),
    ] = None
    aux_streams: Annotated[
        int | None,
        Setting(
            "Most auxiliary streams that an engine's layers may run on in parallel; 0: none.",
            range=(0, 16),
            tried=(0, 1, 4),
            attribute="max_aux_streams",
        ),
    ] = None
    avg_timing: Annotated[
        int | None,
        Setting(
            "Runs of a tactic that its timing is the average of [default: 8, as trtexec's].", range=(1, 1000)
        ),
    ] = None
    tiling: Annotated[
        Literal["none", "fast", "moderate", "full"] | None,
        Setting(
            "How hard to search for layers to run tile by tile within the L2 cache (TensorRT 10.8 and "
            "newer).",
            tried=("full", "moderate", "fast"),
            decides_tactics=True,
            needs="tiling",
        ),
    ] = None
    l2_limit_mib: Annotated[
        int | None,
        Setting(
            "L2 cache that tiled layers may use, in MiB; less leaves room for other streams (TensorRT 10.8 "
            "and newer).",
            flag="--l2-limit",
            metavar="MIB",
            parse=partial(parse_mib, "--l2-limit"),
            range=(1, 1 << 20),
            recorded_as="l2_limit_bytes",
            unit=2**20,
            attribute="l2_limit_for_tiling",
            decides_tactics=True,
            needs="tiling",
        ),
    ] = None
    build_route: Annotated[
        str | None,
        Setting(
            "Internal options of the builder, as trtexec --setBuildRoute takes them (TensorRT 11.1 and "
            "newer).",
            metavar="'-NAME=VALUE …'",
            attribute="build_route",
            decides_tactics=True,
            needs="build_routes",
        ),
    ] = None
    graph_optimization: Annotated[
        Literal["disable", "basic", "extended", "all"] | None,
        _of_onnxruntime("Graph optimisation level of ONNX Runtime."),
    ] = None
    intra_op_threads: Annotated[
        int | None, _of_onnxruntime("Threads that share the work of a node.", range=(1, 1024))
    ] = None
    execution_mode: Annotated[
        Literal["sequential", "parallel"] | None,
        _of_onnxruntime("Whether independent nodes run one after the other or in parallel."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class BuilderSettings(SweptSettings):
    """All settings; None is not given."""

    compute_capability: Annotated[
        Sequence[str] | None,
        Setting(
            "GPUs to build for, such as 8.9 (TensorRT-RTX).",
            metavar="CC,CC,…",
            parse=parse_names,
            recorded_as="compute_capabilities",
            backends=(RTX,),
        ),
    ] = None


def setting_of(one: Declared) -> Setting:
    """The setting of a field, with what the field says of it."""
    setting: Setting = one.declaration
    return replace(setting, name=one.name, flag=one.flag, choices=tuple(choices_of(one)))


SWEPT = tuple(setting_of(one) for one in declared_in(SweptSettings))
SETTINGS = tuple(setting_of(one) for one in declared_in(BuilderSettings))
Settings = Sequence[Setting]


def recorded_settings(recipe: Record, kind: type[AnyRecord], settings: Settings = SETTINGS) -> AnyRecord:
    """The settings of a recipe as a manifest has them: a `BuildSettings`."""
    return kind(**{setting.recorded: setting.record(getattr(recipe, setting.name)) for setting in settings})


def cache_terms(recorded: Record, kind: type[AnyRecord], settings: Settings = SETTINGS) -> AnyRecord:
    """What of a build's settings decides which tactics compete, as `CacheTerms`; of libraries the hashes."""
    deciding = {one.recorded: getattr(recorded, one.recorded) for one in settings if one.decides_tactics}
    plugins = [one.recorded for one in settings if one.is_library and one.decides_tactics]
    return kind(**deciding | {name: tuple(one.sha256 for one in deciding[name]) for name in plugins})


def check_backend(recorded: Record, backend: Backend, settings: Settings = SETTINGS) -> None:
    """Refuse settings that a backend does not have."""
    plain = type(recorded)()
    for one in settings:
        is_given = getattr(recorded, one.recorded) != getattr(plain, one.recorded)
        if is_given and not one.is_of(backend):
            other = one.available if backend.name in one.backends else f"--backend {one.backends[0]}"
            raise UsageError(
                f"{one.flag}: {backend} has no such setting ({one.available} has)",
                f"omit {one.flag}, or build with {other}",
            )


def plain_attributes(backend: Backend, settings: Settings = SETTINGS) -> dict[str, Setting]:
    """The settings of a backend that are set on TensorRT's builder config unchanged, by its attributes."""
    return {one.attribute: one for one in settings if one.attribute and one.is_of(backend)}


def _plugin(path: str) -> Plugin:
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"--plugin {path}: no such file", "give the path of a plugin library (.so)")
    return Plugin(path=str(file.resolve()), sha256=sha256_of(file))
