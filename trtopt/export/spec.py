"""`ModelSpec`: a model file in `models/`, read strictly, and how a name finds it. Does not import torch.

A file states how the module is made, what its inputs are, which axes may vary, and the variants: `full` at
the size that the field measures, `tiny` of the same structure for tests. A shape names its axes: a name under
`axes` varies at run time, a name under a variant's `sizes` is fixed when the model is made.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from trtopt.errors import UsageError
from trtopt.files.bounded_reading import read_toml, shipped_folder
from trtopt.records import Record, TensorSpec

Exporter = Literal["dynamo", "torchscript"]
"""The exporter based on torch.export, and the older one that traces."""
Sizes = dict[str, int]
"""The value of every named axis and size."""


class Axis(Record, frozen=True, kw_only=True):
    """An axis that varies at run time: the sizes it may have, and the one to tune for."""

    min: int
    opt: int
    max: int
    step: int = 1
    """Sizes are `min` plus a multiple of this."""

    def __post_init__(self) -> None:
        if not (1 <= self.min <= self.opt <= self.max and self.step >= 1):
            raise ValueError("an axis needs 1 <= min <= opt <= max and step >= 1")

    def near(self, steps: int) -> int:
        """The size `steps` steps above `min`, or the largest allowed one."""
        return min(self.min + steps * self.step, self.max - (self.max - self.min) % self.step)


class Input(Record, frozen=True, kw_only=True):
    """An input tensor. Integer inputs of the default generator are drawn from [0, `below`)."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    below: int | str | None = None

    def shape_at(self, sizes: Sizes) -> tuple[int, ...]:
        """The shape with every name replaced by its size."""
        return tuple(sizes[axis] if isinstance(axis, str) else axis for axis in self.shape)


class Variant(Record, frozen=True, kw_only=True):
    """One size of the model: the constructor's arguments, fixed sizes, and what it costs."""

    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    sizes: Sizes = msgspec.field(default_factory=dict)
    axes: dict[str, Axis] = msgspec.field(default_factory=dict)
    """Replaces the model's own axes of these names."""
    parameters: int | None = None
    """Weights and biases, buffers not counted."""
    flops: int | None = None
    """Floating-point operations of one sample (a multiply-add is two) at the other axes' `opt`."""


class ModelSpec(Record, frozen=True, kw_only=True):
    """A model file. `construct`, `example` and `metric` are `FILE.py:FUNCTION` next to the model file."""

    title: str
    description: str
    source: str
    """Paper or code that the structure comes from."""
    construct: str | None = None
    """`FILE.py:FUNCTION`; called with the variant's arguments, returns a `torch.nn.Module`."""
    onnx: str | None = None
    """A ready ONNX file next to the model file, instead of `construct`."""
    example: str | None = None
    """`FILE.py:FUNCTION(rng, sizes) -> {name: array}`; without it, normal floats and uniform integers."""
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    axes: dict[str, Axis] = msgspec.field(default_factory=dict)
    variants: dict[str, Variant]
    opset: int = 17
    exporter: Exporter = "dynamo"
    """The exporter that takes this model; `changed` has the reason if it is the older one."""
    seed: int = 0
    trained: bool = False
    checkpoint: str | None = None
    """`FILE.py:FUNCTION() -> path` of the weights that come with the model."""
    unused: tuple[str, ...] = ()
    """Patterns of keys that checkpoints of this model hold and the model has no use for."""
    metric: str | None = None
    """`FILE.py:FUNCTION`; its docstring describes its arguments."""
    data: str | None = None
    """Held-out data for `metric`, a `.npz` file next to the model file."""
    requires: tuple[str, ...] = ()
    """Packages beyond torch that it needs, as pip takes them."""
    changed: str = ""
    """What was written differently for TensorRT's sake, and why."""
    tolerance: float = 1e-3
    """Largest difference from PyTorch, relative to an element and to its tensor's RMS."""
    mismatch: float = 0.0
    """Share of elements that may differ more: ranked outputs, where rounding swaps near ties."""

    def __post_init__(self) -> None:
        if (self.construct is None) == (self.onnx is None):
            raise ValueError("give exactly one of `construct` and `onnx`")
        if "full" not in self.variants:
            raise ValueError("`variants` needs at least `full`")
        if self.metric and not self.trained:
            raise ValueError("a `metric` needs a trained model")
        for name, variant in self.variants.items():
            known = {*self.axes, *variant.sizes}
            for entry in self.inputs:
                named = {axis for axis in (*entry.shape, entry.below) if isinstance(axis, str)}
                if missing := sorted(named - known):
                    raise ValueError(
                        f"input `{entry.name}` names {missing[0]!r}, which is neither under `axes` "
                        f"nor under the sizes of variant `{name}`"
                    )
            if missing := sorted(set(variant.axes) - set(self.axes)):
                raise ValueError(f"variant `{name}` sets axis {missing[0]!r}, which the model does not have")

    def axes_of(self, variant: str) -> dict[str, Axis]:
        """The axes that vary in a variant, with its own ranges."""
        return {**self.axes, **self.variants[variant].axes}

    def sizes_at(self, variant: str, axes: Sizes) -> Sizes:
        """All sizes of a variant, with its axes at the given values, or else at `opt`."""
        tuned = {name: axis.opt for name, axis in self.axes_of(variant).items()}
        return {**self.variants[variant].sizes, **tuned, **axes}


class Listed(Record, frozen=True, kw_only=True):
    """A model at its full size: fixed sizes of inputs as numbers, varying axes by name."""

    name: str
    title: str
    source: str
    parameters: int | None
    flops: int | None
    """Of one sample."""
    is_trained: bool
    inputs: tuple[TensorSpec, ...]


class Collection(Record, frozen=True, kw_only=True):
    """The models that `trtopt models` lists."""

    schema: str = "trtopt.models/1"
    models: tuple[Listed, ...]


def collection_of(paths: Mapping[str, Path]) -> Collection:
    """The models of these model files, by name."""
    found = []
    for name, path in paths.items():
        spec = read_spec(path)
        full = spec.variants["full"]
        inputs = (
            TensorSpec(
                name=one.name,
                dtype=one.dtype,
                shape=tuple(full.sizes.get(str(axis), axis) for axis in one.shape),
            )
            for one in spec.inputs
        )
        found.append(
            Listed(
                name=name,
                title=spec.title,
                source=spec.source,
                parameters=full.parameters,
                flops=full.flops,
                is_trained=spec.trained,
                inputs=tuple(inputs),
            )
        )
    return Collection(models=tuple(found))


def read_spec(path: Path) -> ModelSpec:
    """Read a model file."""
    table = read_toml(path, "correct the file; `trtopt models` lists names")
    try:
        return msgspec.convert(table, ModelSpec)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"{path}: {error}", "correct the field; models/resnet50.toml is an example"
        ) from None


def folder() -> Path:
    """The folder of the model files."""
    return shipped_folder("models")


def files() -> dict[str, Path]:
    """Every model's file by its name, sorted."""
    return {path.stem: path for path in sorted(folder().glob("*.toml"))}


def find(name: str) -> Path:
    """The file of a model of the collection, or the model file that `name` is the path of."""
    if name.endswith(".toml"):
        return Path(name)
    known = files()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(
        f"no model is named {name!r}",
        f"{hint}`trtopt models` lists them; a model of your own is a TOML file, FILE.py:callable or "
        "package.module:callable",
    )
