"""`trtopt models`: lists the collection. Needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtopt.cli.options.completion import names_or_files
from trtopt.requests.shared import model_names

if TYPE_CHECKING:
    from trtopt.export.spec import Axis, ModelSpec, Variant

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@click.command(name="models")
@click.argument("name", required=False, shell_complete=names_or_files(model_names))
def models(name: str | None) -> None:
    """List the model collection, or show the details of NAME."""
    from trtopt.cli.console import say, say_wrapped
    from trtopt.export.spec import files, find, read_spec

    if name is None:
        say_wrapped(*_table({stem: read_spec(path) for stem, path in files().items()}))
    else:
        path = find(name)
        say(*_details(path, read_spec(path)))


def _table(specs: dict[str, ModelSpec]) -> list[str]:
    """One line per model: name, parameters, FLOPs of a sample, whether trained, inputs."""
    rows = [("model", "parameters", "FLOPs/sample", "weights", "inputs")]
    for name, spec in specs.items():
        full = spec.variants["full"]
        more = f" and {len(spec.inputs) - 1} more" if len(spec.inputs) > 1 else ""
        inputs = f"{_input(spec, full, 0)}{more}"
        trained = "trained" if spec.trained else "seeded"
        rows.append((name, _short(full.parameters), _short(full.flops), trained, inputs))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [
        f"{name:<{widths[0]}}  {weights:>{widths[1]}}  {flops:>{widths[2]}}  {trained:<{widths[3]}}  {inputs}"
        for name, weights, flops, trained, inputs in rows
    ]


def _details(path: Path, spec: ModelSpec) -> list[str]:
    lines = [spec.title, f"  {spec.description}", f"  from: {spec.source}", f"  file: {path}"]
    lines.append(f"  made by: {spec.construct or spec.onnx}, opset {spec.opset}, seed {spec.seed}")
    for label, text in (
        ("weights", "trained" if spec.trained else "seeded, not trained"),
        ("checkpoints", spec.checkpoint_note),
        ("metric", spec.metric or ""),
        ("held-out data", spec.data or ""),
        ("needs", ", ".join(spec.requires)),
        ("changed for TensorRT", spec.changed),
    ):
        if text:
            lines.append(f"  {label}: {text.strip()}")
    if spec.mismatch:
        lines.append(f"  compared with PyTorch: up to {spec.mismatch:.0%} of ranked outputs may differ")
    for name, variant in spec.variants.items():
        lines += _variant(spec, name, variant)
    return lines


def _variant(spec: ModelSpec, name: str, variant: Variant) -> list[str]:
    cost = f"{_short(variant.parameters)} parameters, {_short(variant.flops)} FLOPs per sample"
    inputs = [f"    input {_input(spec, variant, index)}" for index in range(len(spec.inputs))]
    axes = [f"    axis {axis}: {_range(entry)}" for axis, entry in spec.axes_of(name).items()]
    return [f"  variant {name}: {cost}", *inputs, f"    outputs {', '.join(spec.outputs)}", *axes]


def _range(axis: Axis) -> str:
    step = f", in steps of {axis.step}" if axis.step > 1 else ""
    return f"{axis.min} to {axis.max}, tuned at {axis.opt}{step}"


def _input(spec: ModelSpec, variant: Variant, index: int) -> str:
    """`image float32[batch, 3, 224, 224]`: fixed sizes as numbers, varying axes by name."""
    entry = spec.inputs[index]
    shape = ", ".join(str(variant.sizes.get(str(axis), axis)) for axis in entry.shape)
    return f"{entry.name} {entry.dtype}[{shape}]"


def _short(count: int | None) -> str:
    """A count with three digits: 25.6M."""
    if count is None:
        return "?"
    for size, letter in _PREFIXES:
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return str(count)
