"""Records of comparisons between a model and its reference."""

from __future__ import annotations

from trtopt.records.base import Record
from trtopt.records.result import Result

CHECK_SCHEMA = "trtopt.check/1"


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


class Violation(Record, frozen=True, kw_only=True):
    """A bound that an output, or the task metric, does not meet."""

    output: str
    measure: str
    found: float
    bound: float

    @property
    def text(self) -> str:
        """In words, with as many digits as tell the two apart."""
        shown = (f"{self.found:.{digits}g}" for digits in (4, 6, 9, 12))
        found = next((one for one in shown if float(one) != self.bound), f"{self.found!r}")
        return f"{self.measure} of {self.output!r} is {found}, the bound is {self.bound:g}"


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


class CheckReport(Result, Record, frozen=True, kw_only=True):
    """The result of `trtopt check`."""

    schema: str = CHECK_SCHEMA
    created: str
    argv: tuple[str, ...] = ()
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
