"""A sweep's folder: who may write to it, what of it is to be believed, and its points in it.

    sweep.json, sweep.csv   the points, after every one of them;
    graphs/PRECISION/       the model in that precision, prepared once;
    builds/PRECISION…/      a build folder with an engine for each batch size;
    results/POINT-KEY.json  the result file of a point, raw samples included

A result file that carries a point's key is what makes a point measured; `sweep.json` is drawn from them.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from trtopt.builder.engine import BuildJob
from trtopt.device.api import EngineBuilder
from trtopt.errors import ArtifactError, DeviceError, OutputError, TrtoptError, WrongPathError
from trtopt.executors.api import Executor
from trtopt.files.atomic import is_temporary, lock, remove_if_abandoned, write_atomically
from trtopt.files.bounded_reading import read_bounded, reading_as, sha256_of
from trtopt.files.manifests import MANIFEST, hashes_of, read_manifest, write_manifest
from trtopt.files.outputs import folder_in_progress
from trtopt.measure.analysis.findings import doubts_of
from trtopt.measure.analysis.sweep_points import csv_of, mean_watts
from trtopt.measure.engine import BenchJob, BenchResult, LoadedEngine
from trtopt.measure.statistics.summaries import summarise, throughput
from trtopt.recipe import Recipe
from trtopt.records import (
    BenchPoint,
    BenchReport,
    EngineArtifact,
    EngineRef,
    Environment,
    Manifest,
    MemoryPass,
    OnnxArtifact,
    PointMemory,
    Samples,
    Spread,
    SweepPoint,
    SweepReport,
    SweepSetting,
    SweepTerms,
    Trust,
    from_json,
    read_versioned,
    to_json,
)
from trtopt.requests.build import SweepRequest
from trtopt.targets import ONNXRUNTIME
from trtopt.workflows.build.folder import stamp, verified_graphs
from trtopt.workflows.build.graph import keep_model, prepare_graph
from trtopt.workflows.compare.result_files import read_result
from trtopt.workflows.provenance import check_model, check_same_terms, command_line, now
from trtopt.workflows.race import engine_at, with_streams
from trtopt.workflows.workbench import Workbench, make_plans

REPORT = "sweep.json"
TABLE = "sweep.csv"


def is_sweep(folder: Path) -> bool:
    """Whether a folder is a sweep's, in whatever state."""
    return (folder / REPORT).is_file()


def read_sweep(folder: Path) -> SweepReport:
    """The report of a sweep."""
    path = folder / REPORT if folder.is_dir() else folder
    with reading_as("the report of a sweep", path, "sweep again into another folder"):
        if not path.exists():
            raise WrongPathError(
                f"{folder}: not a sweep folder: there is no {REPORT}",
                "give a folder that `trtopt sweep -o` made",
            )
        if folder.is_dir() and not path.is_file():
            raise ValueError("not a regular file")  # a pipe would be waited for
        return read_versioned(read_bounded(path), SweepReport)


def save_sweep(folder: Path, report: SweepReport) -> None:
    """Write the report and its table."""
    write_atomically(folder / REPORT, to_json(report))
    write_atomically(folder / TABLE, csv_of(report))


@contextmanager
def sweep_in_progress(folder: Path, model: str, terms: SweepTerms) -> Iterator[SweepReport]:
    """Hold a sweep's folder, new or to be continued; yields the report of what is there."""
    guard = folder / REPORT
    if not guard.exists() and _is_anything(folder):
        raise OutputError(
            f"{folder}: exists and is not a sweep folder", "choose another name with -o, or remove it"
        )
    with lock(guard, wait_s=0):
        if not guard.exists():
            report = SweepReport(created=now(), argv=command_line(), model=model, terms=terms)
            save_sweep(folder, report)
        else:
            report = read_sweep(folder)
            check_same_terms(f"{folder}: is a sweep", report.terms, terms)
            for path in sorted(folder.rglob(".*tmp")):  # of a sweep that was killed
                if is_temporary(path):
                    remove_if_abandoned(path)
        yield report


