"""Casting a model from file to file: measure, decide, convert, compare, write."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray

from trtopt.data import SampleSource, open_data
from trtopt.data.feeds import inputs_of, on_seeded, source_of, specs_of
from trtopt.data.readers import Arrays
from trtopt.data.source import range_notes
from trtopt.device.ort.reference import CannotLoad, CannotRun, Crashed, OperatorMissing
from trtopt.errors import ModelError, UsageError
from trtopt.files.atomic import scratch_beside
from trtopt.files.outputs import check_output
from trtopt.onnxio import model_file, prepare
from trtopt.onnxio.disk_space import Note, check_output_room, silent
from trtopt.onnxio.graph_walk import graphs_of, name_apart, opset_of
from trtopt.onnxio.half_emulation import in_fp32, is_low, widened
from trtopt.onnxio.model_file import MODEL, ModelFile, array_of, spooled
from trtopt.onnxio.shape_inference import LOW, check, types_of
from trtopt.onnxio.weights import weight_alarms
from trtopt.precision.bounds import LEAST_COSINE, LEAST_SQNR_DB, Bounds, accuracy_alarms, allowance_used
from trtopt.precision.casting.convert import convert
from trtopt.precision.casting.decide import HEAVY, CastDecider, CastOptions, Decision
from trtopt.precision.casting.rules import check_patterns, largest
from trtopt.precision.compare import First, compared
from trtopt.precision.observe import float_tensors, observe
from trtopt.precision.running import of_casting, passing, with_weights_dequantised
from trtopt.precision.search import ALLOWED, Found, Names, search
from trtopt.precision.subgraph_peaks import NOT_RUN, with_subgraph_peaks
from trtopt.printable import counted
from trtopt.records.precision import CastPrecision, CastReport, OutputDifference, VanishingWeight
from trtopt.targets import DEFAULT, target_named


class Reference:
    """Picks a model's inputs and outputs out of what is observed of it; the files go into `folder`."""

    def __init__(self, model: onnx.ModelProto, folder: Path, samples: int) -> None:
        self._folder, self._samples = folder, samples
        self._inputs = frozenset[str](item.name for item in inputs_of(model))
        self._outputs = [item.name for item in model.graph.output if item.type.HasField("tensor_type")]
        self.names = self._inputs.union(self._outputs)
        """The tensors that must be observed."""
        self._batches: dict[int, dict[str, onnx.TensorProto]] = {}
        self._texts: dict[int, Arrays] = {}

    def visit(self, name: str, values: NDArray[Any], first: int) -> None:
        """Keep what belongs to a batch that begins among the first samples; see `observe.Visitor`."""
        if name not in self.names or first >= self._samples:
            return
        if values.dtype.kind not in "OSU":
            self._batches.setdefault(first, {})[name] = spooled(values, name, self._folder)
        elif name in self._inputs:
            self._texts.setdefault(first, {})[name] = values

    def pairs(self) -> Iterator[tuple[Arrays, Arrays]]:
        """Inputs and outputs by name, a batch at a time, mapped from the files."""
        for first, kept in self._batches.items():
            arrays = {name: array_of(tensor, self._folder) for name, tensor in kept.items()}
            yield (
                {name: array for name, array in arrays.items() if name in self._inputs}
                | self._texts.get(first, {}),
                {name: arrays[name] for name in self._outputs if name in arrays},
            )


_COMPARED = 64
"""How many samples the original and the result are compared on."""
_AT_ONCE = 8
_ACCURATE = Bounds(min_cosine=LEAST_COSINE, min_sqnr=LEAST_SQNR_DB)
"""What outputs on real samples must meet, else nodes are kept in FP32."""
_RUNS = 40
"""The most runs over the compared samples to find which."""
_OLDEST_CAST = 6


