"""One engine of a tuning run: built, checked for accuracy, measured against the incumbent, profiled."""

from __future__ import annotations

import threading
from pathlib import Path

from trtopt.builder.shapes import shapes_at
from trtopt.data import open_data
from trtopt.errors import DataError, TrtoptError
from trtopt.files.atomic import write_atomically
from trtopt.measure.statistics.comparison import Verdict
from trtopt.records import FinalRace, Ledger, to_json
from trtopt.records.precision import CheckedSubject
from trtopt.records.tensors import TypedTensor
from trtopt.records.tune import TuneVerdict
from trtopt.requests.profile import ProfileRequest
from trtopt.workflows.bench.interleaved import Setting, loaded
from trtopt.workflows.bench.resolve_engines import resolved
from trtopt.workflows.listener import Listener
from trtopt.workflows.precision.check import Checker
from trtopt.workflows.profile.profile import PROFILE_FILE, profile
from trtopt.workflows.tune.built import Built
from trtopt.workflows.tune.kinds.kind import Change
from trtopt.workflows.tune.make import Maker
from trtopt.workflows.tune.outcome import Outcome
from trtopt.workflows.tune.race import Cost, Racer, cost_of, race
from trtopt.workflows.tune.samples import samples_for
from trtopt.workflows.tune.setup import Setup

_PROFILE_S = 1.0
"""Of sampling for a profile, at most."""
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
        """Today's defaults, in a folder to be made."""
        return self._maker(limit_s, self._setup.listener).baseline(folder, self._setup.terms.batch[0])

    def build(self, incumbent: Built, change: Change, folder: Path, limit_s: float, own: Listener) -> Built:
        """The incumbent with a change, in a folder to be made; `own` hears of it."""
        return self._maker(limit_s, own).make(incumbent, change, folder)

    def check(self, built: Built, limit_s: float, own: Listener) -> CheckedSubject:
        """Its outputs against those of the model with the build's inputs and outputs."""
        there = resolved(built.folder, built.manifest, (built.engine,))
        with self._checking, samples_for(built.manifest, self._setup.samples.data) as data:
            checker = self._checker_of(there.io)
            return checker.engine(there, built.engine, built.batch, data, own, limit_s)

    def _checker_of(self, io: tuple[TypedTensor, ...]) -> Checker:
        """One for each way to type the model, which is read and run once for all candidates."""
        if io not in self._checkers:
            given = self._setup
            checker = Checker(given.source, None, given.request.bounds, given.executor)
            checker.take_inputs_of(io)
            self._checkers[io] = checker
        return self._checkers[io]

    def measure(self, built: Built, limit_s: float) -> Cost:
        """What it costs on its own."""
        given = self._setup
        setting = self._setting(built, limit_s)
        return cost_of(_racer(built), given.measure, setting, given.executor, given.listener)

    def race(self, built: Built, incumbent: Built, limit_s: float, own: Listener) -> Outcome:
        """What becomes of a candidate: checked, then measured in turns with the incumbent."""
        given = self._setup
        if _runs_alike(built, incumbent):
            selection = built.manifest.verdict
            why = "" if selection is None else f": {selection.batches[0].reason}"
            return Outcome("unchanged", f"the engine is the incumbent's{why}")
        checked = self.check(built, limit_s, own)
        accuracy = lowest_cosine(checked)
        if checked.violations:
            return Outcome("inaccurate", checked.violations[0].text, accuracy=accuracy)
        comparison = race(
            _racer(incumbent),
            _racer(built),
            given.measure,
            self._setting(built, limit_s),
            given.terms.threshold,
            given.executor,
            own,
        )
        reason = comparison.reasons[0].text if comparison.reasons else ""
        return Outcome(_VERDICTS[comparison.verdict], reason, comparison, accuracy)

    def final_race(self, incumbent: Built, ledger: Ledger, limit_s: float) -> FinalRace | None:
        """The result against the baseline; None, with a note, where that cannot be measured."""
        given, start = self._setup, ledger.baseline
        assert start.engine is not None
        (batch, *_) = given.terms.batch
        baseline = Racer(loaded(incumbent.folder, start.inputs, start.engine, batch), batch, 1)
        try:
            found = race(
                baseline,
                _racer(incumbent),
                given.measure,
                self._setting(incumbent, limit_s),
                given.terms.threshold,
                given.executor,
                given.quiet,
            )
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

    def profile(self, built: Built, limit_s: float) -> None:
        """Write a profile of the engine into its folder; without one, a note says why."""
        given = self._setup
        seconds = min(given.request.duration, _PROFILE_S)
        request = ProfileRequest(built.folder, batch=(built.batch,), duration=seconds, timeout=limit_s)
        try:
            report = profile(request, given.quiet)
        except TrtoptError as error:
            given.notes.append(f"candidates are predicted without a profile: {error.problem.splitlines()[0]}")
        else:
            write_atomically(built.folder / PROFILE_FILE, to_json(report, indent=None))

    def _maker(self, limit_s: float, listener: Listener) -> Maker:
        given = self._setup
        return Maker(
            source=given.source,
            recipe=given.request.recipe,
            builder=given.builder,
            bounds=given.request.bounds.given,
            data=given.samples.data,
            data_name=given.samples.name,
            cache_dir=given.request.cache_dir,
            limit_s=limit_s,
            executor=given.executor,
            listener=listener,
        )

    def _setting(self, built: Built, limit_s: float) -> Setting:
        """On the user's samples, if they have the engine's shapes; else on random input."""
        given, data = self._setup, self._setup.samples.data
        if data is not None:
            inputs = built.manifest.onnx.inputs
            try:
                open_data(data).first_batch(inputs, shapes_at(inputs, built.engine.plan, built.batch))
            except DataError as error:
                given.notes.append(f"times are taken on random input: {error.problem}")
                data = None
        return Setting(None, None, given.terms.contract, given.request.duration, data, timeout=limit_s)


def lowest_cosine(checked: CheckedSubject) -> float:
    """Of all outputs."""
    return min(output.cosine for output in checked.outputs)


def _racer(built: Built) -> Racer:
    engine = loaded(built.folder, built.manifest.onnx.inputs, built.engine, built.batch)
    return Racer(engine, built.batch, built.streams)


def _runs_alike(built: Built, incumbent: Built) -> bool:
    """Whether the same file is run on the same terms."""
    terms = [(one.engine.sha256, one.batch, one.streams) for one in (built, incumbent)]
    return terms[0] == terms[1]
