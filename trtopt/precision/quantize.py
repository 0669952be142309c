"""A float model with Q/DQ in it: placed, calibrated, written. Files are read and written in workflows/."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec
import onnx

from trtopt.data import SampleSource
from trtopt.data.feeds import specs_of
from trtopt.data.fit import samples_in
from trtopt.errors import ModelError, UsageError
from trtopt.onnxio.graph_walk import graphs_of, opset_of, subgraphs_of
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.newer_opset import raise_opset
from trtopt.onnxio.shape_inference import LOW
from trtopt.precision.calibrate import (
    QuantizationJob,
    by_group,
    calibrate,
    check_complete,
    copy_model,
    with_method,
)
from trtopt.precision.casting.convert import cast_graph, common_reasons
from trtopt.precision.casting.decide import HEAVY, CastOptions
from trtopt.precision.casting.rules import gelus_between_products, largest, rest_between_quantized
from trtopt.precision.compare import First, compare_outputs, decibels, open_model
from trtopt.precision.existing_qdq import Existing, complete, take_out
from trtopt.precision.observe import measure_peaks
from trtopt.precision.placement.draft import Plan, View
from trtopt.precision.placement.forms import PLAIN, Forms
from trtopt.precision.placement.place import place
from trtopt.precision.qdq import QdqFormat, Scales, write
from trtopt.precision.ranges import AUTO, MAX, METHODS
from trtopt.precision.rounding import MOST_CHANNELS, WeightScales, round_by_data
from trtopt.precision.smoothing import Factors, smooth_by_data, smooth_by_table
from trtopt.records.precision import CalibrationTable, KeptNode, OutputDifference
from trtopt.targets import INTEGER_ARITHMETIC, target_named


def fit_opset(model: onnx.ModelProto, form: QdqFormat) -> None:
    """Raise the model, in place, to an opset that has the form's operators and that the target reads."""
    now = opset_of(model)
    if now > form.most:
        raise ModelError(
            f"the model's opset {now} is newer than the target reads (up to {form.most})",
            f"export the model again at opset {form.most} or lower",
        )
    raise_opset(model, form.opset)


FEW_SAMPLES = 32
"""Fewer calibration samples than this are worth a warning."""
_CHECKED_SAMPLES = 8
_CAST_SAMPLES = 64
"""To decide what stays FP32, with a margin of four below the type's largest: every sample runs through
all Q/DQ of the graph, half a second of ResNet-50's."""


@dataclass
class QuantizedModel:
    """The model with Q/DQ, where they are and where their scales come from."""

    model: ModelFile
    plan: Plan
    table: CalibrationTable | None
    fp32: tuple[KeptNode, ...] = ()
    notes: list[str] = field(default_factory=list)


def quantize_graph(file: ModelFile, job: QuantizationJob) -> QuantizedModel:
    """Place, calibrate and write Q/DQ into a copy of `file`."""
    made = write_pairs(file, job)
    if not made.plan.weights and not made.plan.edges:
        raise _nothing_quantized(file, made.plan)
    return made


def _nothing_quantized(file: ModelFile, plan: Plan) -> UsageError:
    """Why no Q/DQ is placed, and what can be done."""
    start, nodes = "no node is to be quantised: ", file.proto.graph.node
    if heavy := [item for item in plan.decisions if item.op in HEAVY]:
        remedy = "`trtopt quantize --include` overrules some rules, another --precision others"
        return UsageError(f"{start}{common_reasons(heavy)}", remedy)
    if integers := sorted({node.op_type for node in nodes} & INTEGER_ARITHMETIC):
        return UsageError(
            f"{start}the model has {', '.join(integers)}, integer operators that TensorRT does not take",
            "quantise the float model that it was made from",
        )
    for node in nodes:
        inner = [item for sub in subgraphs_of(node) for part in graphs_of(sub) for item in part.node]
        if any(item.op_type in HEAVY for item in inner):
            return UsageError(
                f"{start}layers with weights are inside {node.op_type} {node.name!r}, and only the main "
                "graph is quantised",
                f"export the model without {node.op_type}: one model for each case",
            )
    return UsageError(f"{start}the model has no layers with weights", "build it in FP16: trtopt cast")


