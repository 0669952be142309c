"""The search for the highest rate of requests at which a target keeps a latency."""

from __future__ import annotations

from trtopt.device.api import Device, ProgressSink, Session
from trtopt.errors import DeviceError, MeasurementError
from trtopt.measure.load.arrivals import (
    Goal,
    Load,
    RateSearch,
    achieved_rate,
    keeps_up,
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
    rates = RateSearch(settings.rate or throughput(most.samples, subject.batch).queries_per_s / 2)
    probes, last, failure = list[RateProbe](), None, None
    unloaded = percentile(latency.samples.latency_ms, goal.p)
    if unloaded is not None and unloaded > goal.limit_ms:
        reason = f"{goal} is out of reach: p{goal.p:g} is {unloaded:.3f} ms with one query at a time"
    else:
        try:
            with warm_target(device, session, subject, contract, limits) as target:
                contract = target.contract
                last = _probe_rates(target, goal, settings, limits.duration_s, rates, probes, progress)
        except DeviceError as error:
            if not probes:
                raise
            failure = error.problem
        reason = rates.reason(goal)
    if failure is None and last is not None:
        failure = last.failure
    return LoadSearch(
        goal=str(goal),
        arrivals=settings.arrivals,
        seed=settings.seed,
        contract=contract,
        probes=tuple(probes),
        rate=rates.best,
        again=_probe(last, goal) if last is not None and failure is None else None,
        last=last,
        reason=reason if failure is None else f"not ended: {failure}",
        failure=failure,
    )


def _probe_rates(
    target: Target,
    goal: Goal,
    settings: LoadSettings,
    duration_s: float,
    rates: RateSearch,
    probes: list[RateProbe],
    progress: ProgressSink,
) -> LoadPass | None:
    """Probe rate after rate, then the highest that kept the goal once more: that run, or one that failed.

    Every probe has the same seed, so that two rates are compared on the same arrivals, scaled. Of several
    probes the search takes the luckiest, so the last run has another seed.
    """
    while (rate := rates.next_rate) is not None:
        progress(f"load {rate:,.4g}/s", None)
        load, seconds = Load(rate, settings.arrivals), probe_s(goal, rate, duration_s)
        run = target.serve(load, settings.seed, seconds, goal)
        probes.append(_probe(run, goal))
        rates.add(probes[-1].kept)
        if run.failure is not None:
            return run
    if rates.best is None:
        return None
    progress(f"load {rates.best:,.4g}/s once more", None)
    seconds = probe_s(goal, rates.best, duration_s)
    return target.serve(Load(rates.best, settings.arrivals), settings.seed + 1, seconds)


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
        achieved_rate=achieved_rate(run),
        kept=value is not None and value <= goal.limit_ms and keeps_up(run),
        untrustworthy=run.untrustworthy,
    )
