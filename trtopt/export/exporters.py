"""The two exporters of PyTorch behind one function, each followed by names of our own.

Weights stay outside the returned graph: the exporter leaves them in files of a scratch folder, so that graphs
are edited without copies of the weights.
"""

from __future__ import annotations

import logging
import re
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtopt.errors import ModelError, UnsupportedOpError
from trtopt.export.conversions import Conversion, noticing, showing
from trtopt.export.source_module import Subject
from trtopt.export.spec import Exporter
from trtopt.files.user_code import where

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

Tensors = tuple["torch.Tensor", ...]
NATIVE_OPSET = 18
"""The lowest opset that the torch.export-based exporter writes; a lower one is made from it."""
_TENSORS = "leave it to tensors: torch.where, or torch.cond with the default exporter, in place of a branch"


@dataclass(frozen=True)
class Specialised:
    """A place, FILE:LINE, where tracing fixed a size to a number; `guard` as PyTorch words it."""

    guard: str
    place: str


def export_raw(
    subject: Subject,
    tensors: Tensors,
    exporter: Exporter,
    opset: int,
    path: Path,
    *,
    allow_traced_branches: bool = False,
) -> list[Specialised]:
    """Write the module as ONNX to `path`, weights next to it. Returns where sizes were fixed, if known.

    The dynamo exporter writes at least opset 18. Inputs and outputs are called as `raw_names` has it, axes as
    the exporter likes. `allow_traced_branches` leaves branches that tracing loses to PyTorch's warnings.
    """
    with _quiet():
        if exporter == "torchscript":
            with showing() if allow_traced_branches else noticing(len(tensors)) as conversions:
                _torchscript(subject, tensors, opset, path)
            if conversions:
                raise _lost_branches(subject.name, conversions)
            return []
        return _dynamo(subject, tensors, max(opset, NATIVE_OPSET), path)


def raw_names(subject: Subject) -> tuple[list[str], list[str]]:
    """Names of inputs and outputs while PyTorch writes: it calls inner tensors `mean` and the like."""
    return (
        [f"trtopt::input::{index}" for index in range(len(subject.inputs))],
        [f"trtopt::output::{index}" for index in range(len(subject.outputs))],
    )


def _dynamo(subject: Subject, tensors: Tensors, opset: int, path: Path) -> list[Specialised]:
    import torch

    automatic = torch.export.Dim.AUTO
    shapes = tuple(
        {
            index: automatic
            for index, axis in enumerate(entry.shape)
            if isinstance(axis, str) and axis in subject.axes
        }
        for entry in subject.inputs
    )
    try:
        with _guards() as guards:
            program = torch.export.export(
                subject.module, tensors, dynamic_shapes=_for_forward(subject.module, shapes), strict=False
            )
    except Exception as error:
        raise _untraceable(subject.name, error) from error
    input_names, output_names = raw_names(subject)
    try:
        written = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=opset,
            input_names=input_names,
            output_names=output_names,
            verbose=False,
        )
    except Exception as error:
        raise _unsupported(subject.name, error, program) from error
    assert written is not None
    written.save(str(path), external_data=True)
    return guards


def _for_forward(module: torch.nn.Module, shapes: tuple[dict[int, Any], ...]) -> Any:
    """`dynamic_shapes` as torch.export wants them: nested once more for a `forward(*inputs)`."""
    import inspect

    kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
    return (shapes,) if kinds and kinds[0] is inspect.Parameter.VAR_POSITIONAL else shapes


def _torchscript(subject: Subject, tensors: Tensors, opset: int, path: Path) -> None:
    import torch

    input_names, output_names = raw_names(subject)
    varying = {
        name: {
            index: axis
            for index, axis in enumerate(entry.shape)
            if isinstance(axis, str) and axis in subject.axes
        }
        for name, entry in zip(input_names, subject.inputs, strict=True)
    }
    try:
        torch.onnx.export(
            subject.module,
            tensors,
            str(path),
            dynamo=False,
            opset_version=opset,
            input_names=input_names,
            output_names=output_names,
            dynamic_axes=varying,
        )
    except torch.onnx.errors.UnsupportedOperatorError as error:
        raise _unsupported_by_torchscript(subject, tensors, error) from error
    except Exception as error:
        raise ModelError(
            f"{subject.name}: the torchscript exporter failed: {where(error)}",
            "try the default exporter",
        ) from error


