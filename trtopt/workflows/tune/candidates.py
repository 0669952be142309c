"""What has not been tried, each with its predicted gain and cost, and which is next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtopt.device.affinity import present_cores
from trtopt.errors import TrtoptError
from trtopt.executors.api import run_jobs_of
from trtopt.executors.local import THIS_HOST
from trtopt.measure.statistics.comparison import RunSpread
from trtopt.records import Ledger, LedgerEntry
from trtopt.records.tune import CandidateKind
from trtopt.targets import ONNXRUNTIME, target_of
from trtopt.workers.protocol import RoutesJob, RoutesListed
from trtopt.workflows.listener import SILENT
from trtopt.workflows.tune.engine_kinds import BATCH, LOTTERY, SETTING, STREAMS, single_options
from trtopt.workflows.tune.graph_kinds import IO_TYPES, PLACEMENT, PRECISION, REGION, REWRITE
from trtopt.workflows.tune.prediction import Prediction, build_spread_of, predict, predicted_cost_s, spread_of
from trtopt.workflows.tune.setup import Setup
from trtopt.workflows.tune.situation import Change, Situation, evidence_of
from trtopt.workflows.tune.tuned_folder import Built, history_of

KINDS = (PRECISION, PLACEMENT, REGION, IO_TYPES, BATCH, STREAMS, SETTING, REWRITE, LOTTERY)
"""All kinds of candidates, in the order in which equal ones are tried."""
LEAST_EXPECTED = 0.0005
"""An expected gain below it does not pay for a build."""


@dataclass(frozen=True)
class Queued:
    """A change of a kind with its predicted gain and cost."""

    kind: CandidateKind
    change: Change
    prediction: Prediction
    cost_s: float

    @property
    def gain_per_s(self) -> float:
        """What the queue is ordered by."""
        return self.prediction.expected / max(self.cost_s, 1e-3)


@dataclass(frozen=True)
class Next:
    """The next candidate; or none, and why."""

    candidate: Queued | None
    stopped: str = ""


def next_of(waiting: Sequence[Queued], left_s: float) -> Next:
    """The candidate with the highest expected gain per second that fits into the seconds left.

    Equal ones in the order in which they wait.
    """
    if not waiting:
        return Next(None, "no candidate is left to try")
    paying = [one for one in waiting if one.prediction.expected >= LEAST_EXPECTED]
    if not paying:
        return Next(None, f"no candidate is expected to gain {LEAST_EXPECTED:.2%}")
    fitting = [one for one in paying if one.cost_s <= left_s]
    if not fitting:
        least = min(one.cost_s for one in paying)
        return Next(
            None,
            f"the budget has {max(left_s, 0.0):.0f} s left, and {_counted(len(paying))} from "
            f"{least:.0f} s each: continue with --resume and a larger --budget",
        )
    return Next(max(fitting, key=lambda one: one.gain_per_s))


def first_of(waiting: Sequence[Queued], left_s: float, count: int) -> list[Queued]:
    """The candidates that would be next one after the other, at most `count`."""
    found: list[Queued] = []
    while len(found) < count:
        rest = [one for one in waiting if one not in found]
        following = next_of(rest, left_s).candidate
        if following is None:
            break
        found.append(following)
    return found


def _counted(waiting: int) -> str:
    return "1 candidate waits that takes" if waiting == 1 else f"{waiting} candidates wait that take"


_LISTING_LIMIT_S = 60.0
_QUANTISING = {"precision", "placement", "region"}


class Candidates:
    """The changes that the kinds propose for the incumbent of the moment."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._build_options = _build_options(setup)
        self._proposed: set[str] = set()
        if _QUANTISING & set(setup.request.kinds) and setup.samples.data is None:
            setup.notes.append("INT8 was not tried: it needs samples to calibrate on; give --data DATA")

    def waiting(self, ledger: Ledger, incumbent: Built) -> list[Queued]:
        """Those that have not been tried."""
        setup, baseline = self._setup, ledger.baseline
        history = history_of(setup.earlier, ledger)
        situation = self._situation(ledger, incumbent, history)
        tried = situation.tried | {f"batch={setup.terms.batch[0]}"}
        spread = spread_of(history, RunSpread.of(setup.run_spread))
        build_s = max(baseline.build_s, incumbent.engine.build_seconds)
        found = []
        for kind in KINDS:
            if kind.name not in setup.request.kinds:
                continue
            past = [entry for entry in history if entry.kind == kind.name]
            for change in kind.changes(situation):
                self._proposed.add(kind.name)
                if change.name in tried or (change.makes_graph and incumbent.is_rewritten):
                    continue
                builds = kind.builds if change.builds is None else change.builds
                seconds = builds * build_s + change.measurements * baseline.measure_s
                cost_s = predicted_cost_s(seconds, past)
                prior = change.prior or kind.prior
                prediction = predict(change.name, prior, kind.prior, past, spread)
                found.append(Queued(kind.name, change, prediction, cost_s))
        return found

    def note_barren_kinds(self) -> None:
        """Say which of the kinds that --include names had nothing to try."""
        barren = [name for name in self._setup.request.include if name not in self._proposed]
        for name in dict.fromkeys(barren):
            if name in self._setup.request.kinds:
                self._setup.notes.append(
                    f"--include {name}: nothing to try with this model, objective and backend"
                )

    def _situation(self, ledger: Ledger, incumbent: Built, history: Sequence[LedgerEntry]) -> Situation:
        setup, engine = self._setup, incumbent.engine
        return Situation(
            backend=setup.builder.backend,
            device=setup.builder.device,
            cores=len(present_cores()),
            batch=incumbent.batch,
            batches=setup.terms.batch,
            streams=incumbent.streams,
            is_rate=setup.measure.per_sample,
            is_loaded=setup.measure.rate is not None,
            recipe=incumbent.recipe,
            selected=incumbent.selected,
            left=incumbent.left,
            data=setup.samples.data,
            threshold=setup.terms.threshold,
            inputs=engine.inputs,
            outputs=engine.outputs,
            copied=ledger.baseline.copied,
            tried=frozenset(entry.candidate for entry in ledger.entries),
            build_options=self._build_options,
            build_spread=build_spread_of(history),
            evidence=evidence_of(incumbent),
        )


def _build_options(setup: Setup) -> tuple[str, ...]:
    """Internal options of TensorRT 11's builder; none where they cannot be listed."""
    backend = setup.builder.backend
    if backend.name == ONNXRUNTIME or not target_of(backend).build_routes:
        return ()
    if "builder-setting" not in setup.request.kinds:
        return ()
    try:
        job = RoutesJob(backend=backend.name)
        found = run_jobs_of(THIS_HOST, [job], limit_s=_LISTING_LIMIT_S, on_progress=SILENT.progress)
        ((_, listed),) = found
    except TrtoptError as error:
        setup.notes.append(f"build routes were not tried: {error.problem.splitlines()[0]}")
        return ()
    assert isinstance(listed, RoutesListed)
    return single_options(listed.listed)
