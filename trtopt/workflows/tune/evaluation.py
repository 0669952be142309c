"""One engine of a tuning run: built, checked for accuracy, measured against the incumbent, profiled."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from msgspec.structs import replace

from trtopt.errors import DeviceError, TrtoptError
from trtopt.files.manifests import write_manifest
from trtopt.measure.contracts import WARMUP_S
from trtopt.measure.loop.interleaved import InterleaveJob, Variant, valid_rounds
from trtopt.measure.statistics.comparison import MIN_BLOCKS, Block, Comparison, Verdict
from trtopt.onnxio.model_info import read_onnx
from trtopt.recipe import Recipe
from trtopt.records import FinalRace, InterleavedRun, Ledger, LedgerEntry, Manifest, TurnSamples
from trtopt.records.precision import CheckedSubject
from trtopt.records.tensors import TypedTensor
from trtopt.records.tune import TuneVerdict
from trtopt.workflows.build.build import build_recipe
from trtopt.workflows.build.folder import copy_without_engines, stamp, verified_graphs
from trtopt.workflows.listener import Listener
from trtopt.workflows.precision.checker import Checker
from trtopt.workflows.profile.profile import PROFILE_FILE
from trtopt.workflows.race import (
    ROUNDS,
    compare_turns,
    engine_at,
    fitting_data,
    race as run_heats,
    with_streams,
)
from trtopt.workflows.tune.kinds import Change
from trtopt.workflows.tune.setup import Measure, Setup, samples_for
from trtopt.workflows.tune.tuned_folder import BASELINE, LEDGER, Built
from trtopt.workflows.workbench import TIMING_CACHE_FILE, Workbench, make_plans

_VERDICTS: dict[Verdict, TuneVerdict] = {
    Verdict.FASTER: "accepted",
    Verdict.SAME: "same",
    Verdict.SLOWER: "slower",
    Verdict.UNDECIDED: "undecided",
}


class Evaluation:
    """What is done with each engine; several threads may do it at once."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._checkers: dict[tuple[TypedTensor, ...], Checker] = {}
        self._checking = threading.Lock()

    def build_baseline(self, folder: Path, limit_s: float) -> Built:
        """Today's defaults."""
        (batch, *_) = self._setup.terms.batch
        recipe = self._with_limit(replace(self._setup.request.recipe, batch=(batch,)), limit_s)
        return Built(folder, self._build(recipe, folder, self._setup.request.listener), recipe, batch, 1)

    def build_candidate(
        self, incumbent: Built, change: Change, folder: Path, limit_s: float, own: Listener
    ) -> Built:
        """The incumbent with a change, in a folder to be made."""
        recipe = self._with_limit(replace(incumbent.recipe, **change.recipe), limit_s)
        assert recipe.batch is not None
        manifest = (
            self._build(recipe, folder, own)
            if change.makes_graph
            else self._derive(incumbent, change, recipe, folder, own)
        )
        return Built(folder, manifest, recipe, recipe.batch[0], change.streams or incumbent.streams)

    def _with_limit(self, recipe: Recipe, limit_s: float) -> Recipe:
        return replace(recipe, backend=self._setup.builder.backend.name, build_timeout=limit_s)

    def _build(self, recipe: Recipe, folder: Path, own: Listener) -> Manifest:
        """From the user's model; samples and bounds are for what selects a precision by measuring."""
        given, request = self._setup, self._setup.request
        if recipe.precision not in (None, "fp32"):
            recipe = replace(recipe, calib=recipe.calib or given.data)
        if recipe.precision == "best":
            recipe = replace(recipe, bounds=request.bounds.given)
        manifest = build_recipe(
            request.model,
            folder,
            recipe,
            cache_dir=request.cache_dir,
            executor=given.executor,
            listener=own,
        )
        if manifest.verdict is None or request.data is None:
            return manifest
        named = replace(manifest.verdict, data=str(request.data))
        return write_manifest(folder, replace(manifest, verdict=named))

    def _derive(
        self, incumbent: Built, change: Change, recipe: Recipe, folder: Path, own: Listener
    ) -> Manifest:
        """The incumbent's folder with other settings, or another build."""
        given, manifest, engine = self._setup, incumbent.manifest, incumbent.engine
        left = {BASELINE, LEDGER, PROFILE_FILE}
        if change.recipe or change.fresh:  # other tactics compete than those that the incumbent's build timed
            left.add(TIMING_CACHE_FILE)
        folder.mkdir()
        copy_without_engines(incumbent.folder, manifest, folder, left)
        graphs = verified_graphs(folder, manifest)
        if change.streams is None:
            graph = next(one for one in graphs if one.sha256 == engine.plan.onnx_sha256)
            workbench = Workbench(
                builder=given.builder, executor=given.executor, listener=own, limit_s=recipe.build_timeout
            )
            if change.fresh:  # a build that is to time everything again
                workbench = workbench.with_cache_in(folder)
            else:
                workbench = workbench.with_caches(given.request.recipe, folder, given.request.cache_dir)
            plans = make_plans(graph, recipe, given.builder.backend)
            engines = workbench.build((graph,), plans, folder)
        else:
            engines = (engine,)
            for name in engine.files:
                shutil.copy2(incumbent.folder / name, folder / name)
        kept = manifest.graph_of(engine)  # which names the file that it was made of
        return write_manifest(folder, stamp(replace(manifest, onnx=kept, graphs=(), engines=engines)))

    def check(self, built: Built, limit_s: float, own: Listener) -> CheckedSubject:
        """Its outputs against those of the model with the build's inputs and outputs."""
        given, manifest = self._setup, built.manifest
        engine = engine_at(built.folder, manifest.onnx.inputs, built.engine, built.batch)
        with self._checking, samples_for(manifest, given.data) as data:
            checker = self._checkers.get(manifest.io)
            if checker is None:  # for each way to type the model one, which reads and runs it once
                model = read_onnx(Path(given.request.model))
                checker = Checker(model, None, given.request.bounds, given.executor)
                checker.take_inputs_of(manifest.io)
                self._checkers[manifest.io] = checker
            return checker.engine(engine, data, own, limit_s)

    def measure(self, built: Built, limit_s: float) -> float:
        """What it typically costs on its own."""
        run = self._run((built,), ROUNDS, limit_s, self._setup.request.listener)
        (blocks,) = self._blocks(run, (built,))
        return median(cost for block in blocks for cost in block)

    def race(
        self, entry: LedgerEntry, built: Built, incumbent: Built, limit_s: float, own: Listener
    ) -> LedgerEntry:
        """A candidate's line with what becomes of it: checked, then measured in turns with the incumbent."""
        terms = [(one.engine.sha256, one.batch, one.streams) for one in (built, incumbent)]
        if terms[0] == terms[1]:
            selection = built.manifest.verdict
            why = "" if selection is None else f": {selection.batches[0].reason}"
            return replace(entry, verdict="unchanged", reason=f"the engine is the incumbent's{why}")
        checked = self.check(built, limit_s, own)
        entry = replace(entry, accuracy=lowest_cosine(checked))
        if checked.violations:
            return replace(entry, verdict="inaccurate", reason=checked.violations[0].text)
        found = self._compare((incumbent, built), limit_s, own)
        gain, low, high = (None, None, None) if found.ratio is None else found.ratio.saved
        return replace(
            entry,
            verdict=_VERDICTS[found.verdict],
            reason=found.reasons[0].text if found.reasons else "",
            measured_gain=gain,
            measured_low=low,
            measured_high=high,
        )

    def final_race(self, incumbent: Built, ledger: Ledger, limit_s: float) -> FinalRace | None:
        """The result against the baseline; None, with a note, where that cannot be measured."""
        given, start = self._setup, ledger.baseline
        (batch, *_) = given.terms.batch
        model = replace(incumbent.manifest.onnx, inputs=start.inputs)
        manifest = replace(incumbent.manifest, onnx=model, engines=(start.engine,))
        baseline = Built(incumbent.folder, manifest, incumbent.recipe, batch, 1)
        try:
            found = self._compare((baseline, incumbent), limit_s, given.quiet)
        except TrtoptError as error:
            given.notes.append(f"the result was not raced against the baseline: {error.problem}")
            return None
        if found.ratio is None:
            given.notes.append(f"the race against the baseline shows nothing: {found.reasons[0].text}")
            return None
        gain, low, high = found.ratio.saved
        return FinalRace(
            changes=ledger.accepted,
            gain=gain,
            low=low,
            high=high,
            is_faster=found.verdict is Verdict.FASTER,
        )

    def _compare(self, racers: Sequence[Built], limit_s: float, own: Listener) -> Comparison:
        """The second one's cost against the first one's; one slower after a few rounds gets no more."""
        for rounds in (MIN_BLOCKS, ROUNDS):
            run = self._run(racers, rounds, limit_s, own)
            found = compare_turns(
                valid_rounds(run),
                threshold=self._setup.terms.threshold,
                blocks=self._blocks(run, racers),
                what=self._setup.measure.cost,
            )
            if found.verdict is Verdict.SLOWER:
                break
        return found

    def _run(self, racers: Sequence[Built], rounds: int, limit_s: float, own: Listener) -> InterleavedRun:
        """Turns on the user's samples, if they have the last one's shapes; else on random input."""
        given, measure = self._setup, self._setup.measure
        names = ("incumbent", "candidate")[: len(racers)]
        engines = [engine_at(one.folder, one.manifest.onnx.inputs, one.engine, one.batch) for one in racers]
        inputs = racers[-1].manifest.onnx.inputs
        turns = InterleaveJob(
            label=" against ".join(reversed(names)),
            engines=tuple(engines),
            variants=tuple(
                Variant(
                    name=name,
                    engine=index,
                    contract=with_streams(given.terms.contract, one.streams),
                    mode=measure.mode,
                )
                for index, (name, one) in enumerate(zip(names, racers, strict=True))
            ),
            rounds=rounds,
            least_rounds=ROUNDS,
            purpose="tuning",
            data=fitting_data(given.data, inputs, [engines[-1].shapes], given.notes.append),
            warmup_s=WARMUP_S,
            block_s=given.request.duration / ROUNDS,  # of a short race, too
            block_queries=measure.block_queries,
        )
        (run,) = run_heats([turns], own, limit_s, given.executor)
        if run.failure is not None:
            raise DeviceError(run.failure, "check the GPU with nvidia-smi")
        return run

    def _blocks(self, run: InterleavedRun, racers: Sequence[Built]) -> list[list[Block]]:
        kept, measure = valid_rounds(run).turns, self._setup.measure
        return [cost_blocks(measure, turns, one.batch) for turns, one in zip(kept, racers, strict=True)]


def lowest_cosine(checked: CheckedSubject) -> float:
    """Of all outputs."""
    return min(output.cosine for output in checked.outputs)


def cost_blocks(measure: Measure, turns: TurnSamples, batch: int) -> list[Block]:
    """Each block's costs."""
    size = batch if measure.per_sample else 1
    return [[cost / size for cost in measure.costs(block)] for block in turns.blocks]
