"""Is B faster than A? Pure functions of lists of latencies; every verdict needs evidence.

Every comparison starts as UNDECIDED. FASTER and SLOWER (always B's, against A) need both significance, the
interval of the ratio of medians excluding 1, and practice: the ratio itself at least the threshold away from
1. SAME needs the whole 95 % interval within the threshold. Thresholds are taken on the logarithm, so that
swapping A and B mirrors the verdict: 1 % is from 1/1.01 to 1.01.

A side that was disturbed may come out elsewhere the next time, but hardly farther away than most of its own
latencies are from each other. So its interval is widened by its inter-quartile range, and a winner needs the
whole of that beyond the threshold: twice as slow is slower on a busy machine too.

Two loads of one engine differ for as long as they stay loaded (benchmarks/contexts), and no number of queries
averages that out. So engines in turns are loaded several times, and the load is the unit of replication: each
gives one ratio, whatever the number of its blocks, and the interval is over loads.

A winner must be significant at 99 %: on a machine so noisy that the threshold excludes nothing, 95 % would by
definition find a winner in 5 % of A/A pairs. benchmarks/verdict-rates has the simulated rates.

For rates, where more is better, give the reciprocals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from statistics import fmean, median, stdev

import numpy as np

from trtopt.measure.contracts import THRESHOLD
from trtopt.measure.statistics.intervals import CONFIDENCE, student
from trtopt.records import MeasuredRunSpread

MIN_BLOCKS = 8
"""Fewer do not show how blocks differ."""

MIN_LOADS = 4
"""Fewer loads do not show how loads differ."""

SIGNED_LOADS = 8
"""From eight on signs can tell at 99 %, where fewer could not if they were unanimous: 2 · 2^-7 > 1 %."""

WINNER_CONFIDENCE = 0.99

RUN_LUCK = 0.01
"""Standard deviation of a run's own luck (memory placement, temperature, clocks) against other runs of the
same engine, allowed for between separate runs when no control has measured it. Twelve runs of ResNet-50 on an
H200 had 0.37 %, but contexts of one process fell into two modes 4.8 % apart: benchmarks/trust."""

RUN_BLOCKS = 20

Block = Sequence[float]


class Verdict(str, Enum):
    """What B is, against A."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"
    UNDECIDED = "UNDECIDED"


class ReasonCode(str, Enum):
    """Why the verdict is what it is."""

    BEYOND_THRESHOLD = "beyond-threshold"
    WITHIN_THRESHOLD = "within-threshold"
    REAL_BUT_SMALL = "real-but-small"
    NEAR_THRESHOLD = "near-threshold"
    TOO_NOISY = "too-noisy"
    TOO_FEW_BLOCKS = "too-few-blocks"
    TOO_FEW_LOADS = "too-few-loads"
    TOO_FEW_BUILDS = "too-few-builds"
    INVALID_SAMPLES = "invalid-samples"
    DISTURBED = "disturbed"
    CONTROL_FOUND_WINNER = "control-found-winner"
    CONTROL_NOISE = "control-noise"
    NOT_INTERLEAVED = "not-interleaved"


@dataclass(frozen=True)
class Reason:
    """One ground of a verdict, with its figures."""

    code: ReasonCode
    text: str


