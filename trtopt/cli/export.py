"""`trtopt export`: writes a PyTorch model as a checked ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtopt.cli.options.completion import model_names, names, names_or_files
from trtopt.cli.options.output import model_file, output_option

if TYPE_CHECKING:
    from trtopt.export.export import DType, Exported
    from trtopt.export.spec import Exporter


@click.command(name="export")
@click.argument("model", shell_complete=names_or_files(model_names))
@output_option("FILE", "ONNX file to write.", model_file, required=True)
@click.option(
    "--variant",
    default="full",
    show_default=True,
    metavar="full|tiny",
    shell_complete=names(lambda: ("full", "tiny")),
    help="Size of a model of the collection.",
)
@click.option(
    "--exporter",
    type=click.Choice(["dynamo", "torchscript"]),
    help="dynamo, based on torch.export, or torchscript, the older tracer [default: the model's own].",
)
@click.option(
    "--dtype",
    type=click.Choice(["fp32", "fp16", "bf16"]),
    default="fp32",
    show_default=True,
    help="Type of the weights and of float inputs.",
)
@click.option(
    "--checkpoint",
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE",
    help="State dict or .safetensors file with the weights.",
)
@click.option(
    "--strict/--no-strict",
    default=True,
    help="Refuse a checkpoint with missing or unexpected keys [default: yes].",
)
@click.option(
    "--opset",
    type=click.IntRange(17, 23),
    metavar="N",
    help="ONNX opset, 17 to 23 [default: the model's own, mostly 17; 22 for bf16].",
)
@click.option(
    "--allow-traced-branches",
    is_flag=True,
    help="Let torchscript record the path taken for one input where Python branches on tensors.",
)
@click.option("--external-data", is_flag=True, help="Store weights next to the file even below 2 GB.")
def export(
    model: str,
    output: Path,
    variant: str,
    exporter: Exporter | None,
    dtype: DType,
    checkpoint: Path | None,
    strict: bool,
    opset: int | None,
    allow_traced_branches: bool,
    external_data: bool,
) -> None:
    """Export MODEL to ONNX and compare the file with PyTorch.

    MODEL is a name of the collection (see `trtopt models`), a model file (TOML), or package.module:callable
    (or FILE.py:callable) that returns (module, {input name: example tensor}).
    """
    from trtopt.cli.console import say
    from trtopt.cli.progress import phases
    from trtopt.workflows.export import export_model

    with phases(f"exporting {model}"):
        exported = export_model(
            model,
            output,
            variant=variant,
            exporter=exporter,
            dtype=dtype,
            checkpoint=checkpoint,
            strict=strict,
            opset=opset,
            external_data=external_data,
            allow_traced_branches=allow_traced_branches,
        )
    say(*_summary(exported))


def _summary(exported: Exported) -> list[str]:
    lines = [f"{exported.path}: opset {exported.opset}, {exported.nodes} nodes"]
    if exported.external is not None:
        lines.append(f"  weights in {exported.external.name}: keep the two files together")
    for check in exported.checks:
        sizes = ", ".join(f"{name} {size}" for name, size in check.sizes.items()) or "fixed sizes"
        lines.append(f"  agrees with PyTorch at {sizes}: largest relative difference {check.worst:.1e}")
    return lines