def _is_anything(folder: Path) -> bool:
    """Whether there is more than what a sweep leaves that was killed at once."""
    if not folder.is_dir():
        return folder.exists()
    return any(REPORT not in path.name for path in folder.iterdir())


_KEY_DIGITS = 12


@dataclass(frozen=True)
class Point:
    """A point of the sweep in `folder`, whose engine lies in a build folder there."""

    folder: Path
    terms: SweepTerms
    setting: SweepSetting
    engine: LoadedEngine

    @property
    def result(self) -> Path:
        """Where its result file lies: its key is in its name."""
        name = f"{file_name(self.setting.label)}-{self.setting.key(self.terms)[:_KEY_DIGITS]}.json"
        return self.folder / "results" / name

    def read(self) -> tuple[SweepPoint, Environment] | None:
        """Its figures from its result file, if that is there, is whole and is of this engine."""
        try:
            report = read_result(self.result)
        except ArtifactError:
            return None
        measured = report.points[0]
        if measured.failure is not None or measured.latency.engine.sha256 != self.engine.artifact.sha256:
            return None
        return self.figures(measured), report.environment

    def job(self, data: str | None) -> BenchJob:
        """The job that measures it."""
        terms = self.terms
        return BenchJob(
            engine=self.engine,
            data=data,
            contract=with_streams(terms.contract, self.setting.streams),
            warmup_s=terms.warmup_s,
            duration_s=terms.duration_s,
            layers=False,
            memory=terms.backend.name != ONNXRUNTIME,
        )

    def record(self, result: BenchResult) -> tuple[SweepPoint, Environment]:
        """What its job has come to. Only a point that went through leaves a result file."""
        measured = result.point
        if not measured.latency.samples.start_ms:
            raise DeviceError(
                f"all {measured.latency.discarded} samples of its latency pass were discarded: "
                f"{'; '.join(measured.latency.untrustworthy)}",
                "sweep again when nothing slows the device down",
            )
        if measured.failure is None:
            report = BenchReport(
                created=now(),
                argv=command_line(),
                environment=result.environment,
                model_sha256=self.engine.artifact.plan.onnx_sha256,
                source_sha256=self.terms.model_sha256,
                points=(measured,),
            )
            write_atomically(self.result, to_json(report, indent=None))
        return self.figures(measured), result.environment

    def figures(self, measured: BenchPoint) -> SweepPoint:
        """What is drawn from its passes."""
        artifact, path = self.engine.artifact, Path(self.engine.path).relative_to(self.folder.absolute())
        doubts = doubts_of(measured, self.terms.device)
        rated = measured.throughput or measured.latency
        rates: dict[str, Any] = {}
        if rated.samples.start_ms and (measured.throughput is not None or measured.failure is None):
            rate = throughput(rated.samples, self.setting.batch)
            rates = {"samples_per_s": rate.samples_per_s, "queries_per_s": rate.queries_per_s}
            rates |= {"busy_latency": spread_of(rated.samples), "watts": mean_watts(rated)}
        return SweepPoint(
            key=self.setting.key(self.terms),
            setting=self.setting,
            shapes=measured.latency.shapes,
            build=path.parent.as_posix(),
            engine=EngineRef(path=path.as_posix(), sha256=artifact.sha256, label=artifact.plan.label),
            engine_bytes=artifact.size_bytes,
            build_seconds=artifact.build_seconds,
            result=self.result.relative_to(self.folder).as_posix() if measured.failure is None else None,
            queries=len(measured.latency.samples.start_ms),
            latency=spread_of(measured.latency.samples),
            memory=memory_of(measured.memory) if measured.memory is not None else None,
            untrustworthy=tuple(doubt.text for doubt in doubts if doubt.trust is Trust.NONE),
            unsteady=tuple(doubt.text for doubt in doubts if doubt.trust is Trust.UNSTEADY),
            failure=measured.failure,
            **rates,
        )


