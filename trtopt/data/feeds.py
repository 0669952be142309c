"""Inputs for a model: the user's, or seeded values that fit the graph at two sizes of every dynamic axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import onnx

from trtopt.data import SampleSource, open_data
from trtopt.data.random_inputs import integer_range, is_state, lengths_of
from trtopt.data.readers import HeldReader
from trtopt.device.ort.reference import Unoptimised
from trtopt.errors import ModelError
from trtopt.onnxio.graph_walk import attribute, real_inputs
from trtopt.onnxio.model_file import ModelFile, runnable
from trtopt.onnxio.model_info import tensor_spec
from trtopt.records import Shape, TensorSpec

_PASSES_ON = ("Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Transpose", "Slice")
Lengths = Literal["usual", "short", "long"]
_SIZES: dict[Lengths, tuple[tuple[int, int, int], ...]] = {
    "usual": ((1, 16, 64), (3, 24, 96)),
    "short": ((1, 4, 32), (3, 7, 48)),
    "long": ((1, 512, 256), (3, 640, 320)),
}
"""Batch, other axes, spatial axes of an image: once small, once larger and odd in batch.

Some models know no axes as long as the usual ones; others, such as those of audio, need a whole window.
"""
_MOST_VALUES = 1 << 28
"""What one random input may hold: 2 GiB while it is drawn."""
_SAMPLES = 8
"""How many of the user's samples take part."""

Alike = Literal["", "batch", "all"]
"""Which axes without a name get the same length as others in their place: none, the first ones, or all."""

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Feed:
    """One set of inputs, what to call it, and which axes without a name are as long as others."""

    name: str
    values: dict[str, np.ndarray[Any, Any]]
    alike: Alike = ""


def _integers_for(graph: onnx.GraphProto, name: str, dtype: np.dtype[Any]) -> tuple[int, int]:
    """Where an input's integers start and end: within the rows of the tables that it indexes, if any."""
    tables = {item.name: list(item.dims) for item in graph.initializer}
    reached, bound = {name}, None
    for node in graph.node:
        if node.op_type in _PASSES_ON and node.input and node.input[0] in reached:
            reached |= set(node.output)
        if (
            node.op_type == "Gather"
            and len(node.input) > 1
            and node.input[1] in reached
            and node.input[0] in tables
        ):
            bound = max(bound or 2, int(tables[node.input[0]][attribute(node, "axis", 0)]))
    return integer_range(dtype) if bound is None else (0, bound)


def _shapes(model: onnx.ModelProto, sizes: tuple[int, int, int], alike: Alike) -> list[list[int]]:
    """A length for each axis of each input: the fixed one, its name's, or what suits its place.

    Axes without a name differ in length, but for those that are `alike`.
    """
    wanted = inputs_of(model)
    shapes = [tensor_spec(item).shape for item in wanted]
    batch_axes = [1 if is_state(shape) else 0 for shape in shapes]

    def suited(index: int, place: int) -> int:
        if place == batch_axes[index]:
            return sizes[0]
        return sizes[2 if place >= 2 and len(shapes[index]) >= 4 else 1]

    named = lengths_of(
        (axis, suited(index, place))
        for index, shape in enumerate(shapes)
        for place, axis in enumerate(shape)
        if isinstance(axis, str) and axis != "?"
    )
    taken = set(named.values())

    def length_of(index: int, place: int) -> int:
        axis = shapes[index][place]
        if axis != "?":
            return axis if isinstance(axis, int) else named[axis]
        declared = wanted[index].type.tensor_type.shape.dim[place]
        if declared.HasField("dim_value") and not declared.dim_value:
            return 0  # an empty input
        length, is_batch = suited(index, place), place == batch_axes[index]
        if alike == "all" or (alike == "batch" and is_batch):
            return length
        step = 1 if is_batch else length // 2
        while length in taken:
            length += step
        taken.add(length)
        return length

    return [[length_of(index, place) for place in range(len(shape))] for index, shape in enumerate(shapes)]