def cast_model(
    source: Path,
    out: Path,
    *,
    precision: CastPrecision,
    target: str = DEFAULT,
    data: str | Path | None = None,
    threshold: float | None = None,
    keep: Sequence[str] = (),
    keep_op: Sequence[str] = (),
    include: Sequence[str] = (),
    cast_io: bool = False,
    compare: bool = True,
    accept: Callable[[CastReport], object] = lambda report: None,
    note: Note = silent,
) -> CastReport:
    """Write the ONNX file `source` to `out` with its nodes in 16 bits, but for those that must stay FP32.

    The options are those of `trtopt.cast`. Without `data`, a model with operators that ONNX Runtime lacks
    need not run. Nodes that are 16-bit already are decided again. `accept` gets the report before anything is
    written, `note` the size of temporary files.
    """
    began = time.perf_counter()
    original = _loaded(source, out, target, threshold, note)
    limit = largest(LOW[precision]) if data is None and threshold is None else threshold
    cast_options = CastOptions(precision, target, limit, tuple(keep), tuple(keep_op), tuple(include))
    with scratch_beside(out) as spool, _data_remedy(data):
        model = replace(original, proto=prepare.prepare(original.proto)[0], spool=spool)
        if opset_of(model.proto) < _OLDEST_CAST:
            raise ModelError(
                f"opset {opset_of(model.proto)}: its Cast is written in another way",
                "export the model again with opset 13 or newer",
            )
        wide = _wide(model)
        check_patterns(wide.proto, keep, keep_op, include)  # before the model runs, which may take long
        seen = _seen(model, wide, original.proto, data, spool, compare=compare)

        def cast(options: CastOptions, folder: Path) -> _Cast:
            spooling = replace(wide, spool=folder)
            result, decision = cast_graph(spooling, seen.ranges, options, cast_io=cast_io)
            return _Cast(result, decision, _compared(seen, result) if compare else ())

        made = cast(cast_options, spool)
        check_worthwhile(wide, made.decision, precision)
        notes = [*seen.notes, *_notes(made.decision, was_low=wide is not model)]
        costs = _costs(wide.proto, cast_options, made.decision)
        if data is not None and costs and accuracy_alarms(made.differences) and made.used > ALLOWED:
            note(f"the outputs are too inaccurate: searching what to keep in FP32, in at most {_RUNS} runs")
            found = _search(costs, cast_options, made, cast, spool)
            notes.append(_search_note(found, made.differences))
            if found.best is not None:
                made = cast(replace(cast_options, accurate=found.best.kept), spool)
        report = CastReport(
            source=str(source),
            out=str(out),
            precision=precision,
            target=target,
            opset=opset_of(model.proto),
            lowered=tuple(made.decision.places),
            kept=made.decision.kept,
            untouched=made.decision.untouched,
            casts=_casts(made.model) - _casts(model),
            vanishing=_vanishing(made.decision),
            data=seen.data,
            data_is_random=data is None,
            samples=seen.samples,
            differences=made.differences,
            notes=tuple(notes),
            alarms=(*weight_alarms(original), *accuracy_alarms(made.differences)),
            seconds=0.0,
        )
        accept(report)
        model_file.save(made.model, out)
    return msgspec.structs.replace(report, seconds=time.perf_counter() - began)


def cast_graph(
    model: ModelFile, ranges: Mapping[str, float], cast_options: CastOptions, *, cast_io: bool = False
) -> tuple[ModelFile, Decision]:
    """Cast a prepared model in memory; its spool takes large weights. `ranges`: the largest |x| by tensor."""
    check_patterns(model.proto, cast_options.keep, cast_options.keep_op, cast_options.include)
    types = types_of(model.proto)
    decision = CastDecider(model, types, ranges, cast_options, cast_io=cast_io).decide()
    result = convert(model, types, decision.places, cast_options.low, cast_io=cast_io)
    check(result.proto)
    return result, decision


@dataclass(frozen=True)
class _Cast:
    """A model with some nodes in 16 bits, how that was decided, and how far its outputs lie from before."""

    model: ModelFile
    decision: Decision
    differences: tuple[OutputDifference, ...]

    @property
    def used(self) -> float:
        """What the outputs that alarms judge use of the error that raises none; above 1 it is more."""
        return allowance_used([item for item in self.differences if not item.integer], _ACCURATE)