def _untraceable(name: str, error: Exception) -> ModelError:
    """The error for a module that torch.export does not take, with the line of the module."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    line = _source_line(str(error)) or _module_frame(traceback.extract_tb(error.__traceback__))
    if any(isinstance(link, GuardOnDataDependentSymNode) for link in _causes(error)):
        return ModelError(
            f"{name}: Python code{line} depends on a tensor's values, which an export cannot know", _TENSORS
        )
    return ModelError(
        f"{name}: torch.export failed: {where(error)}{line}",
        "change that line, or try --exporter torchscript",
    )


def _lost_branches(name: str, conversions: list[Conversion]) -> ModelError:
    """The error for a trace that holds what Python did for one input, as if it were so for all."""
    places = "".join(f"\n  {conversion}" for conversion in conversions)
    return ModelError(
        f"{name}: tracing would fix for all inputs the branch that Python takes for one:{places}",
        f"{_TENSORS}; if every input takes the same branch, add --allow-traced-branches",
    )


def _unsupported(name: str, error: Exception, program: ExportedProgram) -> ModelError:
    """The error for a failed translation: the operator, the path of its module and its source line."""
    import torch

    chain = "\n".join(str(link) for link in _causes(error))
    reason = next((line for line in chain.splitlines() if "No ONNX function" in line), chain.splitlines()[0])
    node = re.search(r"%(\w+) : \[", chain)
    for candidate in program.graph.nodes:
        if node is not None and candidate.name == node.group(1):
            return UnsupportedOpError(
                f"{name}: {candidate.target} {_place(candidate)} has no ONNX form",
                "write that line with other operators",
            )
    failed = isinstance(error, torch.onnx.errors.OnnxExporterError)
    return ModelError(
        f"{name}: export failed: {reason if failed else where(error)}", "try --exporter torchscript"
    )


def _unsupported_by_torchscript(subject: Subject, tensors: Tensors, error: Exception) -> UnsupportedOpError:
    """The tracer names the operator but not its line: torch.export's graph of the same module knows it."""
    import torch

    problem = str(error).partition("\n")[0]
    operator = re.search(r"(\w+)::(\w+)", problem)
    if operator is not None:
        with suppress(Exception):  # the tracer's own message is good enough if this graph cannot be had
            for node in torch.export.export(subject.module, tensors, strict=False).graph.nodes:
                if str(node.target).startswith(f"{operator[1]}.{operator[2]}"):
                    problem = f"{operator[0]} {_place(node)} has no ONNX form"
    return UnsupportedOpError(
        f"{subject.name}: {problem}", "write it with other operators, or try the default exporter"
    )


def _place(node: torch.fx.Node) -> str:
    """`in module 'a.b' at FILE:LINE` of a node of torch.export's graph."""
    stack = node.meta.get("nn_module_stack") or {}
    module = (list(stack.values()) or [("", "")])[-1][0] or "the top module"
    return f"in module {module!r}{_source_line(node.meta.get('stack_trace') or '')}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _source_line(text: str) -> str:
    """The last `File "…", line N` of a text, as ` at FILE:N`."""
    lines = re.findall(r'File "(.+?)", line (\d+)', text)
    return f" at {lines[-1][0]}:{lines[-1][1]}" if lines else ""


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the exporters' log below critical, and their warnings, while they run."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "torch.onnx._internal")]
    loggers += [
        logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith("torch.onnx")
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the module's own are shown where it is run, to be compared
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


class _GuardHandler(logging.Handler):
    """Collects `eval Eq(s77, 2) [guard added] …`, PyTorch's word for a size that it fixed.

    PyTorch logs while it runs the module, so the module's own line is on the stack.
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.found: list[Specialised] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record if it reports a size that was fixed."""
        match = re.search(r"eval (Eq\(.+\)) \[guard added\]", record.getMessage())
        if match:
            self.found.append(Specialised(match.group(1), _module_line()))


def _module_line() -> str:
    """`FILE:LINE` of the innermost frame that is not PyTorch's, this file's or the logging module's."""
    return _module_frame(traceback.extract_stack()).removeprefix(" at ") or "an unknown line"


def _module_frame(frames: list[traceback.FrameSummary]) -> str:
    """As `_module_line`, of these frames, as ` at FILE:LINE`; empty if there is none."""
    own = [
        frame
        for frame in frames
        if not re.search(r"^<|[/\\](torch|logging)[/\\]", frame.filename) and frame.filename != __file__
    ]
    return f" at {own[-1].filename}:{own[-1].lineno}" if own else ""


@contextmanager
def _guards() -> Iterator[list[Specialised]]:
    """Collect the sizes that torch.export fixes inside the block; its log goes nowhere else."""
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    handler = _GuardHandler()
    before = (logger.level, logger.propagate, logger.handlers[:])
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield handler.found
    finally:
        logger.level, logger.propagate, logger.handlers = before
        logger.setLevel(before[0])