@dataclass(frozen=True)
class Ratio:
    """B's median over A's; below 1 B is faster.

    `low` and `high` bound the 95 % interval; the surer one, `sure_low` to `sure_high`, must exclude 1 for a
    winner.
    """

    value: float
    low: float
    high: float
    sure_low: float
    sure_high: float

    @property
    def saved(self) -> tuple[float, float, float]:
        """The share of A that B saves, and the bounds of its 95 % interval."""
        return 1 - self.value, 1 - self.high, 1 - self.low

    @staticmethod
    def of_log(value: float, half_width: float, sure_half_width: float) -> Ratio:
        """From a difference of logarithms and its intervals' half-widths."""
        return Ratio(
            math.exp(value),
            math.exp(value - half_width),
            math.exp(value + half_width),
            math.exp(value - sure_half_width),
            math.exp(value + sure_half_width),
        )

    def stretched(self, relative: float) -> Ratio:
        """With an error of up to `relative` either way added to every bound."""
        factor = 1 + relative
        return Ratio(
            self.value,
            self.low / factor,
            self.high * factor,
            self.sure_low / factor,
            self.sure_high * factor,
        )

    def widened(self, relative: float) -> Ratio:
        """With an independent error added whose 95 % bound is `relative`."""
        error = math.log1p(relative)
        surer = error * student(math.inf, WINNER_CONFIDENCE) / student(math.inf)

        def farther(bound: float, by: float, sign: int) -> float:
            return self.value * math.exp(sign * math.hypot(math.log(bound / self.value), by))

        return Ratio(
            self.value,
            farther(self.low, error, -1),
            farther(self.high, error, +1),
            farther(self.sure_low, surer, -1),
            farther(self.sure_high, surer, +1),
        )

    @property
    def change(self) -> str:
        """Such as `-2.1 % (-2.6 % to -1.6 %)`: the change from A to B."""
        return f"{self.value - 1:+.1%} ({self.low - 1:+.1%} to {self.high - 1:+.1%})"


@dataclass(frozen=True)
class Comparison:
    """A verdict with its reasons. `ratio` is None when there was too little to form one.

    `is_barred` is whether a reason bars any verdict: the ratio is then only to be shown.
    """

    verdict: Verdict
    reasons: tuple[Reason, ...]
    ratio: Ratio | None
    is_barred: bool = False

    def rules_out(self, slowdown: float) -> bool:
        """Whether the 95 % interval lies wholly below a slowdown of this share."""
        return self.ratio is not None and not self.is_barred and self.ratio.high < 1 + slowdown


@dataclass(frozen=True)
class Noise:
    """The machine's noise by an A/A control: `relative` is how far apart equal sides may seem, at 95 %."""

    relative: float
    control: Comparison


