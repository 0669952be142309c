"""Calibration: one pass over the data, and the choice of a method by error on held-back samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import onnx
from numpy.typing import NDArray

from trtopt.data import SampleSource
from trtopt.data.reader import Arrays
from trtopt.device.reference import Unoptimised
from trtopt.onnxmodel.feeds import specs_of
from trtopt.onnxmodel.model_file import ModelFile
from trtopt.precision.calibration.choose import score
from trtopt.precision.calibration.collect import Ranges
from trtopt.precision.calibration.held_back import EVERY, Part
from trtopt.precision.calibration.methods import METHODS
from trtopt.precision.calibration.table import AUTO, MAX, by_group, chosen, ranges
from trtopt.precision.emission.form import Form
from trtopt.precision.emission.write import Scales, write
from trtopt.precision.folding import with_weights_dequantised
from trtopt.precision.observe import observe
from trtopt.precision.placement.plan import Plan
from trtopt.precision.runs import at_most
from trtopt.precision.stages import open_proto
from trtopt.records.quantisation import CalibrationTable, MethodScore

_HELD_SAMPLES = 32
_AT_ONCE = 8


@dataclass(frozen=True)
class Calibrated:
    """A table, and how many of its samples were held back to choose the method."""

    table: CalibrationTable
    held: int


def calibrate(
    model: ModelFile,
    plan: Plan,
    source: SampleSource,
    *,
    method: str,
    form: Form,
    given: Scales,
    model_sha256: str,
    random_data: bool,
) -> Calibrated:
    """The ranges of the plan's tensors over the data, by `method` (`auto`: the best on held-back samples).

    `given` are scales that the model brought along: they take part in judging methods.

    Raises:
        DataError: the data does not fit, or a tensor becomes NaN or infinite.
        ModelError: ONNX Runtime cannot run the model.
    """
    automatic = method == AUTO and bool(plan.tensors)
    part = Part(source, held=False, every=EVERY if automatic else 0)
    tensors = [name for name in plan.tensors if name not in given.tensors]
    seen = Ranges(tensors)
    samples = observe(model, part, tensors, seen.visit).samples
    amax = ranges(seen.seen)
    scores: tuple[MethodScore, ...] = ()
    held = 0
    if automatic:
        scores, held = _judge(model, plan, amax, source, form, given)
    best = scores[0].method if scores else MAX if method == AUTO else method
    table = CalibrationTable(
        model_sha256=model_sha256,
        data_sha256=part.sha256,
        random_data=random_data,
        samples=samples + held,
        method=best,
        scores=scores,
        tensors=chosen(amax, best),
    )
    return Calibrated(table, held)


def _judge(
    model: ModelFile,
    plan: Plan,
    amax: Mapping[str, Mapping[str, float]],
    source: SampleSource,
    form: Form,
    given: Scales,
) -> tuple[tuple[MethodScore, ...], int]:
    """Every method's score; and how many samples were held back, 0 if there were too few to hold any."""
    specs = specs_of(model.proto)
    held = list(at_most(Part(source, held=True).batches(specs, _AT_ONCE), _HELD_SAMPLES))
    feeds = held or [next(source.batches(specs, _AT_ONCE))]
    reference = open_proto(model, model.proto)
    quantised, names = _with_open_scales(model, plan, form, given)
    columns = {
        method: by_group({name: row[method] for name, row in amax.items()}, plan.groups) for method in METHODS
    }

    def run(method: str, feed: Mapping[str, NDArray[Any]]) -> Arrays:
        scales = {names[name]: form.scale(value) for name, value in columns[method].items()}
        return quantised.run({**feed, **scales})

    scores = score(tuple(METHODS), ((feed, reference.run(feed)) for feed in feeds), run)
    return scores, sum(_samples_in(feed) for feed in held)


def copied(model: ModelFile) -> ModelFile:
    """A copy to write into; large weights are shared."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    return replace(model, proto=proto)


def _with_open_scales(
    model: ModelFile, plan: Plan, form: Form, given: Scales
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


def _samples_in(feed: Arrays) -> int:
    return max((len(array) for array in feed.values() if array.ndim), default=1)
