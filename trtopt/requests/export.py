"""The request of `export`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal

from trtopt.options import Argument, Option, Output
from trtopt.requests.shared import model_names


@dataclass(frozen=True)
class ExportRequest:
    """Which model to export, and how."""

    model: Annotated[
        str,
        Argument(
            "a name of the collection, a model file (TOML), or `package.module:callable`.",
            "name",
            names=model_names,
        ),
    ]
    output: Annotated[
        str | Path,
        Output(
            "ONNX file to write.",
            "model",
            python="the ONNX file; it appears only if it agrees with PyTorch.",
        ),
    ]
    _: KW_ONLY
    variant: Annotated[
        str,
        Option(
            "Size of a model of the collection.",
            python="of a model of the collection: `full` or `tiny`.",
            metavar="full|tiny",
            names=lambda: ("full", "tiny"),
        ),
    ] = "full"
    exporter: Annotated[
        Literal["dynamo", "torchscript"] | None,
        Option("dynamo, based on torch.export, or torchscript, the older tracer [default: the model's own]."),
    ] = None
    dtype: Annotated[Literal["fp32", "fp16", "bf16"], Option("Type of the weights and of float inputs.")] = (
        "fp32"
    )
    checkpoint: Annotated[
        str | Path | None,
        Option(
            "State dict or .safetensors file with the weights.",
            python="a state dict or `.safetensors` [default: the model's own weights].",
            metavar="FILE",
            must_exist=True,
        ),
    ] = None
    strict: Annotated[
        bool,
        Option(
            "Refuse a checkpoint with missing or unexpected keys [default: yes].",
            flag="--strict/--no-strict",
        ),
    ] = True
    opset: Annotated[
        int | None,
        Option("ONNX opset, 17 to 23 [default: the model's own, mostly 17; 22 for bf16].", limits=(17, 23)),
    ] = None
    allow_traced_branches: Annotated[
        bool,
        Option(
            "Let torchscript record the path taken for one input where Python branches on tensors.",
            python="let torchscript keep the branch that Python took for one input where it branches on "
            "tensors; "
            "PyTorch then warns.",
        ),
    ] = False
    external_data: Annotated[bool, Option("Store weights next to the file even below 2 GB.")] = False
