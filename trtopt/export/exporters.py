"""The two exporters of PyTorch behind one function, and what must be known of a trace.

Weights stay outside the returned graph: the exporter leaves them in files of a scratch folder, so that graphs
are edited without copies of the weights.
"""

from __future__ import annotations

import logging
import re
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from trtopt.errors import ModelError, UnsupportedOpError
from trtopt.export.source_module import Subject
from trtopt.export.spec import Exporter
from trtopt.files.user_code import where

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


Tensors = tuple["torch.Tensor", ...]
NATIVE_OPSET = 18
"""The lowest opset that the torch.export-based exporter writes; a lower one is made from it."""
_OF_PYTORCH = re.compile(r"[/\\]torch[/\\]")
_OF_WARNINGS = re.compile(r"^<frozen|[/\\]logging[/\\]|[/\\](warnings|contextlib)\.py$")
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

    shapes = tuple(dict.fromkeys(axes, torch.export.Dim.AUTO) for axes in _varying_axes(subject))
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


def _varying_axes(subject: Subject) -> list[dict[int, str]]:
    """The names of each input's axes that vary, by number."""
    return [
        {
            index: axis
            for index, axis in enumerate(entry.shape)
            if isinstance(axis, str) and axis in subject.axes
        }
        for entry in subject.inputs
    ]


def _for_forward(module: torch.nn.Module, shapes: tuple[dict[int, Any], ...]) -> Any:
    """`dynamic_shapes` as torch.export wants them: nested once more for a `forward(*inputs)`."""
    import inspect

    kinds = [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()]
    return (shapes,) if kinds and kinds[0] is inspect.Parameter.VAR_POSITIONAL else shapes


def _torchscript(subject: Subject, tensors: Tensors, opset: int, path: Path) -> None:
    import torch

    input_names, output_names = raw_names(subject)
    try:
        torch.onnx.export(
            subject.module,
            tensors,
            str(path),
            dynamo=False,
            opset_version=opset,
            input_names=input_names,
            output_names=output_names,
            dynamic_axes=dict(zip(input_names, _varying_axes(subject), strict=True)),
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

    frame = _users_frame(traceback.extract_tb(error.__traceback__))
    line = _source_line(str(error)) or (f" at {frame}" if frame else "")
    if any(isinstance(link, GuardOnDataDependentSymNode) for link in _causes(error)):
        return ModelError(
            f"{name}: Python code{line} depends on a tensor's values, which an export cannot know", _TENSORS
        )
    return ModelError(
        f"{name}: torch.export failed: {where(error)}{line}",
        "change that line, or try --exporter torchscript",
    )


def _lost_branches(name: str, conversions: list[str]) -> ModelError:
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
            frame = _users_frame(traceback.extract_stack())
            self.found.append(Specialised(match.group(1), frame or "an unknown line"))


def _users_frame(frames: Sequence[traceback.FrameSummary]) -> str:
    """`FILE:LINE` of the innermost frame of the user's code; empty if there is none."""
    own = [frame for frame in frames if not (_is_between(frame) or _OF_PYTORCH.search(frame.filename))]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def _is_between(frame: traceback.FrameSummary) -> bool:
    """Whether a frame is this file's, or has the standard library's part in a warning or a log."""
    return frame.filename == __file__ or _OF_WARNINGS.search(frame.filename) is not None


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


# Where tracing loses what Python does: tensors that become Python values, constants to a trace.


_SIZES = {"aten::size", "aten::numel", "aten::dim"}
"""Operators that take a tensor's size, and nothing of its values."""


@contextmanager
def showing() -> Iterator[None]:
    """Let PyTorch warn of the module's conversions, as it does by default, while the block traces it."""
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("default", category=torch.jit.TracerWarning)
        torch.jit.TracerWarning.ignore_lib_warnings()
        yield


@contextmanager
def noticing(inputs: int) -> Iterator[list[str]]:
    """Collect, in words, the conversions by which a trace may lose a branch, while the block traces a module.

    These are the values of the module's `inputs` that become Python values, and their sizes that become
    booleans. A size that becomes a number is none: other sizes are compared. PyTorch's own library is trusted
    with its branches, as PyTorch does it; its other warnings about the module's lines are shown as usual.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class Given(TorchFunctionMode):  # type: ignore[misc]
        """Knows which tensor is being converted: a warning does not."""

        tensor: object = None

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            before, self.tensor = self.tensor, args[0] if args else None
            try:
                return func(*args, **(kwargs or {}))
            finally:
                self.tensor = before

    found: list[str] = []
    given = Given()

    def hear(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not issubclass(category, torch.jit.TracerWarning):
            show(message, category, filename, lineno, file, line)
            return
        stack = traceback.extract_stack()
        innermost = [frame.filename for frame in stack if not _is_between(frame)][-1]
        if _OF_PYTORCH.search(innermost) and Path(innermost).name != "_tensor.py":
            return  # its library's, and not a tensor's method, which does what the module's line says
        place = _users_frame(stack) or "an unknown line:0"
        match = re.match(r"Converting a tensor to (an? .+?) might cause", str(message))
        if match is None:
            name, _, number = place.rpartition(":")
            show(message, category, name, int(number), file, line)
            return
        made_of = _made_of(given.tensor, inputs)
        if "values" in made_of or ("sizes" in made_of and "boolean" in match[1]):
            conversion = f"{place} (a tensor becomes {match[1]})"
            found.extend([conversion] if conversion not in found else [])

    with warnings.catch_warnings():
        show = warnings.showwarning
        warnings.filterwarnings("always", category=torch.jit.TracerWarning)
        warnings.showwarning = hear
        with given:
            yield found


def _made_of(tensor: object, inputs: int) -> set[str]:
    """Of `values` and `sizes` of the module's inputs, what a traced tensor was computed from, if anything.

    A trace's first `inputs` parameters are the module's inputs, the others its weights.
    """
    import torch

    if not isinstance(tensor, torch.Tensor) or not torch.jit.is_tracing():
        return {"values"}  # for all that is known
    made_of: set[str] = set()
    waiting, seen = [torch._C._get_value_trace(tensor)], set()
    while waiting:
        value = waiting.pop()
        kind = value.node().kind()
        if kind == "prim::Param":
            made_of |= {"values"} if value.offset() < inputs else set()
        elif kind in _SIZES:
            made_of.add("sizes")
        elif value.node() not in seen:
            seen.add(value.node())
            waiting += value.node().inputs()
    return made_of
