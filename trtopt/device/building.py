"""What the rest of trtopt needs of a backend that builds engines: one protocol and what it hands around."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trtopt.device.api import ClockSensor, DeviceMemory, ProgressSink
from trtopt.records import Backend, BuildPlan, DeviceInfo, TensorSpec


@dataclass(frozen=True)
class BuiltEngine:
    """What a builder returns; the caller writes it to disk."""

    engine: bytes
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    config: dict[str, str]
    timing_cache: bytes | None
    timing_cache_hits: int | None = None
    inspector: str | None = None
    """The engine's layers in the backend's own JSON, where it gives them without running the engine."""


LogSink = Callable[[str, str], None]
"""Receives the backend's log: severity (`error`, `warning`, `info`, `verbose`) and message."""


class EngineBuilder(Protocol):
    """A backend that builds engines."""

    @property
    def backend(self) -> Backend:
        """Flavour and version."""

    @property
    def device(self) -> DeviceInfo:
        """What it builds for; kind `none` when it builds without a device."""

    def clock_sensor(self) -> ClockSensor:
        """The clock sensor of the device that it times tactics on."""

    def device_memory(self) -> DeviceMemory | None:
        """The memory of the device that it builds on; None where it needs none, or if unknown."""

    @property
    def max_opset(self) -> int | None:
        """The newest opset of ONNX's own operators that it reads; None where it checks that itself."""

    @property
    def uses_timing_cache(self) -> bool:
        """Whether a timing cache has any effect here."""

    def build(
        self,
        onnx: Path,
        types: Sequence[str],
        plan: BuildPlan,
        *,
        timing_cache: bytes | None,
        progress: ProgressSink,
        log: LogSink,
    ) -> BuiltEngine:
        """Build one engine; `types` are the element types that the graph contains.

        Raises:
            UnsupportedOpError: the parser does not know an operator; names it and its node.
            UsageError: a setting that this flavour does not have.
            TimingCacheError: TensorRT refuses the cache.
            DeviceMemoryError: the builder ran out of device memory.
            BuildError: a reproducible build that the cache did not decide; anything else, with the builder's
                last words.
        """

    def merge_timing_caches(self, ours: bytes, theirs: bytes) -> bytes:
        """One cache with the entries of both; `theirs` is what another build has saved meanwhile."""
