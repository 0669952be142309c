"""The request of `quantize`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal

from trtopt.options import Option, Output
from trtopt.requests.parsing import parse_smoothing
from trtopt.requests.recipe import Forms
from trtopt.requests.shared import (
    Data,
    GraphIo,
    Method,
    Normalize,
    OnnxFile,
    Preprocess,
    Request,
    Table,
    TargetFound,
    samples,
)
from trtopt.targets import DEFAULT, targets_where

_WITHOUT_STORED_WEIGHTS = ", ".join(targets_where(lambda target: not target.stored_weights))


@dataclass(frozen=True)
class QuantizeRequest(Request):
    """What to quantise, and how."""

    model: OnnxFile
    output: Annotated[
        str | Path,
        Output(
            "File to write the model to.",
            "quantised model",
            python="the ONNX file to write; its calibration table is written next to it.",
        ),
    ]
    _: KW_ONLY
    precision: Annotated[
        Literal["int8", "fp8", "int4"],
        Option("The quantised precision; trtopt cast writes fp16 and bf16."),
    ]
    data: Annotated[
        Data,
        Option(samples("Samples to calibrate on"), metavar="DATA", is_path=True, aliases=("--calib",)),
    ] = None
    target: Annotated[
        TargetFound,
        (
            f"TensorRT to write for [default: {DEFAULT}; of --verdict: the one here].",
            f"the TensorRT to write for [default: {DEFAULT}].",
        ),
    ] = None
    method: Annotated[
        Method, "auto, max, percentile-99.9, -99.99, -99.999, mse or entropy [default: auto; FP8: max]."
    ] = None
    exclude: Annotated[
        Sequence[str],
        Option("Nodes (with * and ?) or operators not to quantise.", metavar="PATTERN"),
    ] = ()
    include: Annotated[
        Sequence[str], Option("Nodes or operators to quantise anyway.", metavar="PATTERN")
    ] = ()
    table: Table = None
    smoothquant: Annotated[
        float | str,
        Option(
            "Move outlier channels into weights: auto where INT8 gains by it, or SmoothQuant [default: "
            "auto].",
            python="move outliers of channels into weights: `auto` (INT8, where it gains), `off`, or the "
            "exponent "
            "alpha, 0 to 1.",
            metavar="auto|off|ALPHA",
            parse=parse_smoothing,
        ),
    ] = "auto"
    forms: Forms = None
    store_weights: Annotated[
        bool,
        Option(f"Keep weights in their narrow type (INT4 always; not on {_WITHOUT_STORED_WEIGHTS})."),
    ] = False
    random_data: Annotated[bool, Option("Calibrate on random values: for trials, never for deployment.")] = (
        False
    )
    io: GraphIo = None
    normalize: Normalize = None
    preprocess: Preprocess = None
