"""What a pool loads, and Triton is given: the engines of a build folder, or those of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trtopt.errors import ArtifactError, WrongPathError
from trtopt.files.bounded_reading import read_bounded, reading_as
from trtopt.files.manifests import MANIFEST, read_manifest, read_plan, read_verified
from trtopt.records import BatchPlan, BatchPolicy, BenchReport, EngineArtifact, read_versioned
from trtopt.serving.engine_selection import Offer

_WANTED = "give a folder that `trtopt build` made, or a file that `trtopt plan -o` wrote"


Medians = dict[str, tuple[tuple[int, float], ...]]
"""By an engine's SHA-256: (batch, median milliseconds) by ascending batch."""


@dataclass(frozen=True)
class Source:
    """An engine that may be loaded, and what it offers (see `Engine`): somebody has vouched for `content`."""

    artifact: EngineArtifact
    content: bytes
    offers: tuple[Offer, ...]


def offers_of(
    artifact: EngineArtifact, latency_ms: tuple[tuple[int, float], ...] = (), *, only_measured: bool = False
) -> tuple[Offer, ...]:
    """What batches were measured to take, by profile; `only_measured` leaves other profiles out."""
    offers = tuple(
        Offer(low, high, tuple((batch, ms) for batch, ms in latency_ms if low <= batch <= high))
        for low, high, _ in artifact.plan.spans
    )
    measured = tuple(offer for offer in offers if offer.latency_ms)
    return measured if measured and only_measured else offers


@dataclass(frozen=True)
class Opening:
    """Engines of one model, by paths from `folder`, and how to serve them: by a plan, if there is one.

    Without a plan or a sweep there is no `policy`. A plan leaves profiles out that were not measured.
    """

    folder: Path
    engines: Sequence[EngineArtifact]
    policy: BatchPolicy | None = None
    workers: int = 1
    plan: BatchPlan | None = None

    @property
    def largest(self) -> EngineArtifact:
        """The engine that runs the largest batch."""
        return max(self.engines, key=lambda engine: engine.plan.batch.max)

    def content_of(self, engine: EngineArtifact) -> bytes:
        """What its file holds, which the manifest or the plan vouches for."""
        vouching = "manifest" if self.plan is None else "plan"
        return read_verified(self.folder / engine.path, engine.sha256, vouching)

    def sources(self) -> Iterator[Source]:
        """Every engine with its content, one at a time."""
        if self.plan is None:
            latencies = measured_latencies(self.folder, self.engines)
        else:
            latencies = {engine.artifact.sha256: engine.latency_ms for engine in self.plan.engines}
        for engine in self.engines:
            measured = latencies.get(engine.sha256, ())
            offers = offers_of(engine, measured, only_measured=self.plan is not None)
            yield Source(engine, self.content_of(engine), offers)


def opening_of(path: Path) -> Opening:
    """Read the manifest or the plan; for errors see `EnginePool.open`."""
    if not path.is_file():
        check_build_folder(path)
        return Opening(path, read_manifest(path).engines)
    plan = read_plan_at(path)
    engines = [engine.artifact for engine in plan.engines]
    return Opening(path.parent, engines, plan.policy, plan.workers, plan)


def check_build_folder(path: Path) -> None:
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


def read_plan_at(path: Path) -> BatchPlan:
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
"""A result of `trtopt bench` of this name in a build folder is gone by."""


def measured_latencies(folder: Path, engines: Sequence[EngineArtifact]) -> Medians:
    """By the result in the folder, as far as it measured these engines."""
    path = folder / BENCH_FILE
    if not path.is_file():
        return {}
    with reading_as(
        "a result of trtopt bench", path, "measure again with trtopt bench --json FILE, or remove the file"
    ):
        report = read_versioned(read_bounded(path), BenchReport)
    medians: dict[str, dict[int, float]] = {engine.sha256: {} for engine in engines}
    for point in report.points:
        latency = point.latency.samples.latency_ms
        if latency and point.latency.engine.sha256 in medians:
            medians[point.latency.engine.sha256][point.batch] = float(np.median(latency))
    return {sha256: tuple(sorted(found.items())) for sha256, found in medians.items() if found}
