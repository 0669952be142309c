"""Calibration: one pass over the data, and the choice of a method by error on held-back samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx
from numpy.typing import NDArray

from trtopt.data import SampleSource
from trtopt.data.feeds import specs_of
from trtopt.data.fit import samples_in
from trtopt.data.readers import Arrays
from trtopt.device.ort.reference import Unoptimised
from trtopt.onnxio.model_file import ModelFile, array_of
from trtopt.precision.calibration.choose import EVERY, Part, best_of, is_float, score
from trtopt.precision.calibration.collect import Ranges, check_finite
from trtopt.precision.calibration.methods import METHODS
from trtopt.precision.calibration.table import AUTO, MAX, by_group, chosen, ranges
from trtopt.precision.observe import observe
from trtopt.precision.placement.placement_plan import Plan
from trtopt.precision.qdq.qdq_format import QdqFormat
from trtopt.precision.qdq.quantised_values import check_weight
from trtopt.precision.qdq.write import Scales, write
from trtopt.precision.reference_runs import First, at_most
from trtopt.precision.stages import open_proto
from trtopt.precision.temporary_disk import passing
from trtopt.precision.weight_folding import with_weights_dequantised
from trtopt.records import TensorSpec
from trtopt.records.precision import CalibrationTable, MethodScore

_HELD_SAMPLES = 32
_AT_ONCE = 8
_OUTPUT_REMEDY = (
    "take that sample out of the data, find out why the model overflows on it, or choose a --method "
    "such as max: only auto looks at outputs"
)


def calibrate(
    model: ModelFile,
    plan: Plan,
    source: SampleSource,
    *,
    method: str,
    form: QdqFormat,
    given: Scales,
    model_sha256: str,
    random_data: bool,
) -> CalibrationTable:
    """The ranges of the plan's tensors over the data, by `method` (`auto`: the best on held-out samples).

    `given` are scales that the model brought along: the comparison of methods uses them too.
    """
    _check_weights(model, plan)
    automatic = method == AUTO and bool(plan.tensors)
    part = Part(source, held=False, every=EVERY if automatic else 0)
    tensors = [name for name in plan.tensors if name not in given.tensors]
    seen = Ranges(tensors)
    samples = observe(
        model, part, tensors, lambda name, values, _: seen.visit(name, values, part.numbers.tolist())
    ).samples
    amax = ranges(seen.seen)
    scores: tuple[MethodScore, ...] = ()
    held = 0
    if automatic:
        scores, held = _evaluate(model, plan, amax, source, form, given)
    best = best_of(scores, held, careful=MAX) if scores else MAX if method == AUTO else method
    return CalibrationTable(
        model_sha256=model_sha256,
        data_sha256=part.sha256,
        random_data=random_data,
        samples=samples + held,
        held=held,
        method=best,
        scores=scores if held else (),  # those of samples that ranges have seen would pass for others
        tensors=chosen(amax, best),
    )


def _evaluate(
    model: ModelFile,
    plan: Plan,
    amax: Mapping[str, Mapping[str, float]],
    source: SampleSource,
    form: QdqFormat,
    given: Scales,
) -> tuple[tuple[MethodScore, ...], int]:
    """Every method's score; and how many samples were held out, 0 if there were too few."""
    specs = specs_of(model.proto)
    part = Part(source, held=True)
    batches = at_most(part.batches(specs, _AT_ONCE), _HELD_SAMPLES, specs)
    held = [(part.numbers.tolist(), feed) for feed in batches]
    if held:
        observe(
            model,
            First(part, _HELD_SAMPLES),
            list(amax),
            lambda name, values, _: check_finite(name, values, part.numbers.tolist()),
        )
    feeds = held or [_first(source.batches(specs, _AT_ONCE), specs)]
    reference = open_proto(model, model.proto)
    with passing(model) as spooling:
        quantised, names = _with_open_scales(spooling, plan, form, given)
    columns = {
        method: by_group({name: row[method] for name, row in amax.items()}, plan.groups) for method in METHODS
    }

    def run(method: str, feed: Mapping[str, NDArray[Any]]) -> Arrays:
        scales = {names[name]: form.scale(value) for name, value in columns[method].items()}
        return quantised.run({**feed, **scales})

    scores = score(tuple(METHODS), _with_outputs(reference, feeds), run)
    return scores, sum(samples_in(feed, specs) for _, feed in held)


def _first(feeds: Iterator[Arrays], inputs: Sequence[TensorSpec]) -> tuple[list[int], Arrays]:
    feed = next(feeds)
    return list(range(samples_in(feed, inputs))), feed


def _with_outputs(
    reference: Unoptimised, feeds: Iterable[tuple[Sequence[int], Arrays]]
) -> Iterator[tuple[Arrays, Arrays]]:
    """Inputs with the float model's outputs, which must be finite to be a reference."""
    for numbers, feed in feeds:
        outputs = reference.run(feed)
        for name, value in outputs.items():
            if is_float(value):
                check_finite(name, value, numbers, _OUTPUT_REMEDY)
        yield feed, outputs


def _check_weights(model: ModelFile, plan: Plan) -> None:
    """Before the data runs: else what is wrong with a weight would be put down to a sample."""
    graph = model.proto.graph
    nodes = {node.name: node for node in graph.node}
    maker = {name: node for node in graph.node for name in node.output}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for place in plan.weights:
        name = nodes[place.node].input[place.index]
        while name not in constants:  # Identity and Transpose may stand in front
            name = maker[name].input[0]
        check_weight(array_of(constants[name], model.folder), name, place.node)


def copied(model: ModelFile) -> ModelFile:
    """A copy to write into; large weights are shared."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    return replace(model, proto=proto)


def _with_open_scales(
    model: ModelFile, plan: Plan, form: QdqFormat, given: Scales
) -> tuple[Unoptimised, dict[str, str]]:
    """The quantised model with the scales of calibrated tensors as inputs: one session for all methods."""
    trial = copied(model)
    calibrated = [name for name in plan.tensors if name not in given.tensors]
    tensors = {**given.tensors, **plan.fixed, **dict.fromkeys(calibrated, 1.0)}
    names = write(trial, plan, replace(given, tensors=tensors), replace(form, stored=False))
    names = {name: names[name] for name in calibrated}
    graph, opened_up = trial.proto.graph, set(names.values())
    kept = [item for item in graph.initializer if item.name not in opened_up]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    graph.input.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, []) for name in names.values()
    )
    trial = with_weights_dequantised(trial)
    return open_proto(trial, trial.proto), names