def inputs_of(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The inputs that a caller must give: those without a default."""
    wanted = real_inputs(model.graph)
    for item in wanted:
        if not item.type.HasField("tensor_type"):
            kind = str(item.type.WhichOneof("value")).removesuffix("_type")
            raise ModelError(
                f"input {item.name!r} is no tensor but a {kind}", "skip the check with --no-check"
            )
        if item.type.tensor_type.elem_type not in onnx.helper.get_all_tensor_dtypes():
            raise ModelError(
                f"input {item.name!r} has the element type {item.type.tensor_type.elem_type}, which onnx "
                f"{onnx.__version__} does not know",
                "export the model again",
            )
    return wanted


def seeded(
    model: onnx.ModelProto, seed: int = 0, *, lengths: Lengths = "usual", alike: Alike = "batch"
) -> tuple[Feed, ...]:
    """Random inputs, the same for the same model and seed; one feed if no axis is dynamic, else two.

    `lengths` are those of dynamic axes. Axes without a name differ in length, but for those that are `alike`.
    """
    feeds = []
    shapes = set()
    for label, sizes in zip(("small", "large"), _SIZES[lengths], strict=True):
        rng = np.random.default_rng(seed)
        values = {}
        for item, shape in zip(inputs_of(model), _shapes(model, sizes, alike), strict=True):
            if math.prod(shape) > _MOST_VALUES:
                raise ModelError(
                    f"input {item.name!r} of shape {shape} is too large to be drawn at random",
                    "correct the shape in the model, or give data of your own",
                )
            dtype = onnx.helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type)
            if dtype == np.bool_:
                drawn: Any = rng.random(shape) < 0.5
            elif np.dtype(dtype).kind in "iu":
                drawn = rng.integers(*_integers_for(model.graph, item.name, np.dtype(dtype)), shape)
            else:
                drawn = rng.standard_normal(shape)
            values[item.name] = np.asarray(drawn).astype(dtype)
        key = tuple((name, value.shape) for name, value in values.items())
        if key not in shapes:
            shapes.add(key)
            shown = ", ".join("x".join(map(str, value.shape)) or "scalar" for value in values.values())
            feeds.append(Feed(f"seed {seed}, {label} ({shown})", values, alike))
    return tuple(feeds)


def specs_of(model: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """The inputs that a caller must give, as records."""
    return tuple(map(tensor_spec, inputs_of(model)))


def from_data(data: str | Path, model: onnx.ModelProto) -> Feed:
    """The first of the user's own samples, for what `trtopt.data.open_data` takes."""
    source = open_data(data)
    return Feed(source.name, next(source.batches(specs_of(model), _SAMPLES)))


def on_seeded(
    model: onnx.ModelProto,
    run: Callable[[tuple[Feed, ...]], _Result],
    *,
    one_batch: bool = True,
    spared: bool = False,
) -> _Result:
    """The result of `run` on seeded inputs of the usual lengths or, where it fails on those, of others.

    Some models have a longest or a shortest length, and some need axes of equal length: an axis's name shows
    none of that. With `one_batch` first axes without a name are so from the start. With `spared` `run` has
    data of its own, and is given no seeded inputs at last.
    """
    usual, *others = _choices(model, one_batch)
    try:
        return run(seeded(model, lengths=usual[0], alike=usual[1]))
    except ModelError:
        for lengths, alike in others:
            with suppress(ModelError):
                return run(seeded(model, lengths=lengths, alike=alike))
        if spared:
            return run(())
        raise


def _choices(model: onnx.ModelProto, one_batch: bool = True) -> list[tuple[Lengths, Alike]]:
    """Which lengths of seeded inputs there are to choose from: the usual ones first, no two the same."""
    kinds: tuple[Alike, ...] = ("batch", "all") if one_batch else ("", "batch", "all")
    found: dict[str, tuple[Lengths, Alike]] = {}
    for lengths, both in _SIZES.items():
        for alike in kinds:
            shapes = [_shapes(model, sizes, alike) for sizes in both]
            found.setdefault(str(shapes), (lengths, alike))
    return list(found.values())


def seeded_source(model: ModelFile) -> SampleSource:
    """Seeded random samples in place of DATA, as a source. Where axes leave a choice the model runs once."""

    def tried(feeds: tuple[Feed, ...]) -> tuple[Feed, ...]:
        Unoptimised(*runnable(model)).run(feeds[-1].values)
        return feeds

    is_only_choice = len(_choices(model.proto)) == 1
    return source_of(seeded(model.proto) if is_only_choice else on_seeded(model.proto, tried))


def source_of(feeds: tuple[Feed, ...]) -> SampleSource:
    """Seeded feeds as a source."""
    return SampleSource("random data", [HeldReader([feed.values for feed in feeds])])


_EXTREMES = ("normal", "large", "small", "zeros", "denormal", "one-hot", "ends")


def extremes(model: onnx.ModelProto, shapes: Mapping[str, Shape]) -> tuple[Feed, ...]:
    """Seeded inputs of these shapes, where kernels go wrong first; none twice.

    Floats from a normal distribution, 100 times as large, a thousandth, zeros, below the smallest normal
    number, and a single one in each sample; integers over their range, zeros, and its ends.
    """
    feeds: dict[tuple[bytes, ...], Feed] = {}
    for what in _EXTREMES:
        values = {one.name: _extreme(what, model.graph, one, shapes[one.name]) for one in inputs_of(model)}
        feeds.setdefault(tuple(array.tobytes() for array in values.values()), Feed(what, values))
    return tuple(feeds.values())


def _extreme(
    what: str, graph: onnx.GraphProto, item: onnx.ValueInfoProto, shape: Shape
) -> np.ndarray[Any, Any]:
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type))
    rng = np.random.default_rng(0)
    drawn: np.ndarray[Any, Any] = np.zeros(shape)
    if what == "one-hot":
        size = max(math.prod(shape[1:]), 1)
        rows = np.arange(drawn.size // size)
        drawn.flat[rows * size + rows * 7919 % size] = 1  # a prime: unlike places
    elif dtype.kind in "iub" and what != "zeros":
        low, high = _integers_for(graph, item.name, dtype)
        drawn = rng.choice([low, high - 1], shape) if what == "ends" else rng.integers(low, high, shape)
    elif what == "denormal":
        drawn = rng.choice([-1, 1], shape) * (2.0**-16 if dtype == np.float16 else 2.0**-128)
    elif what != "zeros":
        drawn = rng.standard_normal(shape) * {"large": 100, "small": 1e-3}.get(what, 1)
    return np.asarray(drawn).astype(dtype)