def write_pairs(file: ModelFile, job: QuantizationJob) -> QuantizedModel:
    """As `quantize_graph`, also where the request leaves nothing to be quantised: then without any Q/DQ."""
    model = copy_model(file)
    existing = take_out(model)
    _check_existing(existing, job)
    fit_opset(model.proto, job.qdq)
    factors, notes = _smooth(model, job) if not existing else ({}, [])
    view = View(model.proto)
    plan, given, added = complete(view, job, existing) if existing else (place(view, job), Scales({}), [])
    notes += added
    table = _make_table(model, plan, job, given)
    rows = {**(given.tensors), **({n: r.chosen for n, r in table.tensors.items()} if table else {})}
    scales = replace(given, tensors={**by_group(rows, plan.groups), **plan.fixed})
    if table:
        table = msgspec.structs.replace(table, smoothed=factors)
        notes += [*_notes_on(table, plan, scales, job), *_notes_on_tiny(plan, scales, job.qdq)]
    if not existing:
        found, added = _round_weights(model, plan, job)
        scales, notes = replace(scales, weights=found), notes + added
    write(model, plan, scales, job.qdq)
    return QuantizedModel(model, plan, table, notes=notes)


def _check_existing(existing: Existing, job: QuantizationJob) -> None:
    """Refuse what makes no sense with a model that is quantised already."""
    has, wanted = str(existing.precision).upper(), job.precision.upper()
    if existing and has != wanted:
        raise UsageError(
            f"the model carries {has} Q/DQ already, and {wanted} is requested",
            f"give --precision {has.lower()} to keep and complete them, or quantise the float model",
        )


def _smooth(model: ModelFile, job: QuantizationJob) -> tuple[dict[str, Factors], list[str]]:
    """What channels are divided by, by tensor, done in place; and what to say of it."""
    if job.table is not None:
        smooth_by_table(model, job.table.smoothed, job.table_name)
        return job.table.smoothed, []
    is_off = job.forms.smoothing == "off" or job.precision != "int8"
    return ({}, []) if is_off or job.source is None else smooth_by_data(model, job.source, job)


def _make_table(model: ModelFile, plan: Plan, job: QuantizationJob, given: Scales) -> CalibrationTable | None:
    """The user's table, or a new one; None if no tensor needs a range.

    What the user's table lacks is added to it where there are samples as well.
    """
    needed = [name for name in plan.tensors if name not in given.tensors]
    if not needed:
        return None
    is_fp8 = job.precision == "fp8"
    if job.table is None:
        return calibrate(model, plan, job, given, job.method or (MAX if is_fp8 else AUTO))
    is_other = is_fp8 and job.table.method != MAX
    table = with_method(job.table, job.method or (MAX if is_other else None))
    if is_fp8:
        table = msgspec.structs.replace(table, scores=())  # they are those of INT8 graphs
    rows = dict(table.tensors)
    if job.source is not None and not rows.keys() >= set(needed):
        known = replace(given, tensors={**given.tensors, **{n: row.chosen for n, row in rows.items()}})
        method = table.method if table.method in METHODS else MAX  # a person may have edited it
        rows |= calibrate(model, plan, job, known, method).tensors
    table = msgspec.structs.replace(table, tensors=rows)
    check_complete(table, needed, job.table_name)
    return msgspec.structs.replace(table, tensors={name: rows[name] for name in needed})


def _round_weights(model: ModelFile, plan: Plan, job: QuantizationJob) -> tuple[WeightScales, list[str]]:
    """INT4 weights moved to their grids in place where there is real data; their scales, and what to say."""
    if job.precision != "int4":
        return {}, []
    if job.source is None or job.random_data or job.table is not None:
        return {}, ["weights are rounded to nearest; with --data DATA, and no --table, the error is smaller"]
    found = round_by_data(model, plan, job.source, job.qdq)
    notes = []
    if found.scales:
        notes.append(
            f"{len(found.scales)} weights are rounded to minimise the error of their layers (GPTQ), "
            f"on {found.samples} samples"
        )
    if found.left:
        notes.append(
            f"{found.left} weights are rounded to nearest: they have more than {MOST_CHANNELS} input "
            "channels, a Transpose in front, or an input whose squares exceed FP32"
        )
    return found.scales, notes


