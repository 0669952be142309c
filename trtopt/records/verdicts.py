"""Records of verdicts: of one comparison, and of a precision selection."""

from __future__ import annotations

from trtopt.records.base import Record
from trtopt.records.checking import OutputDifference, Violation


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
    emulated; `left` the nodes left in float because Q/DQ did not pay there.
    """

    name: str
    precision: str
    onnx_sha256: str
    differences: tuple[OutputDifference, ...] = ()
    violations: tuple[Violation, ...] = ()
    left: tuple[str, ...] = ()


class CandidateTime(Record, frozen=True, kw_only=True):
    """A candidate's median latency, and the verdict on it against the baseline (None for that itself).

    `build_seconds` is what its engine took to build; None in folders that did not keep it.
    """

    candidate: str
    latency_ms: float
    build_seconds: float | None = None
    against_baseline: ComparisonVerdict | None = None


class RegionTime(Record, frozen=True, kw_only=True):
    """Connected quantised nodes, and the time of the layers that cover them, from the layer pass.

    `float_ms` is in the baseline's engine, `quantised_ms` in the candidate's. Their difference is the sum of
    four: `compute_ms`; `reformat_ms`, of Q, DQ and layout conversions; `float_path_ms`, of layers that ran
    wider than the graph requests; `lost_fusion_ms`, of layers that the baseline does not have because their
    nodes fused. Positive is a loss. Without nodes it is all that no region covers.
    """

    nodes: tuple[str, ...]
    float_ms: float
    quantised_ms: float
    compute_ms: float
    reformat_ms: float
    float_path_ms: float
    lost_fusion_ms: float
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


class TuningChoice(Record, frozen=True, kw_only=True):
    """What tuning chose: the accepted candidates, and the batch size and streams to run the engine with.

    `recipe` is the engine's, as JSON; `gain` is the share of the baseline's cost that they save; `ledger` is
    the file in the folder with all candidates.
    """

    objective: str
    batch: int
    streams: int
    changes: tuple[str, ...]
    recipe: str
    gain: float
    ledger: str


class PrecisionVerdict(Record, frozen=True, kw_only=True):
    """A precision selection: the user's request, and `baseline`, the candidate that others must beat."""

    schema: str = "trtopt.quantization/1"
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
