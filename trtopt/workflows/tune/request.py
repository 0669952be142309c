"""The request of a tuning run, validated before anything is built."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from trtopt.data import names_function, open_data
from trtopt.errors import UsageError
from trtopt.measure.statistics.comparison import THRESHOLD
from trtopt.precision.bounds import TUNING_BOUNDS, Bounds
from trtopt.recipe import Recipe, check_timeout
from trtopt.records import Objective, OnnxArtifact
from trtopt.records.tune import CandidateKind
from trtopt.targets import ONNXRUNTIME
from trtopt.workflows.tune.objective import MEASURES

_KINDS = get_args(CandidateKind)
_PER_UNIT = {"s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_PART = re.compile(f"({_NUMBER})([smh])")
_MAX_RATE = 1e6
_MAX_S = 7 * 86400.0


@dataclass(frozen=True, kw_only=True)
class TuneRequest:
    """What to tune for; the fields are the parameters of `trtopt.tune`.

    `recipe` is what the baseline is built with, `batch` the batch sizes that may be chosen, the first first;
    `rate` are requests per second, of which each is a query, for the 99th percentile.
    """

    recipe: Recipe = field(default_factory=Recipe)
    batch: Sequence[int] | None = None
    objective: Objective = "latency"
    rate: float | None = None
    data: str | Path | None = None
    bounds: Bounds = TUNING_BOUNDS
    budget: str = "30m"
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    resume: bool = False
    contract: str | None = None
    duration: float = 2.0
    threshold: float = THRESHOLD
    timeout: float | None = None
    cache_dir: str | Path | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of candidates to try."""
        wanted = self.include or _KINDS
        return tuple(name for name in _KINDS if name in wanted and name not in self.exclude)


def parse_budget(text: str) -> float:
    """`90s`, `30m`, `1h30m` or plain seconds."""
    parts = _PART.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        seconds = sum(float(number) * _PER_UNIT[unit] for number, unit in parts)
    elif re.fullmatch(_NUMBER, text):
        seconds = float(text)
    else:
        raise UsageError(f"--budget {text}: not a duration", "write, say, --budget 30m, 90s or 1h30m")
    if not 0 < seconds <= _MAX_S:
        raise UsageError(f"--budget {text}: out of range", "give more than 0 seconds, at most a week")
    return seconds


def check_request(request: TuneRequest, backend: str) -> None:
    """Validate what no model is needed for."""
    parse_budget(request.budget)
    check_timeout(request.timeout)
    for flag, names in (("--include", request.include), ("--exclude", request.exclude)):
        for name in names:
            if name not in _KINDS:
                raise UsageError(
                    f"{flag} {name}: no such kind of candidate", f"choose among {', '.join(_KINDS)}"
                )
    if not request.kinds:
        raise UsageError("--include and --exclude leave no kind of candidate", "exclude fewer kinds")
    if request.objective not in get_args(Objective):
        raise UsageError(
            f"--objective {request.objective}: no such objective",
            f"choose among {', '.join(get_args(Objective))}",
        )
    if request.rate is not None and request.objective != "p99":
        raise UsageError(
            f"--rate {request.rate:g}: {request.objective} is measured one query after another",
            "add --objective p99, the latency of requests that arrive at that rate; or omit --rate",
        )
    if request.rate is not None and not 0 < request.rate <= _MAX_RATE:
        raise UsageError(
            f"--rate {request.rate:g}: out of range",
            f"give requests per second, above 0, at most {_MAX_RATE:g}",
        )
    if not 0 < request.duration <= 86400:
        raise UsageError(
            f"--duration {request.duration:g}: out of range", "give seconds above 0, at most a day"
        )
    if not 0 < request.threshold < 1:
        raise UsageError(
            f"--threshold {request.threshold:g}: not a share between 0 and 1", "write 0.01 for one percent"
        )
    if MEASURES[request.objective].needs_energy and backend == ONNXRUNTIME:
        raise UsageError(
            "--objective energy: the CPU reports no energy here", "choose latency, p99 or throughput"
        )
    if "precision" in request.include and "precision" in request.kinds and request.data is None:
        raise UsageError(
            "--include precision: INT8 needs data to calibrate on, and no samples are given",
            "give --data DATA, or omit --include precision",
        )
    if request.data is not None and not names_function(str(request.data)):  # which a worker imports
        open_data(request.data)
    _check_recipe(request.recipe)


def _check_recipe(recipe: Recipe) -> None:
    if recipe.dynamic or recipe.ranges:
        raise UsageError("--recipe: an engine for a range of batch sizes cannot be tuned", "omit `dynamic`")
    if recipe.compute_capability:
        raise UsageError(
            "--recipe: engines for other GPUs cannot be measured here", "omit compute_capability"
        )
    if recipe.bounds:
        raise UsageError("--recipe: bounds are for the tuning as a whole", "give --min-cosine instead")


def batches_of(request: TuneRequest, fixed: int | None, onnx: OnnxArtifact) -> tuple[int, ...]:
    """The batch sizes that may be chosen; the first is the baseline's."""
    sizes = tuple(dict.fromkeys(request.batch or request.recipe.batch or (fixed or 1,)))
    if len(sizes) > 1 and not MEASURES[request.objective].per_sample:
        raise UsageError(
            f"--batch {','.join(map(str, sizes))}: {request.objective} is tuned for one batch size at a time",
            "name one, or choose --objective throughput, which compares batch sizes per sample",
        )
    if fixed is not None and sizes != (fixed,):
        raise UsageError(
            f"--batch {','.join(map(str, sizes))}: {onnx.path} fixes its batch at {fixed}",
            f"omit --batch, or make it dynamic: trtopt rewrite {onnx.path} --dynamic-batch -o dynamic.onnx",
        )
    return sizes
