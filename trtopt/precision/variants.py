"""The models that a bisection tries: a precision written into a graph, but for the nodes that are kept.

Values are measured, and ranges calibrated, once; each variant is decided and written from them.
"""

from __future__ import annotations

import glob
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import msgspec
import onnx

from trtopt.data import SampleSource
from trtopt.onnxio.model_file import ModelFile
from trtopt.precision.calibrate import Quantisation
from trtopt.precision.casting.cast import cast_graph, check_worthwhile, measured
from trtopt.precision.casting.decide import CastOptions, Decision
from trtopt.precision.quantize import make_rest_half, measured_for_rest, quantise, with_pairs
from trtopt.records.precision import CalibrationTable


@dataclass(frozen=True)
class Variant:
    """A model with some nodes kept in higher precision, and the calibration table of the others."""

    model: ModelFile
    table: CalibrationTable | None = None


class Variants(Protocol):
    """All models between the one that is low wherever the rules allow and the one with everything kept."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that are low where nothing is kept, in the order of the graph."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the calibration."""

    def variant(self, kept: frozenset[str], spool: Path) -> Variant:
        """The model with the nodes in `kept` in higher precision and all other candidates in low.

        Large new weights go to files in `spool`.
        """

    def tidied(self, kept: frozenset[str], spool: Path) -> Variant | None:
        """The model as users get it who keep these nodes, if that is another."""


def pattern_for(node: str) -> str:
    """The pattern that fits this node alone, even if it bears the name of an operator."""
    return f"[{node[0]}]{node[1:]}" if onnx.defs.has(node) else glob.escape(node)


class CastVariants:
    """FP16 or BF16 but for what the options and the search keep in FP32."""

    notes: tuple[str, ...] = ()

    def __init__(
        self, model: ModelFile, samples: SampleSource, cast_options: CastOptions, spool: Path
    ) -> None:
        """Run `samples` through the prepared model once."""
        self._model, self._cast_options = model, cast_options
        self._ranges, _ = measured(model, samples)
        decision = self._cast(cast_options, spool)[1]
        check_worthwhile(model, decision, cast_options.precision)
        self.nodes = tuple(decision.places)

    def variant(self, kept: frozenset[str], spool: Path) -> Variant:
        """See `Variants`. Isolated nodes between FP32 ones are cast too, to measure their error."""
        only = frozenset(self.nodes) - kept
        return Variant(self._cast(replace(self._cast_options, only=only), spool)[0])

    def tidied(self, kept: frozenset[str], spool: Path) -> Variant | None:
        """See `Variants`. Isolated nodes between FP32 ones stay FP32."""
        keep = (*self._cast_options.keep, *map(pattern_for, sorted(kept)))
        made, decision = self._cast(replace(self._cast_options, keep=keep), spool)
        return None if len(decision.places) + len(kept) == len(self.nodes) else Variant(made)

    def _cast(self, cast_options: CastOptions, spool: Path) -> tuple[ModelFile, Decision]:
        return cast_graph(replace(self._model, spool=spool), self._ranges, cast_options)


class QuantisedVariants:
    """INT8 or FP8 but for what the options and the search keep in the target's float type."""

    def __init__(self, model: ModelFile, samples: SampleSource, job: Quantisation, target: str) -> None:
        """Place and calibrate once; `samples` show which nodes stay FP32 among FP16."""
        self._model, self._target = model, target
        made = quantise(model, job)
        self.notes = tuple(made.notes)
        self._job = replace(job, method=None, table=made.table)
        plan = made.plan
        low = {edge.node for edge in plan.edges} | {weight.node for weight in plan.weights}
        low |= {item.node for item in plan.quantised}
        self.nodes = tuple(node.name for node in model.proto.graph.node if node.name in low)
        self._ranges: dict[str, float] = {}
        if job.form.strongly_typed:  # pairs bound what they let through; without them tensors may be larger
            quantised, plain = (measured_for_rest(item, samples) for item in (made.model, model))
            self._ranges = quantised | {
                name: max(peak, quantised.get(name, 0.0)) for name, peak in plain.items()
            }

    def variant(self, kept: frozenset[str], spool: Path) -> Variant:
        """See `Variants`. Tensors that carry Q/DQ only now are calibrated now, by the same method."""
        options = self._job.options
        options = replace(options, exclude=(*options.exclude, *map(pattern_for, sorted(kept))))
        made = with_pairs(replace(self._model, spool=spool), replace(self._job, options=options))
        if self._job.table is not None and made.table is not None:  # what is calibrated now stays known
            rows = self._job.table.tensors | made.table.tensors
            self._job = replace(self._job, table=msgspec.structs.replace(self._job.table, tensors=rows))
        if self._job.form.strongly_typed:
            make_rest_half(made, self._target, self._ranges, is_real=True)
        return Variant(made.model, made.table)

    def tidied(self, kept: frozenset[str], spool: Path) -> Variant | None:
        """See `Variants`."""
        return None