def _costs(proto: onnx.ModelProto, cast_options: CastOptions, decision: Decision) -> dict[str, float]:
    """The nodes in 16 bits that may be kept in FP32 instead, in the order of the graph; heavy ones cost."""
    return {
        node.name: float(node.op_type in HEAVY)
        for part in graphs_of(proto.graph)
        for node in part.node
        if node.name in decision.places and not cast_options.includes(node)
    }


def _search(
    costs: Mapping[str, float],
    cast_options: CastOptions,
    lowest: _Cast,
    cast: Callable[[CastOptions, Path], _Cast],
    spool: Path,
) -> Found:
    """The fewest nodes to keep in FP32 for the outputs to raise no alarm; `lowest` is without any.

    Nodes alone between kept ones are cast during the search, so that what they add is known.
    """
    low = frozenset(lowest.decision.places)

    def error(kept: Names) -> float:
        if not kept:
            return lowest.used
        with TemporaryDirectory(dir=spool) as folder:  # its weights live as long as it does
            return cast(replace(cast_options, only=low - kept), Path(folder)).used

    return search(costs, error, _RUNS)


def _search_note(found: Found, before: Sequence[OutputDifference]) -> str:
    """What was kept, and what it was kept for."""
    if found.best is None:
        return "nothing was kept in FP32 for the outputs' accuracy: not even all nodes in FP32 meet it"
    nodes, runs = counted(len(found.best.kept), "node"), counted(len(found.trials), "run")
    alarm = accuracy_alarms(before)[0]
    return f"{nodes} stay FP32 for the outputs' accuracy, found in {runs}; with them in 16 bits {alarm}"


def _loaded(source: Path, out: Path, target: str, threshold: float | None, note: Note) -> ModelFile:
    """The model, once the request is known to be sound and its result to have room."""
    target_named(target)
    if threshold is not None and not threshold > 0:
        raise UsageError(f"--threshold {threshold:g}: must be above 0", "omit it for the default")
    if out.resolve() == source.resolve():
        raise UsageError("the output would replace the model itself", "choose another place with -o")
    check_output(out, MODEL)
    model = model_file.load(source)
    check_output_room(out, of_casting(model), note)
    return model


def check_worthwhile(model: ModelFile, decision: Decision, precision: str) -> None:
    """Something heavy must have become 16-bit if only the opset stands in the way."""
    operators = {node.name: node.op_type for part in graphs_of(model.proto.graph) for node in part.node}
    if HEAVY & {operators[name] for name in decision.places}:
        return
    for kept in decision.kept:
        if kept.rule == "opset" and kept.op in HEAVY:
            raise ModelError(
                f"nothing heavy can be {precision.upper()}: {kept.reason} (node {kept.node!r})",
                "export with a newer opset (BF16 convolutions need 22), or use --precision fp16",
            )


@contextmanager
def _data_remedy(data: str | Path | None) -> Iterator[None]:
    """Where random samples make the model fail, the error suggests real ones."""
    try:
        yield
    except CannotRun as error:
        if data is not None or isinstance(error, Crashed | CannotLoad):
            raise
        raise ModelError(f"on random data, {error.problem}", "give samples that fit with --data") from None


def _vanishing(decision: Decision) -> tuple[VanishingWeight, ...]:
    return tuple(
        VanishingWeight(weight=name, values=fit.vanishing, of=fit.nonzero)
        for name, fit in decision.fits.items()
        if fit.vanishing
    )


def _notes(decision: Decision, *, was_low: bool) -> tuple[str, ...]:
    """Notes: nodes decided again; those kept FP32 only for want of values, heavy ones only for the opset."""
    notes = ["the model's 16-bit types became FP32 first: every node was decided again"] if was_low else []
    heavy = [kept for kept in decision.kept if kept.rule == "opset" and kept.op in HEAVY]
    if heavy:
        notes.append(
            f"{len(heavy)} heavy nodes stay FP32 for their opset: export with a newer one (BF16 needs 22)"
        )
    unknown = [kept for kept in decision.kept if kept.rule == "unmeasured"]
    if unknown:
        notes.append(
            f"{counted(len(unknown), 'node')} with unknown values stay FP32, such as {unknown[0].node!r} "
            f"({unknown[0].reason}): give samples that run them with --data, or name them to "
            "`trtopt cast --include`"
        )
    return tuple(notes)


