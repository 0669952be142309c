"""The engines of a pool: what requests must look like, and which engines run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from trtopt.data.fit import instead_of_floats
from trtopt.device.api import Session
from trtopt.errors import DataError, UsageError
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.records import BuildPlan, EngineArtifact, Shape
from trtopt.records.tensors import nchw_sample
from trtopt.serving.engine_selection import EngineSelector, Offer

Key = tuple[Shape, ...]
"""The shapes of one sample, in the order of the inputs: only samples of one key can share a batch."""

_KNOWN_KEYS = 1024


@dataclass(frozen=True)
class Engine:
    """A loaded engine and what it offers: its optimisation profiles, each where it is the one to run."""

    session: Session
    artifact: EngineArtifact
    offers: tuple[Offer, ...]


class Part(msgspec.Struct, frozen=True):
    """Rows that came together: every input's tensor with the batch axis first."""

    tensors: Mapping[str, NDArray[np.generic]]
    rows: int
    key: Key


@dataclass(frozen=True)
class EngineChoice:
    """Who chooses for one key, and the index of the engine behind each of its offers."""

    engines: tuple[int, ...]
    selector: EngineSelector


class Catalogue:
    """Loaded engines with the same inputs and outputs."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = tuple(engines)
        first = self.engines[0].session
        self.inputs = first.inputs
        self._types = {spec.name: numpy_dtype(spec.dtype) for spec in self.inputs}
        plan = self.engines[0].artifact.plan
        self._vectorised = {
            name: (layout, plan.shapes[name].max[1])
            for name, layout in plan.io_layouts.items()
            if name in self._types
        }
        for engine in self.engines:
            _check(engine, self.engines[0])
        self.choice = lru_cache(_KNOWN_KEYS)(self._choice)
        self._among = lru_cache(_KNOWN_KEYS)(self._choice_among)

    def part(self, inputs: object) -> Part:
        """Rows of any number: every input as [rows, …]."""
        tensors = self._tensors(inputs)
        rows = {tensor.shape[:1] for tensor in tensors.values()}
        if len(rows) != 1 or rows <= {(), (0,)}:
            shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())
            raise DataError(
                f"the inputs do not have the same number of rows, one at least: {shapes}",
                "give every input as [rows, …]",
            )
        return self._part(tensors, rows.pop()[0])

    def sample(self, inputs: object, *, copy: bool = False) -> Part:
        """One sample, without the batch axis; with `copy` in memory of its own.

        Raises as `part` does.
        """
        return self._part(self._tensors(inputs, is_sample=True, copy=copy), 1)

    def shapes(self, key: Key, batch: int) -> dict[str, Shape]:
        """What a context is made for."""
        return {spec.name: (batch, *axes) for spec, axes in zip(self.inputs, key, strict=True)}

    def _tensors(
        self, inputs: object, *, is_sample: bool = False, copy: bool = False
    ) -> dict[str, NDArray[np.generic]]:
        names = self._types.keys()
        if not isinstance(inputs, (dict, Mapping)):  # a dict first: the abc check is slow for every request
            if len(names) != 1:
                raise DataError(
                    f"one value given, the engines have the inputs {', '.join(map(repr, names))}",
                    "give a dict with an array for each of them",
                )
            inputs = {next(iter(names)): inputs}
        if inputs.keys() != names:
            raise DataError(
                f"inputs {list(inputs)} given, the engines take {list(names)}",
                "give an array for each of them, and no other",
            )
        tensors = {}
        for name, dtype in self._types.items():
            given = inputs[name]
            if not isinstance(given, (np.ndarray, np.generic)):
                raise DataError(
                    f"input {name!r}: {type(given).__name__} is not a NumPy array",
                    "convert it, as torch's tensors with .numpy(force=True)",
                )
            tensor = np.array(given, order="C") if copy else np.asarray(given)
            tensors[name] = tensor = tensor[np.newaxis] if is_sample else tensor
            if tensor.dtype != dtype:
                raise DataError(
                    f"input {name!r}: has type {tensor.dtype}, the engines take {dtype}",
                    instead_of_floats(dtype)
                    if dtype.kind in "iu" and (tensor.dtype.kind == "f" or dtype.itemsize == 1)
                    else f"convert it, as with astype({str(dtype)!r})",
                )
        return tensors

    def _part(self, tensors: dict[str, NDArray[np.generic]], rows: int) -> Part:
        key = tuple([tensor.shape[1:] for tensor in tensors.values()])
        if self._vectorised:
            key = tuple([self._axes(name, stored) for name, stored in zip(tensors, key, strict=True)])
        self.choice(key)
        return Part(tensors, rows, key)

    def _axes(self, name: str, stored: Shape) -> Shape:
        """A sample's shape as plans have it, given the shape in the engine's format."""
        if name not in self._vectorised:
            return stored
        layout, channels = self._vectorised[name]
        sample = nchw_sample(layout, stored, channels)
        if sample is None:
            raise DataError(
                f"input {name!r}: samples of shape {list(stored)} are not in the engine's format {layout}",
                "convert them with trtopt.pack",
            )
        return sample

    def _choice(self, key: Key) -> EngineChoice:
        """The engines that admit samples of these shapes."""
        fitting = tuple(
            index
            for index, engine in enumerate(self.engines)
            if all(
                _admits(engine.artifact.plan, spec.name, axes)
                for spec, axes in zip(self.inputs, key, strict=True)
            )
        )
        if not fitting:
            given = ", ".join(
                f"{spec.name} {list(axes)}" for spec, axes in zip(self.inputs, key, strict=True)
            )
            taken = dict.fromkeys(_taken(engine.artifact.plan) for engine in self.engines)
            raise DataError(f"samples of the shape {given} fit no engine", f"they take {', or '.join(taken)}")
        return self._among(fitting)

    def _choice_among(self, engines: tuple[int, ...]) -> EngineChoice:
        offered = [(index, offer) for index in engines for offer in self.engines[index].offers]
        return EngineChoice(
            tuple(index for index, _ in offered), EngineSelector([offer for _, offer in offered])
        )


def _taken(plan: BuildPlan) -> str:
    """The shapes of a sample that an engine takes, of all its inputs."""
    spans = ((name, list(shapes.min[1:]), list(shapes.max[1:])) for name, shapes in plan.shapes.items())
    return ", ".join(
        f"{name} {low}" if low == high else f"{name} {low} to {high}" for name, low, high in spans
    )


def _admits(plan: BuildPlan, name: str, axes: Shape) -> bool:
    low, high = plan.shapes[name].min[1:], plan.shapes[name].max[1:]
    return len(axes) == len(low) and all(a <= axis <= b for a, axis, b in zip(low, axes, high, strict=True))


def _check(engine: Engine, first: Engine) -> None:
    plan, session = engine.artifact.plan, engine.session
    for ours, theirs in ((session.inputs, first.session.inputs), (session.outputs, first.session.outputs)):
        if [(spec.name, spec.dtype) for spec in ours] != [(spec.name, spec.dtype) for spec in theirs]:
            raise UsageError(
                f"{plan.label} and {first.artifact.plan.label} differ in their inputs or outputs",
                "put engines of one model into a pool",
            )
    if plan.io_layouts != first.artifact.plan.io_layouts:
        raise UsageError(
            f"{plan.label} and {first.artifact.plan.label} have other formats of inputs or outputs",
            "put engines that were built with the same --io into a pool",
        )
    batch = (plan.batch.min, plan.batch.max)
    unbatched = [name for name, one in plan.shapes.items() if (one.min[:1], one.max[:1]) != batch]
    low, high = plan.batch.min[0], plan.batch.max[0]
    for spec in session.outputs:
        axis = spec.shape[0] if spec.shape else None
        is_fixed = all(isinstance(one, int) for one in spec.shape)  # else its size may depend on data
        if is_fixed and (axis != low or axis != high):
            unbatched.append(spec.name)
    if unbatched:
        raise UsageError(
            f"{plan.label}: {', '.join(map(repr, unbatched))} has no batch axis in front",
            "requests share batches along axis 0 of every input and output: give the model such axes",
        )
