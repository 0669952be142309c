"""What a model and its engines exchange: shapes and profiles, types and layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from trtopt.records.base import Record, Shape


class TensorSpec(Record, frozen=True, kw_only=True):
    """An input or output: `dtype` is a NumPy name (`float32`, `bfloat16`, `int64`, `bool`, …)."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    @property
    def type_text(self) -> str:
        """`float32[batch, 3, 224, 224]`."""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


# ── shapes that an engine admits ────────────────────────────────────────────────────────────────────────

MAX_PROFILES = 16
"""Of one engine; each is built, and takes its share of the engine's file, by itself."""


class ShapeRange(Record, frozen=True, kw_only=True):
    """The shapes that an optimisation profile admits for one input, and the one it is tuned for."""

    min: Shape
    opt: Shape
    max: Shape

    @property
    def is_fixed(self) -> bool:
        """Whether it admits only one shape."""
        return self.min == self.max

    @property
    def fixed(self) -> tuple[int | None, ...]:
        """The lengths of the axes that have only one, None for the others."""
        return tuple(low if low == high else None for low, high in zip(self.min, self.max, strict=True))

    def admits(self, shape: Shape) -> bool:
        """Whether every axis lies within."""
        return len(shape) == len(self.min) and all(
            low <= axis <= high for low, axis, high in zip(self.min, shape, self.max, strict=True)
        )


class Profile(Record, frozen=True, kw_only=True):
    """One of several optimisation profiles: a range of batch sizes, and of every input, batch included."""

    batch: ShapeRange
    shapes: dict[str, ShapeRange]


class Span(NamedTuple):
    """Batch sizes `low` to `high` run under the profile of that index."""

    low: int
    high: int
    profile: int


def suited(profiles: Sequence[Mapping[str, ShapeRange]], shapes: Mapping[str, Shape]) -> int | None:
    """The index of the profile to run shapes under: the narrowest that admits them, of equally narrow ones
    the one tuned nearest, and of those the first; None if none admits them.

    Profiles have a range for every input; width and distance are summed over all axes.
    """
    fitting = [
        (sum(sum(one.max) - sum(one.min) for one in ranges.values()), _distance(ranges, shapes), index)
        for index, ranges in enumerate(profiles)
        if all(ranges[name].admits(shape) for name, shape in shapes.items())
    ]
    return min(fitting)[-1] if fitting else None


def _distance(ranges: Mapping[str, ShapeRange], shapes: Mapping[str, Shape]) -> int:
    return sum(
        abs(best - axis)
        for name, shape in shapes.items()
        for best, axis in zip(ranges[name].opt, shape, strict=True)
    )


def spans_of(batches: Sequence[ShapeRange]) -> tuple[Span, ...]:
    """All batch sizes that profiles admit, by ascending size, with the profile `suited` to each.

    Which one that is changes only where a range begins or ends, and, among equally narrow ones, halfway
    between the sizes that two are tuned for.
    """
    starts = {one.min[0] for one in batches} | {one.max[0] + 1 for one in batches}
    halfway = {(one.opt[0] + other.opt[0]) // 2 for one in batches for other in batches}
    cuts = sorted(starts | halfway | {place + 1 for place in halfway})
    profiles = [{"batch": one} for one in batches]
    spans: list[Span] = []
    for low, end in pairwise(cuts):
        profile = suited(profiles, {"batch": (low,)})
        if profile is None:
            continue
        if spans and (spans[-1].high, spans[-1].profile) == (low - 1, profile):
            low = spans.pop().low
        spans.append(Span(low, end - 1, profile))
    return tuple(spans)


# ── types and layouts ───────────────────────────────────────────────────────────────────────────────────

TYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8", "uint8": "uint8"}
"""The types of `--io` by NumPy name."""

LINEAR = ("nchw", "nhwc")
"""The layouts that an ONNX graph can express."""

VECTORS = {"chw2": 2, "chw4": 4, "chw16": 16, "chw32": 32, "hwc8": 8, "hwc16": 16}
"""TensorRT's vectorised formats, with the number of channels that each pads to a multiple of."""

PREPROCESSING = {"imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))}
"""Mean and standard deviation of each channel, of pixels from 0 to 1."""

IMAGE_RANK = 4


class TensorFormat(Record, frozen=True, kw_only=True):
    """The type and the layout that one input or output is to have."""

    name: str
    dtype: str
    """Its NumPy name."""
    layout: str = "nchw"

    @property
    def type(self) -> str:
        """Its name in `TYPES`."""
        return next(name for name, dtype in TYPES.items() if dtype == self.dtype)

    @property
    def is_vectorised(self) -> bool:
        """Whether ONNX has no word for the layout: it is set on the engine's tensor."""
        return self.layout in VECTORS


class Normalisation(Record, frozen=True, kw_only=True):
    """(x − mean) / std of an input, per channel, in the units of the new input."""

    name: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def is_scaling(self) -> bool:
        """Whether it only changes the unit: no mean, one deviation for all channels."""
        return not any(self.mean) and len({*self.std}) == 1


class IoRequest(Record, frozen=True, kw_only=True):
    """Requested types, layouts and normalisation; `preprocess` is one of `PREPROCESSING`, for the image."""

    formats: tuple[TensorFormat, ...] = ()
    normalisations: tuple[Normalisation, ...] = ()
    preprocess: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is requested."""
        return self == NO_REQUEST

    @property
    def vectorised(self) -> dict[str, str]:
        """The layouts that are set on the engine's tensors, by tensor."""
        return {one.name: one.layout for one in self.formats if one.is_vectorised}

    @property
    def int8(self) -> tuple[str, ...]:
        """The tensors that exchange quantised values."""
        return tuple(one.name for one in self.formats if one.dtype == "int8")

    def format_of(self, name: str) -> TensorFormat | None:
        """What is requested of one tensor."""
        return next((one for one in self.formats if one.name == name), None)


NO_REQUEST = IoRequest()
"""Inputs and outputs stay as the model has them."""


class TypedTensor(Record, frozen=True, kw_only=True):
    """An input or output that is typed or laid out by request, and what a caller needs to fill or read it.

    `model_dtype` is its type in the user's model. `scale` is that of INT8 values: x = scale · q. `mean` and
    `std` are what the graph applies itself.
    """

    name: str
    role: Literal["input", "output"]
    dtype: str
    layout: str
    model_dtype: str
    scale: float | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __str__(self) -> str:
        what = f"{self.role} {self.name!r}: {self.dtype}, {self.layout}"
        scale = f", scale {self.scale:.6g}" if self.scale is not None else ""
        return f"{what}{scale}{', normalised in the graph' if self.mean else ''}"


def stored_shape(layout: str, shape: Shape) -> Shape:
    """The shape of the array that a tensor of NCHW `shape` occupies in a vectorised format; else `shape`."""
    if layout not in VECTORS:
        return shape
    batch, channels, height, width = shape
    vectors = -(-channels // VECTORS[layout])
    if layout.startswith("hwc"):
        return (batch, height, width, vectors * VECTORS[layout])
    return (batch, vectors, height, width, VECTORS[layout])


def nchw_sample(layout: str, stored: Shape, channels: int) -> Shape | None:
    """The (C, H, W) of one sample that is stored in a vectorised format; None if it is not so stored."""
    if len(stored) != len(stored_shape(layout, (1, channels, 1, 1))) - 1:
        return None
    sample = (channels, *(stored[:2] if layout.startswith("hwc") else stored[1:3]))
    return sample if stored_shape(layout, (1, *sample))[1:] == stored else None
