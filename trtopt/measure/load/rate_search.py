"""The search for the highest rate of requests at which a target keeps a latency."""

from __future__ import annotations

from trtopt.device.api import Device, ProgressSink, Session
from trtopt.errors import DeviceError, MeasurementError
from trtopt.measure.load.arrivals import (
    Goal,
    Load,
    Probe,
    RateSearch,
    achieved_rate,
    keeps_up,
    offered_rate,
    parse_goal,
    probe_s,
)
from trtopt.measure.load.load_pass import LoadSettings, Target, warm_target
from trtopt.measure.loop.run_pass import Subject
from trtopt.measure.loop.stopping import Limits
from trtopt.measure.statistics.intervals import percentile_interval
from trtopt.measure.statistics.summaries import percentile, throughput
from trtopt.records import Contract, LoadPass, LoadSearch, Measurement, RateProbe


def search_load(
    device: Device,
    session: Session,
    subject: Subject,
    contract: Contract,
    settings: LoadSettings,
    closed_loop: tuple[Measurement, Measurement],
    limits: Limits,
    progress: ProgressSink,
) -> LoadSearch:
    """Find the highest rate that keeps the settings' goal, and measure it once more with other arrivals.

    `closed_loop` are the latency and the throughput pass: a latency that one query in flight does not keep is
    out of reach, and half of the throughput is the first rate to try, unless the settings name one. If the
    device fails after a probe, the probes are returned, marked with the failure.
    """
    assert settings.goal is not None
    goal = parse_goal(settings.goal)
    latency, most = closed_loop
    if not latency.samples.start_ms or not most.samples.start_ms:
        why = "; ".join(latency.untrustworthy or most.untrustworthy)
        raise MeasurementError(
            f"--max-latency: no rate to start from: {why}", "find out what slows the device"
        )
    first = settings.rate or throughput(most.samples, subject.batch).queries_per_s / 2
    search = _Search(goal, settings, limits.duration_s, first)
    unloaded = percentile(latency.samples.latency_ms, goal.p)
    if unloaded is not None and unloaded > goal.limit_ms:
        reason = f"{goal} is out of reach: p{goal.p:g} is {unloaded:.3f} ms with one query at a time"
        return search.found(contract, reason, None)
    failure = None
    try:
        with warm_target(device, session, subject, contract, limits) as target:
            contract = target.contract
            search.run(target, progress)
    except DeviceError as error:
        if not search.probes:
            raise
        failure = error.problem
    return search.found(contract, search.rates.reason, failure)


class _Search:
    """The probes so far, kept whatever becomes of the device.

    Every probe has the same seed, so that two rates are compared on the same arrivals, scaled. Of several
    probes the search takes the luckiest, so the last run has another seed.
    """

    def __init__(self, goal: Goal, settings: LoadSettings, duration_s: float, first_rate: float) -> None:
        self._goal, self._settings, self._duration_s = goal, settings, duration_s
        self.rates = RateSearch(goal, first_rate)
        self.probes: list[RateProbe] = []
        self.last: LoadPass | None = None

    def run(self, target: Target, progress: ProgressSink) -> None:
        """Probe rate after rate, then the highest that kept the goal once more."""
        seed = self._settings.seed
        while (rate := self.rates.next_rate) is not None:
            progress(f"load {rate:,.4g}/s", None)
            probe = target.serve(self._load(rate), seed, self._probe_s(rate), self._goal)
            self.probes.append(_probe(probe, self._goal))
            self.rates.add(Probe(rate, self.probes[-1].latency_ms, keeps_up(probe)))
            if probe.failure is not None:
                self.last = probe
                return
        best = self.rates.best
        if best is not None:
            progress(f"load {best.rate:,.4g}/s once more", None)
            self.last = target.serve(self._load(best.rate), seed + 1, self._probe_s(best.rate))

    def _load(self, rate: float) -> Load:
        return Load(rate, self._settings.arrivals)

    def _probe_s(self, rate: float) -> float:
        return probe_s(self._goal, rate, self._duration_s)

    def found(self, contract: Contract, reason: str, failure: str | None) -> LoadSearch:
        """The record of it."""
        best = self.rates.best
        if failure is None and self.last is not None:
            failure = self.last.failure
        return LoadSearch(
            goal=str(self._goal),
            arrivals=self._settings.arrivals,
            seed=self._settings.seed,
            contract=contract,
            probes=tuple(self.probes),
            rate=best.rate if best is not None else None,
            again=_probe(self.last, self._goal) if self.last is not None and failure is None else None,
            last=self.last,
            reason=reason if failure is None else f"not ended: {failure}",
            failure=failure,
        )


def _probe(run: LoadPass, goal: Goal) -> RateProbe:
    latencies = run.latency_ms
    value = percentile(latencies, goal.p)
    interval = percentile_interval(latencies, goal.p) if value is not None else None
    return RateProbe(
        rate=run.rate,
        requests=len(latencies),
        latency_ms=value,
        low_ms=interval.low if interval is not None else None,
        high_ms=interval.high if interval is not None else None,
        offered_rate=offered_rate(run),
        achieved_rate=achieved_rate(run),
        kept=Probe(run.rate, value, keeps_up(run)).keeps(goal),
        untrustworthy=run.untrustworthy,
    )