@dataclass(frozen=True)
class _Seen:
    """Results of a run over the data: ranges, and the outputs that other models are compared with."""

    data: str
    samples: int
    ranges: Mapping[str, float]
    reference: Reference | None
    notes: tuple[str, ...] = ()


def _wide(model: ModelFile) -> ModelFile:
    """The prepared model itself or, if it has 16-bit types, one in FP32, whose new nodes are named too."""
    if not is_low(model.proto):
        return model
    wide = widened(model)
    name_apart(wide.proto.graph)
    return wide


def _seen(
    model: ModelFile,
    wide: ModelFile,
    original: onnx.ModelProto,
    data: str | Path | None,
    spool: Path,
    *,
    compare: bool,
) -> _Seen:
    """Run the prepared model once over `data` or, without any, over seeded inputs that `original` takes.

    Ranges are those of `wide`; where that is another model it runs too, and the first is the reference.
    Without `data`, a model with operators that ONNX Runtime lacks is decided by operators and weights only.
    """

    def on(source: SampleSource) -> _Seen:
        reference = Reference(model.proto, spool, _COMPARED)
        ranges, samples = measured(wide, source, reference if wide is model else None)
        if wide is not model and compare:
            measured(model, First(source, _COMPARED), reference)
        unscaled = range_notes(specs_of(original), source) if data is not None else ()
        return _Seen(source.name, samples, ranges, reference, unscaled)

    if data is not None:
        return on(open_data(data))
    try:
        return on_seeded(original, lambda feeds: on(source_of(feeds)))
    except OperatorMissing as error:
        note = f"operators and weights alone decided, and nothing was compared: {error.problem}"
        return _Seen("none", 0, {}, None, (note,))


def _compared(seen: _Seen, result: ModelFile) -> tuple[OutputDifference, ...]:
    return () if seen.reference is None else compared(seen.reference.pairs(), result)


def measured(
    model: ModelFile, samples: SampleSource, reference: Reference | None = None
) -> tuple[dict[str, float], int]:
    """The largest finite |x| of every FP32 tensor, and over how many samples; `reference` keeps its share.

    Tensors of subgraphs are in it if a sample ran them.
    """
    with passing(model) as spooling:
        return _measured(model, with_weights_dequantised(spooling), samples, reference)


def _measured(
    model: ModelFile, folded: ModelFile, samples: SampleSource, reference: Reference | None
) -> tuple[dict[str, float], int]:
    """As `measured`; `folded` is the model with constants in place of its weights' Q/DQ."""
    peaks = dict.fromkeys(float_tensors(folded), 0.0)
    inner: dict[str, float] = {}
    watched = with_subgraph_peaks(folded)

    def visit(name: str, values: NDArray[Any], first: int) -> None:
        if reference is not None:
            reference.visit(name, values, first)
        if name in peaks:
            peaks[name] = max(peaks[name], _peak(values))
        if name in watched.tensors:
            for tensor, peak in zip(watched.tensors[name], values, strict=True):
                if peak != NOT_RUN:
                    inner[tensor] = max(inner.get(tensor, 0.0), float(peak))

    names = {*peaks, *watched.tensors, *(reference.names if reference is not None else ())}
    seen = observe(in_fp32(watched.model), samples, names, visit, at_once=_AT_ONCE)
    weights = set(float_tensors(model)) - peaks.keys()
    constants = {item.name: item for item in folded.proto.graph.initializer}
    of_weights = {name: _peak(array_of(constants[name], folded.folder)) for name in weights}
    return peaks | inner | of_weights, seen.samples


def _peak(values: NDArray[np.float32]) -> float:
    high, low = float(values.max(initial=0.0)), float(values.min(initial=0.0))
    if not np.isfinite(high - low):  # masks may be infinite on purpose
        finite = values[np.isfinite(values)]
        high, low = float(finite.max(initial=0.0)), float(finite.min(initial=0.0))
    return max(high, -low)


def _casts(model: ModelFile) -> int:
    return sum(node.op_type == "Cast" for part in graphs_of(model.proto.graph) for node in part.node)
