"""Records of precision: what checks, casts, quantisations, bisections and selections found."""

from __future__ import annotations

from typing import Literal

import msgspec

from trtopt.records.base import Record, Result, ResultFile

# ── checks ──────────────────────────────────────────────────────────────────────────────────────────────


class OutputDifference(Record, frozen=True, kw_only=True):
    """The difference of one tensor from its reference over all samples.

    `cosine` of both, flattened; `sqnr_db` the reference's energy over the error's (None: no error);
    `max_abs` the largest absolute error; `top1` the share of samples whose largest element along the last
    axis is the same (None where that makes no sense). `mismatched` counts elements that are NaN or infinite
    in one and not in the other; no other figure includes them. `nonfinite` counts all that are so in the
    compared tensor. `integer`: the tensor holds indices, counts or flags (booleans, integers of 32 or 64
    bits), whose `cosine` is the share that is equal, and whose `sqnr_db` is that of one-hot vectors.
    `resized` counts batches in which the tensor, whose size depends on data, has another size: their values
    are in no figure, and `cosine` is 0 where there are no others.
    """

    output: str
    values: int
    cosine: float
    sqnr_db: float | None
    max_abs: float
    top1: float | None = None
    mismatched: int = 0
    nonfinite: int = 0
    integer: bool = False
    resized: int = 0


class OutputChange(Record, frozen=True, kw_only=True):
    """What of an output of a newer engine (B) rounding does not explain, at a batch size.

    `wrong` values are further from the float model than the older engine's (A) and rounding, or NaN or
    infinite in B alone; `undecided` ones lie too far in both engines, and apart; `skipped` ones say nothing:
    they overflow, or have another shape, by rounding alone. `inputs` are those that show it.
    `worst` is where, with the float model's value, A's and B's: so many `times` what rounding explains, 1 at
    most where nothing is wrong. `a` and `b` are the engines' differences from the float model, over all
    inputs.
    """

    batch: int
    output: str
    values: int
    wrong: int
    undecided: int
    skipped: int
    inputs: tuple[str, ...]
    times: float
    worst: str
    a: OutputDifference
    b: OutputDifference

    @property
    def verdict(self) -> Literal["ok", "wrong", "undecided"]:
        """Nothing is shown where half of the values or more say nothing."""
        if self.wrong:
            return "wrong"
        return "undecided" if self.undecided or 2 * self.skipped >= self.values else "ok"


class Violation(Record, frozen=True, kw_only=True):
    """A bound that an output, or the task metric, does not meet."""

    output: str
    measure: str
    found: float
    bound: float

    @property
    def text(self) -> str:
        """In words, with as many digits as tell on which side of the bound it is."""
        shown = (f"{self.found:.{digits}g}" for digits in (4, 6, 9, 12))
        side = self.found < self.bound, self.found > self.bound
        found = next(
            (one for one in shown if (float(one) < self.bound, float(one) > self.bound) == side),
            f"{self.found!r}",
        )
        return f"{self.measure} of {self.output!r} is {found}, the bound is {self.bound:.12g}"


class TaskScore(Record, frozen=True, kw_only=True):
    """A model's task metric, for the reference and for the checked model."""

    metric: str
    reference: float
    checked: float


class CheckedSubject(Record, frozen=True, kw_only=True):
    """One compared subject: an ONNX file, or an engine at a batch size."""

    name: str
    backend: str
    batch: int | None
    samples: int
    outputs: tuple[OutputDifference, ...]
    task: TaskScore | None = None
    violations: tuple[Violation, ...] = ()


class LayerDifference(Record, frozen=True, kw_only=True):
    """The difference of an inner tensor from the reference's tensor of the same name.

    `added` is the error's share of the tensor's energy, minus the largest such share among its node's
    inputs.
    """

    tensor: str
    node: str
    op: str
    sqnr_db: float | None
    added: float


class CheckReport(Result, ResultFile, frozen=True, kw_only=True):
    """The result of `trtopt check`."""

    schema: str = "trtopt.check/1"
    model: str
    against: str
    against_sha256: str
    data: str
    data_is_random: bool
    subjects: tuple[CheckedSubject, ...]
    layers: tuple[LayerDifference, ...] = ()
    notes: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    """Why the checked model should not be used without a look at it."""

    @property
    def passed(self) -> bool:
        """Whether every requested bound is met."""
        return not any(subject.violations for subject in self.subjects)


