"""The requests on graphs: `export`, `inspect`, `rewrite`, `cast`, `quantize`, `check`, `bisect`, `reduce`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal

from trtopt.options import Argument, Checked, Option, Output
from trtopt.precision.placement.forms import Forms as GraphForms, parse_forms
from trtopt.precision.search import FEWEST
from trtopt.recipe import MAX_AXIS, Recipe
from trtopt.requests import shared
from trtopt.requests.recipe import Forms, RunOptions, sizes_in
from trtopt.targets import DEFAULT, target_names, targets_where


@dataclass(frozen=True)
class ExportRequest(Checked):
    model: Annotated[
        str,
        Argument(
            "a name of the collection, a model file (TOML), or `package.module:callable`.",
            "name",
            names=shared.model_names,
        ),
    ]
    output: Annotated[
        str | Path,
        Output("ONNX file to write; it appears only if it agrees with PyTorch.", "model"),
    ]
    _: KW_ONLY
    variant: Annotated[
        str,
        Option(
            "Size of a model of the collection: `full` or `tiny`.",
            metavar="full|tiny",
            names=lambda: ("full", "tiny"),
        ),
    ] = "full"
    exporter: Annotated[
        Literal["dynamo", "torchscript"] | None,
        Option("dynamo, based on torch.export, or torchscript, the older tracer [default: the model's own]."),
    ] = None
    checkpoint: Annotated[
        shared.File, "State dict or .safetensors file with the weights [default: the model's own]."
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
        Option("ONNX opset, 17 to 23 [default: the model's own, mostly 17].", range=(17, 23)),
    ] = None
    allow_traced_branches: Annotated[
        bool,
        Option(
            "Let torchscript keep the branch taken for one input where Python branches on tensors; PyTorch "
            "then warns."
        ),
    ] = False
    external_data: Annotated[bool, Option("Store weights next to the file even below 2 GB.")] = False


@dataclass(frozen=True)
class InspectRequest(shared.Request):
    path: Annotated[
        str | Path,
        Argument("an ONNX model, an engine, or a file or folder that trtopt made."),
    ]
    _: KW_ONLY
    batch: Annotated[int, Option("Batch size to count a model's work at.", range=(1, MAX_AXIS))] = 1
    axes: Annotated[
        shared.Axes, "Lengths of a dynamic axis to count a model's work at, as seq=128 [default: 1]."
    ] = None
    capability: Annotated[
        str | None,
        Option(
            "List every node that this TensorRT cannot take, and the subgraphs that it can; exits with 3 if "
            "there is one.",
            python="list every node that this TensorRT cannot take, and the subgraphs that it can.",
            choices=target_names(),
        ),
    ] = None
    trust: Annotated[
        Sequence[str],
        Option("Load this engine, which has no manifest: native code.", metavar="ENGINE", is_path=True),
    ] = ()


@dataclass(frozen=True)
class LintRequest(Checked):
    model: shared.OnnxFile
    _: KW_ONLY
    target: Annotated[shared.Target, "TensorRT to check for."] = DEFAULT


@dataclass(frozen=True)
class RewriteRequest(shared.TensorOptions):
    model: shared.OnnxFile
    output: Annotated[str | Path, Output("File to write the rewritten model to.", "model")]
    _: KW_ONLY
    target: Annotated[shared.Target, "TensorRT to rewrite for."] = DEFAULT
    rules: Annotated[
        Sequence[str] | None,
        Option(
            "Only these rules (also ones that are off).",
            metavar="NAME,…",
            parse=shared.parse_rules,
            names=shared.rule_names,
        ),
    ] = None
    skip: Annotated[
        Sequence[str],
        Option("Skip these rules.", metavar="NAME,…", parse=shared.parse_rules, names=shared.rule_names),
    ] = ()
    clean: Annotated[bool, Option("Also apply rules that tidy the graph and that no build needs.")] = False
    check: Annotated[
        bool,
        Option(
            "Do not run both models to compare them.",
            python="run both models on seeded inputs, every dynamic axis at two sizes; a rule that breaks "
            "its bound, or that fails, is undone and named in the trace.",
            flag="--no-check",
        ),
    ] = True
    data: Annotated[shared.Data, shared.samples("Real inputs for the check")] = None
    dynamic_batch: Annotated[bool, Option("Give a fixed batch axis the name `batch`.")] = False
    batch: Annotated[int | None, Option("Fix the batch axis at this size.", range=(1, MAX_AXIS))] = None
    shapes: Annotated[
        shared.Shapes,
        Option(
            "Fix the shape of an input: x:1x3x224x224; N is the batch, open without --batch.",
            python='inputs to fix, with their shapes: `{"x": "1x3x224x224"}`; N is the batch, open without '
            "`batch`.",
            flag="--shape",
            metavar="INPUT:SHAPE",
            parse=shared.parse_shape,
        ),
    ] = None
    axes: Annotated[
        shared.Axes,
        Option(
            "Fix a dynamic axis by its name in the model, for all inputs: seq=128.",
            python='dynamic axes to fix, by their names, for all inputs: `{"seq": 128}`.',
            flag="--axis",
            metavar="NAME=N",
            parse=shared.parse_lengths_of_axis,
        ),
    ] = None

    @property
    def sizes(self) -> Recipe:
        """The shapes and axes to fix, as a recipe that gives nothing else."""
        return sizes_in(self.shapes, self.axes)


@dataclass(frozen=True)
class ExtractRequest(Checked):
    model: shared.OnnxFile
    output: Annotated[str | Path, Output("File to write the part to.", "model")]
    _: KW_ONLY
    inputs: Annotated[
        Sequence[str],
        Option(
            "A tensor that the part begins at; several: --from A --from B [default: the model's inputs].",
            python="the tensors that the part begins at [default: the model's inputs].",
            flag="--from",
            metavar="TENSOR",
        ),
    ] = ()
    outputs: Annotated[
        Sequence[str],
        Option(
            "A tensor that it ends at; several: --to A --to B [default: the model's outputs].",
            python="the tensors that it ends at [default: the model's outputs].",
            flag="--to",
            metavar="TENSOR",
        ),
    ] = ()


@dataclass(frozen=True)
class DiffRequest(Checked):
    model: Annotated[str | Path, Argument("the ONNX file.", "onnx", metavar="A")]
    other: Annotated[str | Path, Argument("the one to hold against it.", "onnx", metavar="B")]
    output: Annotated[str | Path | None, Output("HTML page to write of all differences.", "page")] = None


@dataclass(frozen=True)
class CastRequest(shared.Request):
    model: shared.OnnxFile
    output: Annotated[str | Path, Output("File to write.", "model")]
    _: KW_ONLY
    precision: Annotated[Literal["fp16", "bf16"], Option("The 16-bit type to write.")] = "fp16"
    data: Annotated[
        shared.Data,
        shared.samples(
            "Real inputs, which decide what stays FP32 [default: seeded random ones, for overflows alone]"
        ),
    ] = None
    target: Annotated[shared.Target, "TensorRT to cast for (scales)."] = DEFAULT
    exclude: Annotated[
        shared.Patterns, "Nodes (with * and ?) or operators to keep in FP32: 'encoder.0.*', Softmax."
    ] = ()
    include: Annotated[shared.Patterns, "Nodes or operators to cast regardless of their values."] = ()
    threshold: Annotated[
        float | None,
        Option("Largest |x| in 16 bits [default: a quarter of the type's largest].", metavar="VALUE"),
    ] = None
    cast_io: Annotated[bool, Option("Make the model's FP32 inputs and outputs 16-bit too.")] = False
    opset: Annotated[
        int | None,
        Option(
            "Raise the model to this opset first, 13 to 21: more operators are then 16-bit.",
            metavar="N",
            range=(13, 21),
        ),
    ] = None
    dequantize: Annotated[
        bool,
        Option("Write weights behind DequantizeLinear in 16 bits too; without, they stay INT8 or FP8."),
    ] = False
    run: Annotated[
        bool,
        Option(
            "Decide by operators and weights, where no data can be had; the result is marked as unverified.",
            python="run the model for its values; without, operators and weights decide, and the result is "
            "marked as unverified.",
            flag="--no-run",
        ),
    ] = True
    compare: Annotated[
        bool,
        Option(
            "Do not compare the result with the original.",
            python="run the result against the original.",
            flag="--no-compare",
        ),
    ] = True


_WITHOUT_STORED_WEIGHTS = ", ".join(targets_where(lambda target: not target.stored_weights))


@dataclass(frozen=True, kw_only=True)
class QuantizeOptions(shared.TensorOptions):
    """How to quantise a graph."""

    precision: Annotated[
        Literal["int8", "fp8", "int4"],
        Option("The quantised precision; trtopt cast writes fp16 and bf16."),
    ]
    data: Annotated[
        shared.Data,
        shared.samples("Samples to calibrate on"),
    ] = None
    target: shared.Target = DEFAULT
    method: Annotated[
        shared.Method,
        "auto, max, percentile-99.9, -99.99, -99.999, mse or entropy [default: auto; FP8: max].",
    ] = None
    exclude: Annotated[shared.Patterns, "Nodes (with * and ?) or operators not to quantise."] = ()
    include: Annotated[shared.Patterns, "Nodes or operators to quantise anyway."] = ()
    table: Annotated[shared.File, "Ranges from an earlier run, no data needed."] = None
    forms: Forms = None
    store_weights: Annotated[
        bool,
        Option(f"Keep weights in their narrow type (INT4 always; not on {_WITHOUT_STORED_WEIGHTS})."),
    ] = False
    random_data: Annotated[bool, Option("Calibrate on random values: for trials, never for deployment.")] = (
        False
    )

    @property
    def graph_forms(self) -> GraphForms | None:
        """The forms, read; None: the default of each."""
        return None if self.forms is None else parse_forms(self.forms)


@dataclass(frozen=True)
class QuantizeRequest(QuantizeOptions):
    model: shared.OnnxFile
    output: Annotated[
        str | Path,
        Output("ONNX file to write; its calibration table is written next to it.", "quantised model"),
    ]


@dataclass(frozen=True)
class CheckRequest(RunOptions, shared.BoundsOptions):
    path: Annotated[
        str | Path,
        Argument(
            "an ONNX file (its 16-bit arithmetic is emulated), a build folder, or an engine in one.",
            metavar="MODEL",
        ),
    ]
    against: Annotated[
        str | Path,
        Option(
            "The reference ONNX file; it runs with ONNX Runtime's own optimisations off.", must_exist=True
        ),
    ]
    _: KW_ONLY
    data: Annotated[
        shared.Data, shared.samples("Samples [default: those of --model's file, else seeded random ones]")
    ] = None
    task: Annotated[
        str | None,
        Option(
            "Measure the task metric of a model of the collection, or of a model file, too.",
            flag="--model",
            metavar="NAME|FILE.toml",
            names=shared.model_names,
            is_path=True,
        ),
    ] = None
    batch: Annotated[shared.Batch, "Batch sizes of engines [default: each engine's own]."] = None
    backend: Annotated[
        shared.Backend, "What to run engines with [default: auto, their own, or the CPU if there is no GPU]."
    ] = None
    layers: Annotated[bool, Option("Rank where in the graph the error enters (ONNX files).")] = False


@dataclass(frozen=True)
class BisectRequest(shared.BoundsOptions):
    model: shared.OnnxFile
    output: Annotated[
        str | Path | None, Output("File to write the resulting model to.", "quantised model")
    ] = None
    _: KW_ONLY
    precision: Annotated[Literal["fp16", "bf16", "int8", "fp8"], Option("The low precision.")]
    data: Annotated[shared.Data, shared.samples("Samples to evaluate accuracy on, and to find ranges on")] = (
        None
    )
    calib: Annotated[shared.Data, "Other samples for ranges and values."] = None
    table: Annotated[shared.File, "Ranges from an earlier trtopt quantize."] = None
    method: Annotated[shared.Method, "How ranges are found, as for trtopt quantize."] = None
    target: Annotated[
        str | None,
        Option(f"TensorRT to write for [default: the engines', else {DEFAULT}].", choices=target_names()),
    ] = None
    exclude: Annotated[shared.Patterns, "Nodes or operators to keep in any case."] = ()
    include: Annotated[shared.Patterns, "Nodes to lower regardless of the rules."] = ()
    backend: Annotated[
        shared.BackendName,
        Option("Evaluator: engines [default with a GPU], or ONNX Runtime, which emulates the precision."),
    ] = "auto"
    batch: Annotated[shared.Batch, "Batch sizes of the engines."] = None
    profile: Annotated[shared.Profile, "A recipe for the engines."] = None
    timeout: shared.Timeout = None
    max_evaluations: Annotated[
        int, Option("Maximum number of node sets to evaluate.", range=(FEWEST, 100_000))
    ] = 200


CONDITIONS = ("fails", "wrong", "unfused", "unfused:FUSION", "slower:MS")
"""What `--while` may be, besides a command."""


@dataclass(frozen=True)
class ReduceRequest(shared.BoundsOptions):
    model: shared.OnnxFile
    output: Annotated[
        str | Path,
        Output("File to write the reduced model to; its inputs are written next to it (.npz).", "model"),
    ]
    _: KW_ONLY
    condition: Annotated[
        str,
        Option(
            "The failure to keep: fails (to build or to run: refused, crashed, hung), wrong (outputs against "
            "ONNX Runtime), unfused or unfused:Conv+activation, slower:2.5 (ms), or a command with {model}, "
            "and perhaps {data}, that exits with 1 to 124 where the failure is there, with 0 where it is "
            "not.",
            flag="--while",
            metavar="CONDITION|COMMAND",
            names=lambda: CONDITIONS[:4],
        ),
    ]
    data: Annotated[shared.Data, shared.samples("Inputs to fail on [default: seeded random ones]")] = None
    backend: Annotated[
        shared.BackendName,
        Option("What to build with [default: auto, the best here; without a GPU the CPU, not for `fails`]."),
    ] = "auto"
    profile: Annotated[shared.Profile, "A recipe for the engines."] = None
    timeout: Annotated[
        float,
        Option(
            "Seconds that a build, a run or the command may take; beyond that it hangs.",
            metavar="S",
            range=shared.UP_TO_A_DAY,
        ),
    ] = 300.0
    max_steps: Annotated[int, Option("Maximum number of models to try.", range=(FEWEST, 100_000))] = 1000
