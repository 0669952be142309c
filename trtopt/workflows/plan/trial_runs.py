"""Trial runs of a plan before it is returned, and its verification afterwards."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from trtopt.errors import ArtifactError, DeviceError
from trtopt.executors.local import run_job
from trtopt.files.atomic import write_atomically
from trtopt.files.manifests import read_plan
from trtopt.measure.load.arrivals import parse_goal
from trtopt.recipe import check_timeout
from trtopt.records import BatchPlan, Served, Verification, to_json
from trtopt.serving.planning.prediction import RUNS
from trtopt.serving.planning.traffic import Process, arrivals_at, lengths_of
from trtopt.serving.trial_run import TrialJob, TrialRun
from trtopt.workers.protocol import Tried
from trtopt.workflows.plan.request import read_arrivals
from trtopt.workflows.provenance import now

_BEFORE_SEED, _VERIFYING_SEED, *_REHEARSING_SEEDS = range(RUNS + 1, RUNS + 7)
"""Arrivals that are drawn by these no prediction has seen, nor are two the same. Each of four rehearsals is a
process of its own: latencies differ from one to the next by more than within one.
"""

_SECONDS, _LEAST, _MOST = 2.0, 5, 25_000
"""How long a rehearsal sends requests on average, and how many there are at least and at most."""

_MOST_SECONDS = 8.0

_BEFORE_S = 0.5
"""How long requests are served before they count. In the first fifth of a second of a process they were
late ten times as often as later, at any rate (digits on ONNX Runtime), and decided what 99 of 100 keep.
"""

_RARE, _LITTLE = 70.0, 0.1
"""Requests a second, and a share of what workers can do: where fewer come, workers sleep as soundly at that
rate, and enough are seen for a 99th percentile.
"""

_VERIFIED_S = 20.0
"""At most, and half of the time that there is, unless a single run takes longer."""

Listener = Callable[[str], None]


def trial_run(
    path: Path, process: Process, capacity: float, limit_s: float | None, trust: Sequence[str]
) -> list[tuple[TrialJob, TrialRun]]:
    """Serve the load of the plan at `path`, of which workers can do `capacity` requests a second: four times.

    Each of them may take `limit_s`.
    """
    made = read_plan(path)
    rate = max(made.load.rate, min(_RARE, _LITTLE * capacity))
    count = int(min(_MOST, max(_LEAST, rate * _SECONDS)))
    done = []
    for seed in _REHEARSING_SEEDS:
        job = _trial(path, made, process, rate, count, seed, trust)
        within = max(_LEAST, bisect_right(job.at_s, _MOST_SECONDS))  # part of a record may be a quiet one
        job = msgspec.structs.replace(job, at_s=job.at_s[:within], bucket=job.bucket[:within])
        done.append((job, run_job(job, Tried, limit_s=limit_s).run))
    return done


def verify(
    path: str | Path,
    timeout: float | None = None,
    listener: Listener = lambda text: None,
    trust: Sequence[str] = (),
) -> BatchPlan:
    """Serve the plan's load with `trtopt.serving`, write what came of it into the plan, and return that.

    One, three or five runs one after the other, as many as 20 seconds allow, each of as many requests as were
    simulated, arriving by a seed that no simulation had. After `timeout` seconds that has failed, and the
    plan is as it was. `trust`: plugins that may be loaded.
    """
    check_timeout(timeout)
    path = Path(path)
    made = read_plan(path)
    read = read_arrivals(made.load.arrivals)
    if read.sha256 != made.load.file_sha256:
        raise ArtifactError(
            f"{made.load.arrivals}: is not the file of arrivals that was planned for", "plan again with it"
        )
    count, rate = made.prediction.requests, made.load.rate
    within_s = min(_VERIFIED_S, timeout / 2 if timeout is not None else math.inf)
    runs = next(many for many in (5, 3, 1) if many == 1 or many * count / rate <= within_s)
    job = _trial(path, made, read.process, rate, runs * count, _VERIFYING_SEED, trust)
    listener(f"serving {len(job.at_s):,} requests, {job.at_s[-1]:.0f} s")
    result = run_job(job, Tried, limit_s=timeout)
    made = msgspec.structs.replace(
        made, verification=verification_of(result, parse_goal(made.goal, "--slo").p, runs)
    )
    write_atomically(path, to_json(made))
    return made


def _trial(
    path: Path, made: BatchPlan, process: Process, rate: float, count: int, seed: int, trust: Sequence[str]
) -> TrialJob:
    """About so many requests, and before them half a second of Poisson arrivals at that rate."""
    at_s = arrivals_at(process, rate, count, seed)
    lengths = lengths_of(process, made.load.shares or {0: 1.0}, len(at_s), seed)
    buckets = sorted(made.buckets)
    return TrialJob(
        path=str(path.absolute()),
        backend=made.engines[0].artifact.plan.backend.name,
        buckets=tuple(made.buckets[length] for length in buckets),
        at_s=at_s.tolist(),
        bucket=np.searchsorted(buckets, lengths).tolist(),
        before_s=arrivals_at("poisson", rate, math.ceil(rate * _BEFORE_S), _BEFORE_SEED).tolist(),
        trust=tuple(trust),
    )


def verification_of(result: Tried, p: float, runs: int) -> Verification:
    """The results of the runs, for the percentile `p` too."""
    run: TrialRun = result.run
    each = runs_of(run, p, runs)
    return Verification(
        created=now(),
        environment=result.environment,
        seed=_VERIFYING_SEED,
        requests=len(run.at_ms),
        answered=sum(done is not None for done in run.done_ms),
        rejected=run.rejected,
        failed=run.failed,
        runs=each,
        typical=Served(
            **{
                name: float(np.median([getattr(one, name) for one in each]))
                for name in Served.__struct_fields__
            }
        ),
        total=runs_of(run, p, 1)[0],
        batch_sizes=dict(sorted(Counter(took.requests for took in run.batches).items())),
    )


def runs_of(run: TrialRun, p: float, count: int) -> tuple[Served, ...]:
    """A trial in so many parts of equal length, in the order of arrival; without those that got no answer."""
    at_ms, lag_ms = np.asarray(run.at_ms), np.asarray(run.lag_ms)
    done_ms = np.array([np.nan if done is None else done for done in run.done_ms])
    served = []
    for part in np.array_split(np.arange(len(at_ms)), count):
        answered = part[np.isfinite(done_ms[part])]
        if not answered.size:
            continue
        p50, p99, goal = np.percentile(done_ms[answered] - at_ms[answered], [50, 99, p]).tolist()
        took_s = (done_ms[answered].max() - at_ms[part[0]]) / 1e3
        served.append(
            Served(
                p50_ms=p50,
                p99_ms=p99,
                goal_ms=goal,
                throughput=float(answered.size / took_s),
                lag_p99_ms=float(np.percentile(lag_ms[part], 99)),
            )
        )
    if not served:
        raise DeviceError("no request of the trial was answered", "see whether the engines run: trtopt bench")
    return tuple(served)