# ── casts ───────────────────────────────────────────────────────────────────────────────────────────────


CastPrecision = Literal["fp16", "bf16"]

KeepRule = Literal[
    "operator", "opset", "pattern", "quantised", "weight", "range", "unmeasured", "island", "accuracy"
]


class KeptNode(Record, frozen=True, kw_only=True):
    """A node that stays FP32, with the rule and the reason."""

    node: str
    op: str
    rule: KeepRule
    reason: str


class VanishingWeight(Record, frozen=True, kw_only=True):
    """A weight of which some non-zero values become 0."""

    weight: str
    values: int
    of: int


class CastReport(Result, Record, frozen=True, kw_only=True):
    """The result of `trtopt cast`. `lowered` names the nodes that became 16-bit."""

    schema: str = "trtopt.cast/2"
    source: str
    out: str
    precision: CastPrecision
    target: str
    opset: int
    lowered: tuple[str, ...]
    kept: tuple[KeptNode, ...]
    untouched: int
    """How many nodes have no floating-point tensors: shapes, indices, booleans."""
    casts: int
    """Cast nodes added, minus existing ones that became redundant."""
    vanishing: tuple[VanishingWeight, ...]
    data: str
    data_is_random: bool
    samples: int
    """Number of samples for measuring values and comparing outputs."""
    differences: tuple[OutputDifference, ...]
    """Of the cast model from the original, 16-bit arithmetic emulated: FP32, rounded after every node."""
    verified: bool
    """Whether it was compared so; what was not has `trtopt.unverified` in the file's metadata."""
    notes: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    """Why the result should not be used without a look at it."""
    seconds: float


# ── quantisation ────────────────────────────────────────────────────────────────────────────────────────


class Decision(Record, frozen=True, kw_only=True):
    """The decision on one node, and its rule. `reason` follows "quantised: " or "kept in float because "."""

    node: str
    op: str
    quantised: bool
    rule: str
    reason: str


class TensorRange(Record, frozen=True, kw_only=True):
    """The range of |x| in a tensor: `amax` by method, and the one `chosen` (which users may edit)."""

    chosen: float
    amax: dict[str, float]


class MethodScore(Record, frozen=True, kw_only=True):
    """A method on held-out samples: signal-to-noise ratio over the outputs in dB, more is better."""

    method: str
    sqnr_db: float


class CalibrationTable(Record, frozen=True, kw_only=True):
    """The ranges of all tensors to quantise. `random_data`: made without the user's data.

    Of `samples`, `held` were held out to choose the method and did not enter the ranges.
    """

    schema: str = "trtopt.calibration/1"
    model_sha256: str
    data_sha256: str
    random_data: bool
    samples: int
    held: int = 0
    method: str
    scores: tuple[MethodScore, ...] = ()
    tensors: dict[str, TensorRange]
    smoothed: dict[str, dict[int, float]] = msgspec.field(default_factory=dict)
    """Divisors of activation channels, applied before ranges are measured; weights are multiplied by them."""
    sha256: str = ""
    """Of the file without it, as trtopt wrote that."""


class QuantizeReport(Result, Record, frozen=True, kw_only=True):
    """All of a quantisation. `sqnr_db` compares the written graph with the original, by output.

    `samples` and `held` are the table's; `compared` is the number of samples for comparing outputs.
    """

    schema: str = "trtopt.quantization/2"
    source: str
    out: str
    calibration_table: str | None = msgspec.field(name="table")
    precision: str
    target: str
    method: str | None
    samples: int
    held: int = 0
    compared: int
    random_data: bool
    forms: str = ""
    exclude: tuple[str, ...] = ()
    pairs: int
    weights: int
    decisions: tuple[Decision, ...]
    scores: tuple[MethodScore, ...] = ()
    sqnr_db: dict[str, float]
    fp32: tuple[KeptNode, ...] = ()
    """Where the rest becomes FP16: the nodes that still stay FP32, and why."""
    notes: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    """Why the result should not be used without a look at it."""
    seconds: float


# ── bisection ───────────────────────────────────────────────────────────────────────────────────────────


Verdict = Literal["nothing to keep", "found", "not met"]


class Sensitivity(Record, frozen=True, kw_only=True):
    """Nodes evaluated as the only ones in low precision, and their error."""

    nodes: tuple[str, ...]
    error: float


