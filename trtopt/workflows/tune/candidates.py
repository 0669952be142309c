"""What has not been tried, each with the gain and the cost that are predicted from what is known by now."""

from __future__ import annotations

from collections.abc import Sequence

from trtopt.builder.build_routes import single_options
from trtopt.device.affinity import present_cores
from trtopt.errors import TrtoptError
from trtopt.executors.api import run_jobs_of
from trtopt.executors.local import THIS_HOST
from trtopt.measure.statistics.comparison import RunSpread
from trtopt.records import Ledger, LedgerEntry
from trtopt.targets import ONNXRUNTIME, target_of
from trtopt.workers.protocol import RoutesJob, RoutesListed
from trtopt.workflows.listener import SILENT
from trtopt.workflows.tune.built import Built
from trtopt.workflows.tune.evidence import evidence_of
from trtopt.workflows.tune.kinds.kind import Situation
from trtopt.workflows.tune.kinds.table import KINDS
from trtopt.workflows.tune.ledger import history_of
from trtopt.workflows.tune.prediction import build_spread_of, predict, predicted_cost_s, spread_of
from trtopt.workflows.tune.queue import Queued
from trtopt.workflows.tune.setup import Setup

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
                found.append(Queued(change, predict(change.name, prior, kind.prior, past, spread), cost_s))
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