def in_turns(subjects: int, rounds: int, seed: int) -> tuple[int, ...]:
    """The order in which to run blocks: in every round each subject once, in an order drawn from `seed`.

    Each round's reverse is among the other rounds, so that slow drift falls on all alike. The order is
    random: interference in step with a fixed order would affect only one subject.
    """
    random = np.random.RandomState(seed)
    drawn = [random.permutation(subjects) for _ in range((rounds + 1) // 2)]
    orders = [order for forth in drawn for order in (forth, forth[::-1])]
    shuffled = random.permutation(len(orders))[:rounds]
    return tuple(int(index) for number in shuffled for index in orders[number])


def blocks_of(values: Sequence[float], count: int = RUN_BLOCKS) -> list[list[float]]:
    """One run in `count` consecutive blocks of equal length (the remainder goes to none), for run files.

    Fewer blocks if they would hold fewer than five values each.
    """
    count = min(count, len(values) // 5)
    if count < 1:
        return []
    length = len(values) // count
    return [list(values[index * length : (index + 1) * length]) for index in range(count)]


def compare(
    a: Sequence[Block],
    b: Sequence[Block],
    *,
    threshold: float = THRESHOLD,
    noise: Noise | None = None,
    interfered: Sequence[str] = (),
    failures: Sequence[str] = (),
    loads: Sequence[int] | None = None,
    is_reversed: Sequence[bool] | None = None,
    what: str = "latency",
) -> Comparison:
    """Compare two sides' blocks of latencies that were taken in turns.

    a[i] and b[i] were taken one after the other, in an order drawn at random, which takes out whatever both
    felt; `loads[i]` is the load of the engines in which they were taken, by default one of its own, and
    `is_reversed[i]` whether B was loaded before A. `interfered` are reasons not to trust a side, `failures`
    those to give no verdict; `what` is what the blocks hold.
    """
    missing = _blocks_missing(a, b) or _pairs_missing(a, b, loads)
    if missing is not None:
        return decide(None, threshold, noise, [missing], interfered, what=what)
    numbers = range(len(a)) if loads is None else loads
    logs = by_load(log_ratios(a, b), numbers)
    ratio = ratio_over_loads(
        list(logs.values())
        if is_reversed is None
        else without_place(logs, dict(zip(numbers, is_reversed, strict=True)))
    )
    blockers = [Reason(ReasonCode.DISTURBED, text) for text in failures]
    scatter = _scatter(a, b) if interfered else None
    return decide(ratio, threshold, noise, blockers, interfered, scatter=scatter, what=what)


def compare_runs(
    a: Sequence[Block],
    b: Sequence[Block],
    *,
    threshold: float = THRESHOLD,
    interfered: Sequence[str] = (),
    run_spread: MeasuredRunSpread | None = None,
) -> Comparison:
    """Compare the blocks of two separate runs (`blocks_of`).

    No number of samples shows what differed between the runs: the interval is widened by `run_spread` a run,
    which is this device's own, else by `RUN_LUCK`.
    """
    missing = _blocks_missing(a, b)
    if missing is not None:
        return decide(None, threshold, None, [missing], interfered)
    allowance = allowed_between_runs(run_spread)
    ratio, scatter = ratio_of_runs(a, b).widened(allowance), _scatter(a, b) if interfered else None
    comparison = decide(ratio, threshold, None, (), interfered, scatter=scatter, more_helps=False)
    text = (
        f"separate runs of one engine differ: {allowance:.1%} are allowed for that, however many samples "
        f"there are ({spread_source(run_spread)}); engines that take turns need no allowance (give compare "
        "the engines, not their results)"
    )
    caveat = Reason(ReasonCode.NOT_INTERLEAVED, text)
    return replace(comparison, reasons=(*comparison.reasons, caveat))


def _scatter(*sides: Sequence[Block]) -> float:
    """By how much a disturbance may have moved a side: the middle half of its values over their median.

    Of both sides the wider one.
    """
    values = [np.concatenate([np.asarray(block) for block in blocks]) for blocks in sides]
    quarters = [np.quantile(side, (0.25, 0.5, 0.75)) for side in values]
    return max(float((high - low) / middle) for low, middle, high in quarters)


def allowed_between_runs(spread: MeasuredRunSpread | None) -> float:
    """How far apart two separate runs of one engine may seem, at 95 %."""
    deviation, freedom = (RUN_LUCK, math.inf) if spread is None else (spread.deviation, spread.runs - 1)
    return math.expm1(student(freedom) * math.sqrt(2) * deviation)


def spread_source(spread: MeasuredRunSpread | None, engines: str = "ENGINES") -> str:
    """Where the allowance comes from, in words; `engines` are those that a control can be run with."""
    if spread is None:
        return f"an H200's figure: this device's own is measured by `trtopt compare {engines} --control 10`"
    return f"measured on this device in {spread.runs} runs"


def _blocks_missing(a: Sequence[Block], b: Sequence[Block]) -> Reason | None:
    if any(len(block) == 0 for block in (*a, *b)):
        return Reason(ReasonCode.TOO_FEW_BLOCKS, "a block holds no samples")
    if any(not 0 < value < math.inf for block in (*a, *b) for value in (min(block), max(block), sum(block))):
        return Reason(ReasonCode.INVALID_SAMPLES, "there are samples that are no positive finite number")
    if min(len(a), len(b)) < MIN_BLOCKS:
        found = f"{len(a)} and {len(b)} blocks"
        return Reason(ReasonCode.TOO_FEW_BLOCKS, f"{found}: at least {MIN_BLOCKS} a side are needed")
    return None


def _pairs_missing(a: Sequence[Block], b: Sequence[Block], loads: Sequence[int] | None) -> Reason | None:
    if len(a) != len(b):
        return Reason(ReasonCode.TOO_FEW_BLOCKS, f"{len(a)} blocks of A do not pair with {len(b)} of B")
    if loads is not None and len(set(loads)) < MIN_LOADS:
        return Reason(
            ReasonCode.TOO_FEW_LOADS,
            f"the engines were loaded {len(set(loads))} times, and loads of one engine differ: at least "
            f"{MIN_LOADS} are needed",
        )
    return None


def decide(
    ratio: Ratio | None,
    threshold: float,
    noise: Noise | None = None,
    blockers: Sequence[Reason] = (),
    interfered: Sequence[str] = (),
    *,
    scatter: float | None = None,
    more_helps: bool = True,
    what: str = "latency",
) -> Comparison:
    """The only place where a verdict is given: see the module's docstring.

    A control's noise widens the interval; a control that found a winner between equal sides bars any
    verdict. So does interference, unless `scatter` is by how much it may have moved a side. `more_helps` is
    whether more samples would narrow the interval.
    """
    disturbed = [Reason(ReasonCode.DISTURBED, text) for text in interfered]
    reasons = [*blockers, *(disturbed if ratio is None or scatter is None else ())]
    if noise is not None and noise.control.verdict in (Verdict.FASTER, Verdict.SLOWER):
        text = f"the A/A control found {noise.control.verdict.value} where nothing differs"
        reasons.append(Reason(ReasonCode.CONTROL_FOUND_WINNER, text))
    if ratio is None or reasons:
        return Comparison(Verdict.UNDECIDED, tuple(reasons), ratio, is_barred=True)
    if noise is not None:
        ratio = ratio.widened(noise.relative)
        text = f"equal sides seem up to {noise.relative:.1%} apart in the control: that is allowed for"
        reasons.append(Reason(ReasonCode.CONTROL_NOISE, text))
    if disturbed and scatter is not None:
        ratio = ratio.stretched(scatter)
        verdict, reason = _earn_disturbed(ratio, threshold, scatter, what)
        return Comparison(verdict, (reason, *disturbed, *reasons), ratio)
    verdict, reason = _earn(ratio, threshold, more_helps, what)
    return Comparison(verdict, (reason, *reasons), ratio)


def _earn_disturbed(ratio: Ratio, threshold: float, scatter: float, what: str) -> tuple[Verdict, Reason]:
    changes = f"{what} changes by {ratio.change}, with the {scatter:.1%} that half of a side's samples span"
    if ratio.low > 1 + threshold or ratio.high * (1 + threshold) < 1:
        verdict = Verdict.SLOWER if ratio.low > 1 else Verdict.FASTER
        text = f"{changes}: more than the disturbance explains, and than {threshold:.1%}"
        return verdict, Reason(ReasonCode.BEYOND_THRESHOLD, text)
    return Verdict.UNDECIDED, Reason(
        ReasonCode.TOO_NOISY, f"{changes}: too disturbed to tell {threshold:.1%}"
    )


def _earn(ratio: Ratio, threshold: float, more_helps: bool, what: str) -> tuple[Verdict, Reason]:
    bound = math.log1p(threshold)
    value, low, high = math.log(ratio.value), math.log(ratio.low), math.log(ratio.high)
    significant = ratio.sure_low > 1 or ratio.sure_high < 1
    if significant and abs(value) >= bound:
        text = f"{what} changes by {ratio.change}: significant, and at least {threshold:.1%}"
        verdict = Verdict.FASTER if value < 0 else Verdict.SLOWER
        return verdict, Reason(ReasonCode.BEYOND_THRESHOLD, text)
    if -bound < low and high < bound:
        if significant:
            text = f"{what} changes by {ratio.change}: real, but less than {threshold:.1%}"
            return Verdict.SAME, Reason(ReasonCode.REAL_BUT_SMALL, text)
        text = f"{what} changes by {ratio.change}: no more than {threshold:.1%} either way"
        return Verdict.SAME, Reason(ReasonCode.WITHIN_THRESHOLD, text)
    if significant:
        text = f"{what} changes by {ratio.change}: real, but may be more or less than {threshold:.1%}"
        return Verdict.UNDECIDED, Reason(ReasonCode.NEAR_THRESHOLD, text)
    advice = "; take more samples" if more_helps else ""
    text = f"{what} changes by {ratio.change}: too noisy to tell {threshold:.1%}{advice}"
    return Verdict.UNDECIDED, Reason(ReasonCode.TOO_NOISY, text)


# ── by signs ──────────────────────────────────────────────────────────────────────────────────────────
#
# Which engine of a pair was loaded first, and which ran first, is drawn at random. Whatever else made one of
# them slow (what its load keeps, a neighbour that comes back every second, a clock that wanders) fell on
# either side with equal odds, however regular it is. So the sign test needs no assumption on the noise, and
# the interval of all shifts that it does not reject, between two order statistics, covers the true one. Only
# signs count, because a load in which a neighbour took turns with one side may be off by a third.


MIN_IN_PLACE = 4
"""Loads in either order that show what the order does."""


def log_ratios(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> list[float]:
    """Of each pair of blocks, the logarithm of B's median over A's."""
    medians = [(math.log(median(ours)), math.log(median(theirs))) for ours, theirs in zip(a, b, strict=True)]
    return [theirs - ours for ours, theirs in medians]


def by_load(values: Sequence[float], loads: Sequence[int]) -> dict[int, float]:
    """The median of the values of each load, by its number."""
    found: dict[int, list[float]] = {}
    for value, load in zip(values, loads, strict=True):
        found.setdefault(load, []).append(value)
    return {load: median(own) for load, own in found.items()}


def without_place(logs: Mapping[int, float], is_reversed: Mapping[int, bool]) -> list[float]:
    """The log ratios of loads, without what being loaded second costs.

    What is loaded first gets the same places again and again (benchmarks/contexts), and every second load is
    in the reverse order: half the difference between the two orders' medians is the place's.
    """
    sides = [[log for load, log in logs.items() if is_reversed[load] is which] for which in (False, True)]
    if min(map(len, sides)) < MIN_IN_PLACE:
        return list(logs.values())
    place = (median(sides[0]) - median(sides[1])) / 2
    return [log + place if is_reversed[load] else log - place for load, log in logs.items()]


def interval(values: Sequence[float], confidence: float) -> tuple[float, float]:
    """The exact interval of the median of independent values, between the k-th from either end."""
    left_out = _left_out(len(values), round((1 - confidence) / 2, 9))
    if not left_out:
        raise ValueError(f"no {confidence:.0%} interval from {len(values)} values")
    ordered = sorted(values)
    return ordered[left_out - 1], ordered[-left_out]


@lru_cache(maxsize=64)
def _left_out(count: int, tail: float) -> int:
    """The largest k: of `count` tosses fewer than k are heads with a probability of `tail` at most."""
    heads, odds = 0, 0.0
    while (odds := odds + math.comb(count, heads) / 2**count) <= tail:
        heads += 1
    return heads


def ratio_over_loads(logs: Sequence[float]) -> Ratio:
    """The ratio and its intervals from the logarithms of two or more independent ratios of loads.

    From `SIGNED_LOADS` on by signs, which a few disturbed loads hardly move; below by Student's t.
    """
    if len(logs) >= SIGNED_LOADS:
        bounds = (*interval(logs, CONFIDENCE), *interval(logs, WINNER_CONFIDENCE))
        return Ratio(*map(math.exp, (median(logs), *bounds)))
    error = stdev(logs) / math.sqrt(len(logs))
    half, sure = (student(len(logs) - 1, one) * error for one in (CONFIDENCE, WINNER_CONFIDENCE))
    return Ratio.of_log(fmean(logs), half, sure)


def ratio_of_runs(a: Sequence[Block], b: Sequence[Block]) -> Ratio:
    """B's median over A's, each of its blocks' medians, with the interval of either by signs.

    A block counts once, because latencies within one are autocorrelated. Unlike loads, whose order is drawn,
    the blocks of a run are only taken to be independent: what lasts longer than one, the intervals do not
    know. The distances from both medians to their bounds add up as independent errors do (Zou and Donner,
    Construction of confidence limits about effect measures, Statistics in Medicine 27(10), 2008).
    """
    ours, theirs = ([math.log(median(block)) for block in side] for side in (a, b))
    middle_a, middle_b = median(ours), median(theirs)

    def bounds(confidence: float) -> tuple[float, float]:
        (low_a, high_a), (low_b, high_b) = interval(ours, confidence), interval(theirs, confidence)
        below = math.hypot(middle_b - low_b, high_a - middle_a)
        above = math.hypot(high_b - middle_b, middle_a - low_a)
        return middle_b - middle_a - below, middle_b - middle_a + above

    logs = (middle_b - middle_a, *bounds(CONFIDENCE), *bounds(WINNER_CONFIDENCE))
    return Ratio(*map(math.exp, logs))


def noise_of(control: Comparison) -> Noise | None:
    """The machine's own noise from a control: the far end of the interval between two equal sides."""
    if control.ratio is None:
        return None
    farthest = max(abs(math.log(control.ratio.low)), abs(math.log(control.ratio.high)))
    return Noise(math.expm1(farthest), control)