class KeptSet(Record, frozen=True, kw_only=True):
    """Nodes kept in higher precision, the error with them, and their share of the cost.

    `error` is the used share of the bound, for the worst output and bound: at 1 the bounds are just met.
    `cost` is the share of the floating-point operations of all candidates that is kept, 0 to 1.
    """

    error: float
    cost: float
    nodes: tuple[str, ...]


class BisectReport(Result, ResultFile, frozen=True, kw_only=True):
    """The result of `trtopt bisect`."""

    schema: str = "trtopt.bisect/1"
    model: str
    model_sha256: str
    out: str | None
    """The written model, with `best` kept; None if none was requested or no set meets the bounds."""
    table_file: str | None = msgspec.field(name="table")
    precision: str
    target: str
    backend: str
    """What evaluated the sets: `onnxruntime`, which emulates, or the backend of their engines."""
    data: str
    bounds: dict[str, float]
    candidates: tuple[str, ...]
    """Nodes in low precision if none is kept, in the order of the graph."""
    verdict: Verdict
    best: KeptSet
    """The smallest set found that meets the bounds; all nodes if none does."""
    patterns: tuple[str, ...]
    """The nodes of `best` as `--exclude` of `trtopt quantize` and `trtopt cast` takes them."""
    minimal: bool
    """Whether it was shown that no single node of `best` can be left out."""
    subjects: tuple[CheckedSubject, ...]
    """What was measured with `best`: the emulated model, or one engine per batch size."""
    sensitivities: tuple[Sensitivity, ...]
    """The largest error first."""
    front: tuple[KeptSet, ...]
    """The evaluated sets that no other beats in both error and cost, the cheapest first."""
    evaluations: int
    most_evaluations: int
    notes: tuple[str, ...] = ()
    seconds: float


# ── selection by measurement ────────────────────────────────────────────────────────────────────────────


class ComparisonVerdict(Record, frozen=True, kw_only=True):
    """A verdict for programs to read; it follows from the samples. `ratio` is B's latency over A's."""

    batch: int | None
    verdict: str
    ratio: float | None
    low: float | None
    high: float | None
    reasons: tuple[str, ...]


class Candidate(Record, frozen=True, kw_only=True):
    """One candidate graph. `onnx_sha256` is its hash; the file is kept if an engine is built from it.

    `differences` are its outputs' from the model that it was made from, on ONNX Runtime, 16-bit arithmetic
    emulated; `left` the nodes left in float: Q/DQ did not pay there, or no plugin takes them.
    """

    name: str
    precision: str
    onnx_sha256: str
    differences: tuple[OutputDifference, ...] = ()
    violations: tuple[Violation, ...] = ()
    left: tuple[str, ...] = ()


class CandidateTime(Record, frozen=True, kw_only=True):
    """A candidate's median latency, and the verdict on it against the baseline (None for that itself).

    `build_seconds` is what its engine took to build.
    """

    candidate: str
    latency_ms: float
    build_seconds: float | None = None
    against_baseline: ComparisonVerdict | None = None


class RegionTime(Record, frozen=True, kw_only=True):
    """Connected quantised nodes, and the time of the layers that cover them, from the layer pass.

    `float_ms` is in the baseline's engine, `quantised_ms` in the candidate's. Without nodes it is all that no
    region covers.
    """

    nodes: tuple[str, ...]
    float_ms: float
    quantised_ms: float
    regions: int = 1
    """How many regions these are: layers that cover several cannot be split between them."""
    loses: bool = False

    @property
    def change_ms(self) -> float:
        """The cost of quantising: negative where it pays."""
        return self.quantised_ms - self.float_ms


class BatchVerdict(Record, frozen=True, kw_only=True):
    """The measurements at one batch size, the selection and its reason. `regions` are by candidate."""

    engine: str
    batch: int
    chosen: str
    reason: str
    times: tuple[CandidateTime, ...]
    regions: dict[str, tuple[RegionTime, ...]] = {}  # noqa: RUF012  (msgspec copies mutable defaults)


class PrecisionVerdict(Record, frozen=True, kw_only=True):
    """A precision selection: the user's request, and `baseline`, the candidate that others must beat."""

    schema: str = "trtopt.quantization/3"
    requested: str
    baseline: str
    threshold: float
    device: str
    contract: str
    data: str
    bounds: dict[str, float] = {}  # noqa: RUF012
    candidates: tuple[Candidate, ...]
    batches: tuple[BatchVerdict, ...]
    notes: tuple[str, ...] = ()
