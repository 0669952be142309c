"""A model cast from file to file: measure, decide, convert, compare, write."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import onnx

from trtopt.data import SampleSource, open_data
from trtopt.data.feeds import on_seeded, source_of, specs_of
from trtopt.data.source import range_notes
from trtopt.device.ort.reference import CannotLoad, CannotRun, Crashed, OperatorMissing
from trtopt.errors import ModelError, UsageError
from trtopt.files.atomic import scratch_beside
from trtopt.onnxio import model_file
from trtopt.onnxio.disk_space import check_output_room
from trtopt.onnxio.graph_walk import graphs_of, name_apart, opset_of
from trtopt.onnxio.half_emulation import is_low, widened
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.newer_opset import raise_opset
from trtopt.onnxio.prepare import prepare
from trtopt.onnxio.shape_inference import LOW
from trtopt.onnxio.weights import weight_alarms
from trtopt.precision.bounds import ACCURATE, accuracy_alarms, allowance_used
from trtopt.precision.casting.convert import cast_graph, check_worthwhile, common_reasons
from trtopt.precision.casting.decide import HEAVY, CastDecision, CastOptions
from trtopt.precision.casting.rules import largest
from trtopt.precision.compare import First, compare_outputs
from trtopt.precision.observe import Reference, measure_peaks
from trtopt.precision.running import casting_bytes, with_weights_dequantized
from trtopt.precision.search import ALLOWED, Found, Names, search
from trtopt.printable import counted
from trtopt.records.precision import CastReport, OutputDifference, VanishingWeight
from trtopt.requests.models import CastRequest

_COMPARED = 64
"""How many samples the original and the result are compared on."""
_RUNS = 40
"""The most runs over the compared samples to find which."""
_OLDEST_CAST = 6
UNVERIFIED = "trtopt.unverified"
"""Metadata of this key marks a file that was not compared with what it was made of."""


def cast(
    request: CastRequest,
    accept: Callable[[CastReport], object] = lambda report: None,  # before anything is written
) -> CastReport:
    """Write an ONNX file with its nodes in 16 bits where that is safe.

    A node stays FP32 where its operator must, where `exclude` names it, where its weight would
    overflow or vanish, where `data` takes a tensor beyond `threshold`, and where an output on `data` would be
    below 20 dB or a cosine of 0.99: what to keep for that is searched in at most 40 runs.

    Returns:
        The nodes that became 16-bit, those that stayed and why, and the differences of the outputs.

    Example:
        >>> report = trtopt.cast("model.onnx", "fp16.onnx", data="data.npz")
        >>> len(report.lowered) > 0
        True
    """
    began = time.perf_counter()
    source, out, data = Path(request.model), Path(request.output), request.data
    original = _load(request, source, out)
    is_measured = data is not None or request.threshold is not None
    cast_options = CastOptions(
        request.precision,
        request.target,
        request.threshold if is_measured else largest(LOW[request.precision]),
        tuple(request.exclude),
        tuple(request.include),
        cast_io=request.cast_io,
    )
    with scratch_beside(out) as spool, _data_remedy(data):
        model = replace(prepare(original), spool=spool)
        if opset_of(model.proto) < _OLDEST_CAST:
            raise ModelError(
                f"opset {opset_of(model.proto)}: its Cast is written in another way",
                "export the model again with opset 13 or newer",
            )
        wide = with_weights_dequantized(model) if request.dequantize else model
        if is_low(wide.proto):
            wide = widened(wide)
            name_apart(wide.proto.graph)
        if request.opset is not None and request.opset > opset_of(wide.proto):
            wide = replace(wide, proto=deepcopy(wide.proto))  # the original is what the result is held to
            raise_opset(wide.proto, request.opset)
        # before the model runs, which may take long
        cast_options.check(wide.proto)
        seen = (
            _observe(model, wide, original.proto, data, spool, compare=request.compare)
            if request.run
            else _Seen()
        )

        def try_options(options: CastOptions, folder: Path) -> _Cast:
            spooling = replace(wide, spool=folder)
            result, decision = cast_graph(spooling, seen.ranges, options)
            if seen.reference is None:
                return _Cast(result, decision, ())
            return _Cast(result, decision, compare_outputs(seen.reference.pairs(), result))

        made = try_options(cast_options, spool)
        check_worthwhile(wide, made.decision, request.precision)
        notes = [*seen.notes, *_notes(made.decision, was_low=is_low(model.proto))]
        costs = {  # of what may be kept in FP32 instead, in the order of the graph
            node.name: float(node.op_type in HEAVY)
            for part in graphs_of(wide.proto.graph)
            for node in part.node
            if node.name in made.decision.places and not cast_options.includes(node)
        }
        if data is not None and costs and accuracy_alarms(made.differences) and made.used > ALLOWED:
            request.listener.note(
                f"the outputs are too inaccurate: searching what to keep in FP32, in at most {_RUNS} runs"
            )
            lowest = made

            def error(kept: Names) -> float:
                """Nodes alone between kept ones are cast too, so that what they add is known."""
                if not kept:
                    return lowest.used
                with TemporaryDirectory(dir=spool) as folder:  # its weights live as long as it does
                    only = frozenset(lowest.decision.places) - kept
                    return try_options(replace(cast_options, only=only), Path(folder)).used

            found = search(costs, error, _RUNS)
            notes.append(_search_note(found, made.differences))
            if found.best is not None:
                made = try_options(replace(cast_options, accurate=found.best.kept), spool)
        no_node = []
        if not made.decision.places:
            reasons = common_reasons(made.decision.kept) or "no node computes in FP32"
            no_node.append(f"no node became {request.precision.upper()}: {reasons}")
        report = CastReport(
            source=str(source),
            out=str(out),
            precision=request.precision,
            target=request.target,
            opset=opset_of(made.model.proto),
            lowered=tuple(made.decision.places),
            kept=made.decision.kept,
            untouched=made.decision.untouched,
            casts=_casts(made.model) - _casts(model),
            vanishing=tuple(
                VanishingWeight(weight=name, values=fit.vanishing, of=fit.nonzero)
                for name, fit in made.decision.fits.items()
                if fit.vanishing
            ),
            data=seen.data,
            data_is_random=data is None,
            samples=seen.samples,
            differences=made.differences,
            verified=bool(made.differences),
            notes=tuple(notes),
            alarms=(
                *no_node,
                *weight_alarms(original),
                *accuracy_alarms(made.differences),
            ),
            seconds=0.0,
        )
        accept(report)
        if not report.verified and UNVERIFIED not in {one.key for one in made.model.proto.metadata_props}:
            made.model.proto.metadata_props.add(key=UNVERIFIED, value="cast without a comparison")
        model_file.save(made.model, out)
    return msgspec.structs.replace(report, seconds=time.perf_counter() - began)


@dataclass(frozen=True)
class _Cast:
    """A model with some nodes in 16 bits, how that was decided, and how far its outputs lie from before."""

    model: ModelFile
    decision: CastDecision
    differences: tuple[OutputDifference, ...]

    @property
    def used(self) -> float:
        """What the outputs that alarms judge use of the error that raises none; above 1 it is more."""
        return allowance_used([item for item in self.differences if not item.integer], ACCURATE)


def _search_note(found: Found, before: Sequence[OutputDifference]) -> str:
    """What was kept, and what it was kept for."""
    if found.best is None:
        return "nothing was kept in FP32 for the outputs' accuracy: not even all nodes in FP32 meet it"
    nodes, runs = counted(len(found.best.kept), "node"), counted(len(found.trials), "run")
    alarm = accuracy_alarms(before)[0]
    return f"{nodes} stay FP32 for the outputs' accuracy, found in {runs}; with them in 16 bits {alarm}"


def _load(request: CastRequest, source: Path, out: Path) -> ModelFile:
    """The model, once the request is known to be sound and its result to have room."""
    if request.data is not None and not request.run:
        raise UsageError("--no-run: runs no data", "omit --data, or --no-run")
    if request.threshold is not None and not request.threshold > 0:
        raise UsageError(f"--threshold {request.threshold:g}: must be above 0", "omit it for the default")
    model_file.check_changed_to(out, source)
    model = model_file.load(source)
    check_output_room(out, casting_bytes(model), request.listener.note)
    return model


@contextmanager
def _data_remedy(data: str | Path | None) -> Iterator[None]:
    """Where random samples make the model fail, the error suggests real ones."""
    try:
        yield
    except CannotRun as error:
        if data is not None or isinstance(error, Crashed | CannotLoad):
            raise
        raise ModelError(
            f"on random data, {error.problem}",
            "give samples that fit with --data, or cast without running the model, with --no-run",
        ) from None


def _notes(decision: CastDecision, *, was_low: bool) -> tuple[str, ...]:
    """Notes: nodes decided again; those kept FP32 only for want of values, heavy ones only for the opset."""
    notes = ["the model's 16-bit types became FP32 first: every node was decided again"] if was_low else []
    heavy = [kept for kept in decision.kept if kept.rule == "opset" and kept.op in HEAVY]
    if heavy:
        notes.append(
            f"{len(heavy)} heavy nodes stay FP32 for their opset: raise it by --opset (BF16: export with 22)"
        )
    unknown = [kept for kept in decision.kept if kept.rule == "unmeasured"]
    if unknown:
        notes.append(
            f"{counted(len(unknown), 'node')} with unknown values stay FP32, such as {unknown[0].node!r} "
            f"({unknown[0].reason}): name them to `trtopt cast --include`, to cast them all the same"
        )
    return tuple(notes)


@dataclass(frozen=True)
class _Seen:
    """Results of a run over the data, if there was one: ranges, and the outputs to compare with, if any."""

    data: str = "none"
    samples: int = 0
    ranges: Mapping[str, float] | None = None
    reference: Reference | None = None
    notes: tuple[str, ...] = ()


def _observe(
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
        reference = Reference(model.proto, spool, _COMPARED) if compare else None
        ranges, samples = measure_peaks(wide, source, reference if wide is model else None)
        if wide is not model and reference is not None:
            measure_peaks(model, First(source, _COMPARED), reference)
        unscaled = range_notes(specs_of(original), source) if data is not None else ()
        return _Seen(source.name, samples, ranges, reference, unscaled)

    if data is not None:
        return on(open_data(data))
    try:
        return on_seeded(original, lambda feeds: on(source_of(feeds)))
    except OperatorMissing as error:
        note = f"operators and weights alone decided, and nothing was compared: {error.problem}"
        return _Seen(notes=(note,))


def _casts(model: ModelFile) -> int:
    return sum(node.op_type == "Cast" for part in graphs_of(model.proto.graph) for node in part.node)
