"""The commands that make, inspect and edit ONNX files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trtopt.cli.command import command
from trtopt.cli.outputs import NOT_MET, NOT_SHOWN, check_alarms, json_option, requested_json, strict_option
from trtopt.cli.parameters import lint_check_names, model_names, offer

if TYPE_CHECKING:
    from trtopt.export.export import Exported
    from trtopt.export.spec import Listed
    from trtopt.records import TensorSpec
    from trtopt.report.view import View
    from trtopt.requests import models as requests


@command(name="models", synonyms=("list", "zoo"))
@click.argument("name", required=False, shell_complete=offer(model_names, files=True))
@json_option("trtopt.models", "the list")
def models(name: str | None) -> None:
    """List the model collection, or show one model.

    NAME is one of the collection, whose model file (TOML) is printed.
    """
    from trtopt.cli.console import say, show_view
    from trtopt.cli.outputs import write_json
    from trtopt.export.spec import collection_of, files, find

    paths = files() if name is None else {name: find(name)}
    found = collection_of(paths)
    write_json(found)
    if name is None:
        show_view(_collection(found.models))
    else:
        say(f"# {paths[name]}", *paths[name].read_text("utf-8").splitlines())


def _collection(models: Sequence[Listed]) -> View:
    """A row per model: name, parameters, FLOPs of a sample, whether trained, inputs."""
    from trtopt.report.view import Column, View, short, table

    columns: list[Column[Listed]] = [
        Column("model", lambda one: one.name),
        Column("parameters", lambda one: short(one.parameters), ""),
        Column("FLOPs/sample", lambda one: short(one.flops), ""),
        Column("weights", lambda one: "trained" if one.is_trained else "seeded"),
        Column("inputs", lambda one: _inputs(one.inputs), fit="fold"),
    ]
    return View("", [table("", columns, models)])


def _inputs(inputs: Sequence[TensorSpec]) -> str:
    """`image float32[batch, 3, 224, 224] and 1 more`."""
    first, *others = inputs
    return f"{first.name} {first.type_text}" + (f" and {len(others)} more" if others else "")


@command("models.ExportRequest")
def export(request: requests.ExportRequest) -> None:
    """Export a PyTorch model to ONNX and compare it with PyTorch.

    MODEL is a name of the collection (see `trtopt models`), a model file (TOML), or package.module:callable
    (or FILE.py:callable) that returns (module, {input name: example tensor}).
    """
    from trtopt.cli.console import phases, say
    from trtopt.workflows.models import export as run

    with phases(f"exporting {request.model}"):
        exported = run(request)
    say(*_exported_lines(exported))


def _exported_lines(exported: Exported) -> list[str]:
    lines = [f"{exported.path}: opset {exported.opset}, {exported.nodes} nodes"]
    if exported.external is not None:
        lines.append(f"  weights in {exported.external.name}: keep the two files together")
    for check in exported.checks:
        sizes = ", ".join(f"{name} {size}" for name, size in check.sizes.items()) or "fixed sizes"
        lines.append(f"  agrees with PyTorch at {sizes}: largest relative difference {check.worst:.1e}")
    return lines


@command("models.InspectRequest", synonyms=("describe", "info", "show", "summary"))
@json_option("trtopt.inspect", "what is in it")
def inspect(request: requests.InspectRequest) -> None:
    """Show what is in a model, an engine, a result file or a folder.

    Nothing is run, and no weights are read. PATH is an ONNX file, an engine, or what trtopt made: a build or
    sweep folder, a result file, a plan, a store of timing caches.
    """
    from trtopt.cli.console import phases, show_result, show_view
    from trtopt.workflows.inspect import inspect_shown

    with phases(f"inspecting {Path(request.path).name}") as listener:
        inspection, result = inspect_shown(replace(request, listener=listener))
    show_result(inspection)
    if result is not None:
        show_view(result.view)
    if inspection.capability is not None and not inspection.capability.is_shown:
        raise click.exceptions.Exit(NOT_MET if inspection.capability.refused else NOT_SHOWN)


_FINDINGS_SHOWN = 5
"""So many findings of a check are listed without -v."""


@command("models.LintRequest")
@json_option("trtopt.lint", "the findings")
@click.option(
    "--fail-on",
    metavar="CHECK,…",
    shell_complete=offer(lint_check_names, in_list=True),
    help="Exit with 3 if one of these checks (or `any`) finds something.",
)
def lint(request: requests.LintRequest, fail_on: str | None) -> None:
    """Show what slows a model down on TensorRT, and what to do.

    MODEL is an ONNX file.
    """
    from trtopt.cli.console import is_verbose, show_result
    from trtopt.errors import UsageError
    from trtopt.rewrite.lint import CHECKS, finding_lines, lint_model

    requested = {name.strip() for name in (fail_on or "").split(",") if name.strip()}
    known = {check.name for check in CHECKS}
    if unknown := requested - known - {"any"}:
        raise UsageError(
            f"there is no check {sorted(unknown)[0]!r}", f"choose of any, {', '.join(sorted(known))}"
        )
    report = lint_model(Path(request.model), target=request.target)
    show_result(report, [*finding_lines(report, None if is_verbose() else _FINDINGS_SHOWN)])
    found_names = {item.check for item in report.advice}
    if ("any" in requested and found_names) or requested & found_names:
        raise click.exceptions.Exit(NOT_MET)


def _explain_option(text: str) -> Callable[[Callable[..., Any]], Any]:
    return click.option("--explain", metavar="NODE", help=text)


@command(
    "models.RewriteRequest", optional=("model", "output"), synonyms=("fuse", "simplify", "slim", "surgeon")
)
@click.option("--list", "listing", is_flag=True, help="List the rules (with --json: as JSON) and exit.")
@_explain_option("Show what was done or declined at this node, and why.")
@json_option("trtopt.rewrite", "the trace")
def rewrite(request: requests.RewriteRequest | None, listing: bool, explain: str | None) -> None:
    """Rewrite an ONNX file so that TensorRT fuses more of it.

    What is written is checked to compute the same function as MODEL.
    """
    from trtopt.cli.console import perform, show_result
    from trtopt.errors import UsageError
    from trtopt.rewrite.rewrite_trace import of_node
    from trtopt.rewrite.rules import catalogue, catalogue_json
    from trtopt.workflows.models import rewrite as run

    if listing:
        if (json := requested_json()) is not None:
            json.write(f"{catalogue_json()}\n".encode())
        else:
            click.echo("\n".join(catalogue()))
        return
    if request is None:
        raise UsageError("a model and -o are needed", "trtopt rewrite MODEL.onnx -o OUT.onnx")
    work = partial(run, accept=lambda trace: explain is None or of_node(trace, explain))
    trace = perform(work, request, f"rewriting {Path(request.model).name}")
    show_result(trace, None if explain is None else of_node(trace, explain))


@command("models.ExtractRequest")
@json_option("trtopt.extraction")
def extract(request: requests.ExtractRequest) -> None:
    """Write a part of an ONNX file, from some of its tensors to others.

    The part's inputs and outputs have the types and shapes that they have in MODEL.
    """
    from trtopt.cli.console import show_result
    from trtopt.workflows.models import extract as run

    show_result(run(request))


@command("models.DiffRequest")
@json_option("trtopt.diff", "the differences")
def diff(request: requests.DiffRequest) -> None:
    """Show how two ONNX files differ: nodes, types, shapes, weights.

    Nodes are matched by what they compute, not by their names. Exits with 0 whether A and B differ or not;
    the JSON says it.
    """
    from trtopt.api import write_difference
    from trtopt.cli.console import phases, say, show_result
    from trtopt.workflows.models import diff as run

    with phases(f"comparing {Path(request.model).name} and {Path(request.other).name}"):
        found = run(request)
    show_result(found)
    if request.output is not None:
        write_difference(found, Path(request.output))
        say(f"trtopt: written: {request.output}", err=True)


@command("models.CastRequest", synonyms=("autocast", "fp16", "half"), more_precisions="quantize")
@_explain_option("Explain why this node became 16-bit or stayed FP32.")
@strict_option
@json_option("trtopt.cast")
def cast(request: requests.CastRequest, explain: str | None, strict: bool) -> None:
    """Write FP16 or BF16 into an ONNX file where that is safe.

    Shows which nodes of MODEL stay FP32, and why.
    """
    from trtopt.cli.console import perform, show_result
    from trtopt.report.precision import explain_cast
    from trtopt.workflows.precision.cast import cast as run

    work = partial(run, accept=lambda report: explain is None or explain_cast(report, explain))
    report = perform(work, request, f"casting {Path(request.model).name}")
    show_result(report, None if explain is None else explain_cast(report, explain))
    check_alarms(report.alarms if report.verified else ("it was not compared",), strict=strict)


@command(
    "models.QuantizeRequest",
    synonyms=("calibrate", "int8", "ptq", "quant", "quantise"),
    more_precisions="cast",
)
@_explain_option("Explain the decision on this node.")
@strict_option
@json_option("trtopt.quantization")
def quantize(request: requests.QuantizeRequest, explain: str | None, strict: bool) -> None:
    """Quantise an ONNX file to INT8, FP8 or INT4 with Q/DQ.

    Q/DQ pairs are written where TensorRT profits from them.
    """
    from trtopt.cli.console import phases, show_result
    from trtopt.report.precision import explain_quantization
    from trtopt.workflows.precision.quantize import quantize as run

    with phases(f"quantising {Path(request.model).name}") as listener:
        report = run(
            request.model,
            request.output,
            replace(request, listener=listener),
            lambda report: explain is None or explain_quantization(report, explain),
        )
    show_result(report, None if explain is None else explain_quantization(report, explain))
    check_alarms(report.alarms, strict=strict)


@command("models.CheckRequest", synonyms=("accuracy", "eval", "evaluate", "validate"))
@json_option("trtopt.check")
def check(request: requests.CheckRequest) -> None:
    """Compare a model or its engines with a reference: SQNR, top-1.

    MODEL is an ONNX file, a build folder or an engine in one; the reference is an ONNX file. Exits with 3 if
    a bound is not met.
    """
    from trtopt.cli.console import perform, show_result
    from trtopt.workflows.precision.check import check as run

    report = perform(run, request)
    show_result(report)
    if not report.passed:
        raise click.exceptions.Exit(NOT_MET)


@command("models.BisectRequest")
@json_option("trtopt.bisect", "the report, with the front and all nodes,")
def bisect(request: requests.BisectRequest) -> None:
    """Find which nodes must keep a higher precision for accuracy.

    The fewest nodes of MODEL with which the accuracy bounds are met. Exits with 3 if no set meets them.
    """
    from trtopt.cli.console import perform, show_result
    from trtopt.workflows.precision.bisect import bisect as run

    report = perform(run, request)
    show_result(report)
    if report.verdict == "not met":
        raise click.exceptions.Exit(NOT_MET)


@command("models.ReduceRequest")
@json_option("trtopt.reduce")
def reduce(request: requests.ReduceRequest) -> None:
    """Find the smallest part of a model that still fails.

    It fails as MODEL does, on the inputs that are written next to it. A run that was stopped continues where
    it was: its journal is next to the output.
    """
    from trtopt.cli.console import perform, show_result
    from trtopt.workflows.reduce import reduce as run

    show_result(perform(run, request))