def _notes_on(table: CalibrationTable, plan: Plan, scales: Scales, job: QuantizationJob) -> list[str]:
    notes = []
    if table.random_data:
        notes.append("calibrated on random data: the scales fit no real input; do not deploy this")
    elif table.samples < FEW_SAMPLES:
        notes.append(f"calibrated on {table.samples} samples only; {FEW_SAMPLES} or more are better")
    if job.table is not None and table.model_sha256 != job.model_sha256:
        notes.append(f"{job.table_name} was made for another file: its ranges are used unchanged")
    edited = [name for name, row in table.tensors.items() if row.amax.get(table.method) != row.chosen]
    if edited:
        notes.append(
            f"{len(edited)} ranges are not what {table.method} gives, such as {edited[0]!r}'s: edited"
        )
    idle = [name for name in plan.tensors if scales.tensors.get(name) == 0.0]
    if idle:
        notes.append(
            f"{len(idle)} tensors are all zero in the data, such as {idle[0]!r}: their scale is a guess"
        )
    return notes


def _notes_on_tiny(plan: Plan, scales: Scales, form: QdqFormat) -> list[str]:
    """What to say of tensors whose scales FP16 cannot hold, so that they become its smallest number."""
    ranges = {name: scales.tensors.get(name, 0.0) for name in plan.tensors}
    tiny = [name for name, amax in ranges.items() if amax and form.is_beneath(amax)]
    if not tiny:
        return []
    return [
        f"{len(tiny)} tensors are so small that FP16 does not hold their scales, such as {tiny[0]!r} "
        f"({ranges[tiny[0]]:.2g}): they lose their small values, or all; keep their readers with --exclude"
    ]


def peaks_for_rest(model: ModelFile, samples: SampleSource) -> dict[str, float]:
    """The largest |x| by tensor over the first samples, for `make_rest_half`."""
    return measure_peaks(model, First(samples, _CAST_SAMPLES))[0]


def half_nodes(model: onnx.ModelProto, forms: Forms) -> frozenset[str]:
    """The nodes that the form wants in FP16 between casts, where scales are FP32."""
    graph = model.graph
    constants = {item.name for item in graph.initializer}
    if forms.rest == "half":
        return frozenset(rest_between_quantized(graph.node))
    if forms.gelu == "half":
        names = {node.name for node in graph.node}
        return frozenset(gelus_between_products(graph.node, names, constants))
    return frozenset()


def make_rest_half(
    made: QuantizedModel, target: str, ranges: Mapping[str, float], forms: Forms = PLAIN, *, is_real: bool
) -> None:
    """Cast to FP16, in place, what is not quantised, as a strongly typed TensorRT needs it; scales too.

    Where scales are FP32: what the form wants. `ranges` are the largest |x| by tensor, `is_real`: real.
    """
    limit = None if is_real else largest(LOW["fp16"])
    only = None if target_named(target).half_scales else half_nodes(made.model.proto, forms)
    made.model, decision = cast_graph(made.model, ranges, CastOptions("fp16", target, limit, only=only))
    made.fp32 = tuple(item for item in decision.kept if only is None and item.rule != "operator")


def output_error(
    original: ModelFile, found: ModelFile, source: SampleSource
) -> tuple[dict[str, float], tuple[OutputDifference, ...], int]:
    """SQNR in dB of each output of numbers of `found` against `original`, and all that differs.

    The third is over how many samples: the first of `source`.
    """
    specs, before = specs_of(original.proto), open_model(original)
    feeds = list(First(source, _CHECKED_SAMPLES).batches(specs, _CHECKED_SAMPLES))
    outputs = compare_outputs(((feed, before.run(feed)) for feed in feeds), found)
    ratios = {item.output: round(decibels(item), 2) for item in outputs if not item.integer and item.values}
    return ratios, outputs, sum(samples_in(feed, specs) for feed in feeds)