def spread_of(samples: Samples) -> Spread:
    """How the latencies of a pass are spread."""
    summary = summarise(samples.latency_ms)
    p50, p90, p99 = (summary.percentiles[p] for p in (50.0, 90.0, 99.0))
    return Spread(p50_ms=p50, p90_ms=p90, p99_ms=p99, max_ms=summary.maximum)


def memory_of(memory: MemoryPass) -> PointMemory:
    """What one context took, buffers included, and what one more would take."""
    return PointMemory(
        peak_bytes=memory.peak_bytes + memory.buffers_bytes,
        buffers_bytes=memory.buffers_bytes,
        context_bytes=max(memory.context_bytes, default=None),
    )


_PREPARED = "prepared.json"
"""A manifest without engines, beside a model that is ready to be built."""


@dataclass(frozen=True)
class Swept:
    """What is swept: the model, how it is built, into which folder, and every combination."""

    onnx: OnnxArtifact
    request: SweepRequest
    builder: EngineBuilder
    folder: Path
    executor: Executor
    settings: tuple[SweepSetting, ...]
    terms: SweepTerms

    @property
    def recipe(self) -> Recipe:
        """The recipe that all points share."""
        return self.request.recipe

    def recipe_for(self, setting: SweepSetting) -> Recipe:
        """The recipe of one point's engine."""
        axes = self.recipe.axes | {name: (length,) for name, length in setting.axes.items()}
        return msgspec.structs.replace(
            self.recipe, batch=(setting.batch,), axes=axes, precision=setting.precision
        )

    def calib_for(self, precision: str | None) -> str | None:
        """The data that a precision asks for: several precisions share the option."""
        return None if precision in (None, "fp32") else self.recipe.calib


