"""What a pool loads: the engines of a build folder, or those of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trtopt.errors import ArtifactError, UsageError, WrongPathError
from trtopt.files.bounded_reading import read_bounded, reading_as
from trtopt.files.manifests import MANIFEST, read_manifest, read_plan, read_verified
from trtopt.records import BatchPlan, BatchPolicy, BenchReport, EngineArtifact, read_versioned

_WANTED = "give a folder that `trtopt build` made, or a file that `trtopt plan -o` wrote"


@dataclass(frozen=True)
class Opening:
    """Engines below `folder`, what they take, and a plan's settings for serving; None without a plan.

    `vouching` is the file that holds the engines' hashes, for messages. `only_measured`: unmeasured profiles
    are left out, as in the plan.
    """

    folder: Path
    vouching: str
    engines: tuple[EngineArtifact, ...]
    latencies: Latencies
    workers: int = 1
    policy: BatchPolicy | None = None
    only_measured: bool = False

    def contents(self) -> Iterator[tuple[EngineArtifact, bytes]]:
        """Every engine with its content, one at a time.

        Raises:
            ArtifactError: it is missing, or another one.
        """
        for engine in self.engines:
            yield engine, read_verified(self.folder / engine.path, engine.sha256, self.vouching)


def opening_of(path: Path, bench: BenchReport | str | Path | None) -> Opening:
    """Read the manifest or the plan; for `bench` and errors see `EnginePool.open`."""
    if not path.is_file():
        _check_build_folder(path)
        engines = read_manifest(path).engines
        return Opening(path, "manifest", engines, measured_latencies(path, engines, bench))
    plan = _read_plan(path)
    engines = tuple(engine.artifact for engine in plan.engines)
    if bench is not None:
        latencies = measured_latencies(path.parent, engines, bench)
    else:
        latencies = {engine.artifact.sha256: engine.latency_ms for engine in plan.engines}
    return Opening(
        path.parent, "plan", engines, latencies, plan.workers, plan.policy, only_measured=bench is None
    )


def _check_build_folder(path: Path) -> None:
    """Raises ArtifactError if it is none; a faulty manifest is reported later."""
    with suppress(PermissionError):
        if not path.exists():
            raise WrongPathError(f"{path}: no such file or folder", _WANTED)
        if (path / MANIFEST).exists():
            return
        builds = sorted(file.parent for file in path.glob(f"builds/*/{MANIFEST}"))
        if not builds:
            raise WrongPathError(f"{path}: has no {MANIFEST}", _WANTED)
        more = f" (or another of {len(builds)} there)" if len(builds) > 1 else ""
        raise WrongPathError(
            f"{path}: is the folder of a sweep, which holds build folders",
            f"give one of these, {builds[0]}{more}, or a file that `trtopt plan {path} -o plan.json` wrote",
        )


def _read_plan(path: Path) -> BatchPlan:
    """As `read_plan`, for somebody who may have meant a build folder."""
    try:
        return read_plan(path)
    except ArtifactError as error:
        remedy = _WANTED
        if (path.parent / MANIFEST).is_file():
            remedy = f"give the build folder that it lies in: {path.parent}; or a file of `trtopt plan -o`"
        elif path.suffix == ".onnx":
            remedy = f"build it first: trtopt build {path} -o FOLDER; then give that folder"
        raise ArtifactError(error.problem, remedy) from None


BENCH_FILE = "bench.json"
"""A result file of this name in a build folder is used by default."""

Latencies = dict[str, tuple[tuple[int, float], ...]]
"""By an engine's SHA-256: (batch, median milliseconds) by ascending batch."""


def measured_latencies(
    folder: Path, engines: tuple[EngineArtifact, ...], bench: BenchReport | str | Path | None
) -> Latencies:
    """The latencies of the engines in a folder, by the report given or the one in the folder.

    A report in the folder that measured other engines is ignored.
    """
    default = folder / BENCH_FILE
    if bench is None:
        return _of(_read(default), engines) if default.is_file() else {}
    report = bench if isinstance(bench, BenchReport) else _read(Path(bench))
    found = _of(report, engines)
    if not found:
        raise UsageError(
            f"the result given measured none of the engines in {folder}",
            f"measure these: trtopt bench {folder} --json {default}",
        )
    return found


def _read(path: Path) -> BenchReport:
    remedy = "measure again with trtopt bench --json FILE, or remove the file"
    with reading_as("a result of trtopt bench", path, remedy):
        return read_versioned(read_bounded(path), BenchReport)


def _of(report: BenchReport, engines: tuple[EngineArtifact, ...]) -> Latencies:
    medians: dict[str, dict[int, float]] = {engine.sha256: {} for engine in engines}
    for point in report.points:
        latency = point.latency.samples.latency_ms
        if latency and point.latency.engine.sha256 in medians:
            medians[point.latency.engine.sha256][point.batch] = float(np.median(latency))
    return {sha256: tuple(sorted(found.items())) for sha256, found in medians.items() if found}