class Builds:
    """Build folders, one a precision and lengths of axes; the model is prepared once a precision.

    A precision that the model cannot be given is not tried again.
    """

    def __init__(self, swept: Swept) -> None:
        self._swept, self._listener = swept, swept.request.listener
        self._workbench = Workbench(
            builder=swept.builder,
            executor=swept.executor,
            listener=self._listener,
            limit_s=swept.recipe.build_timeout,
        ).with_caches(swept.recipe, swept.folder, swept.request.cache_dir)
        self._graphs: dict[Path, OnnxArtifact] = {}
        self._refused: dict[str | None, TrtoptError] = {}

    def find(self, setting: SweepSetting) -> LoadedEngine | None:
        """The engine of an earlier run, if it is there and is what its manifest vouches for."""
        folder = self._folder(setting)
        try:
            manifest = self._own(folder, read_manifest(folder))
            key = self._job_in(folder, manifest, setting).plan.key
            engine = next((one for one in manifest.engines if one.plan.key == key), None)
            if engine is None or sha256_of(folder / engine.path) != engine.sha256:
                return None
        except (TrtoptError, OSError):  # building says what is wrong
            return None
        return engine_at(folder, manifest.onnx.inputs, engine, setting.batch)

    def build(self, settings: Sequence[SweepSetting]) -> Generator[tuple[int, LoadedEngine | TrtoptError]]:
        """The engines of settings, each by its place, or why there is none.

        As many are built at a time as the recipe says. They share a timing cache, and are entered into their
        folders' manifests.
        """
        jobs: dict[int, BuildJob] = {}
        for place, setting in enumerate(settings):
            try:
                jobs[place] = self._job(setting)
            except OutputError:
                raise
            except TrtoptError as error:
                yield place, error
        places = list(jobs)
        self._listener.plans([settings[place].label for place in places])
        with closing(self._workbench.build_each([*jobs.values()])) as outcomes:
            for index, outcome in outcomes:
                place = places[index]
                if isinstance(outcome, EngineArtifact):
                    yield place, self._enter(settings[place], outcome)
                else:
                    yield place, outcome

    def _job(self, setting: SweepSetting) -> BuildJob:
        """What builds the engine that a setting needs; its folder is there, with the graph."""
        folder, prepared = self._folder(setting), self._graph_folder(setting.precision)
        if not folder.exists():
            with folder_in_progress(folder) as work:
                without = shutil.ignore_patterns(_PREPARED)
                shutil.copytree(
                    prepared, work, ignore=without, copy_function=shutil.copyfile, dirs_exist_ok=True
                )
        try:
            return self._job_in(folder, self._manifest(setting), setting)
        except ArtifactError as error:
            raise ArtifactError(
                error.problem, f"remove {folder} and {prepared}, which are made again"
            ) from None

    def _job_in(self, folder: Path, manifest: Manifest, setting: SweepSetting) -> BuildJob:
        if folder not in self._graphs:
            self._graphs[folder] = verified_graphs(folder, manifest)[0]
        graph, recipe = self._graphs[folder], self._swept.recipe_for(setting)
        (plan,) = make_plans(graph, recipe, self._swept.builder.backend)
        return self._workbench.job(graph, plan, folder)

    def _enter(self, setting: SweepSetting, engine: EngineArtifact) -> LoadedEngine:
        """Enter an engine into its folder's manifest."""
        folder, manifest = self._folder(setting), self._manifest(setting)
        others = [one for one in manifest.engines if one.plan.key != engine.plan.key]
        engines = tuple(sorted((*others, engine), key=lambda one: one.plan.batch.opt))
        made = stamp(msgspec.structs.replace(manifest, engines=engines))
        # what others have put there is not vouched for
        own = {name: sha256_of(folder / name) for name in engine.files}
        write_manifest(folder, made, files=manifest.files | own)
        return engine_at(folder, manifest.onnx.inputs, engine, setting.batch)

    def _manifest(self, setting: SweepSetting) -> Manifest:
        """That of the setting's folder; one without engines where none is built yet."""
        folder = self._folder(setting)
        if (folder / MANIFEST).exists():
            return self._own(folder, read_manifest(folder))
        prepared = self._graph_folder(setting.precision)
        with reading_as("a prepared model", prepared / _PREPARED, f"remove {prepared}"):
            return self._own(prepared, from_json(read_bounded(prepared / _PREPARED), Manifest))

    def _own(self, folder: Path, manifest: Manifest) -> Manifest:
        """A folder's manifest, of the swept model: folders may be copied in."""
        model = self._swept.terms.model_sha256
        check_model(manifest.source_sha256, model, folder, "the sweep's", f"remove {folder}")
        return manifest

    def _folder(self, setting: SweepSetting) -> Path:
        axes = (f"{name}{length}" for name, length in sorted(setting.axes.items()))
        return self._swept.folder / "builds" / file_name("-".join((_name(setting.precision), *axes)))

    def _graph_folder(self, precision: str | None) -> Path:
        """The folder of the model in that precision; made if it is not there."""
        folder = self._swept.folder / "graphs" / _name(precision)
        if (folder / _PREPARED).exists():
            return folder
        if precision in self._refused:
            raise self._refused[precision]
        swept, listener = self._swept, self._listener
        backend, calib = swept.builder.backend, swept.calib_for(precision)
        recipe = msgspec.structs.replace(swept.recipe, precision=precision, calib=calib)
        try:
            with folder_in_progress(folder) as work:
                kept = keep_model(swept.onnx, work, swept.recipe, backend, listener)
                made = prepare_graph(kept, recipe, backend)
                listener.notes(made.notes[len(kept.notes) :])
                prepared = msgspec.structs.replace(made.manifest(), files=hashes_of(work))
                write_atomically(work / _PREPARED, to_json(prepared))
        except TrtoptError as error:
            self._refused[precision] = error
            raise
        return folder


def _name(precision: str | None) -> str:
    return precision or "model"


def file_name(label: str) -> str:
    """A label as a name of files: names of axes may hold any character."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in label)
