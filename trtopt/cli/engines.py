"""The commands that find, build and measure engines."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click
from click.core import ParameterSource

from trtopt.cli.command import Group, command
from trtopt.cli.outputs import (
    NOT_MET,
    NOT_SHOWN,
    OWN,
    UNTRUSTWORTHY,
    VERBOSITY,
    Export,
    Output,
    check_alarms,
    end_gate,
    export_option,
    file_of,
    gate,
    json_option,
    markdown_option,
    strict_option,
    takes_stdout,
    write_json,
)
from trtopt.errors import TrtoptError
from trtopt.targets import TENSORRT, targets_where

if TYPE_CHECKING:
    from trtopt.files.outputs import Kind
    from trtopt.peers.options import Translation
    from trtopt.records import BenchReport
    from trtopt.requests import build as building, measure as measuring


@command("build.OptimizeRequest", synonyms=("auto", "optimise"), more_precisions="build")
@json_option("trtopt.optimize", "the result")
@click.pass_context
def optimize(context: click.Context, request: building.OptimizeRequest) -> None:
    """Find the fastest engine within your latency and accuracy bounds.

    Lints and rewrites MODEL, an ONNX file, builds engines, measures them, compares their outputs with those
    of MODEL and writes report.html into the build folder. With --data the precision is chosen too, where
    engines can be measured. Exits with 3 if a bound is missed, and with 5 if that is open.
    """
    from trtopt.cli.console import perform, show_result
    from trtopt.workflows.optimize import optimize as run

    found = perform(run, request)
    show_result(found)
    _write_report(Path(found.folder))
    if not found.met:
        raise click.exceptions.Exit(NOT_MET)
    asks_accuracy = context.get_parameter_source("min_cosine") is ParameterSource.COMMANDLINE
    if not found.is_goal_shown or (asks_accuracy and not found.has_run_engines):
        raise click.exceptions.Exit(NOT_SHOWN)


def _write_report(folder: Path) -> None:
    """The page of a build just made, without what an earlier build left; or what is missing for it."""
    from trtopt.cli.console import say
    from trtopt.errors import BackendMissingError
    from trtopt.requests.measure import ReportRequest

    try:
        _write_page(ReportRequest(folder, output=folder / "report.html"), leave_out_others=True)
    except BackendMissingError as error:
        say(f"trtopt: no report page: {error.problem}; {error.remedy}", err=True)


_ALLOWED_WITH_LOCKED = ("locked", "output", "plugins")
"""A manifest can name any plugin: the user decides which are loaded."""


@command("build.BuildRequest", optional=("model",), synonyms=("compile", "convert", "engine"))
@click.option(
    "--allow-fallback",
    is_flag=True,
    help="Accept layers that ran wider than the graph requests.",
)
@json_option("trtopt.build", "the manifest")
@strict_option
@click.pass_context
def build(
    context: click.Context, request: building.BuildRequest | None, allow_fallback: bool, strict: bool
) -> None:
    """Build one engine per batch size from an ONNX file.

    The build folder holds one engine per batch size (or one dynamic engine), the ONNX file they were built
    from, their logs and manifest.json.

    Fails if more than 1 % of an engine's weights run in a wider type than the graph requests, where TensorRT
    reports types. For FP16 on TensorRT 8.6 the limit is half of the weights, because it may choose FP32 where
    that is faster. What measured fastest fails only with --strict.
    """
    from trtopt.cli.console import perform, show_notes, show_result
    from trtopt.report.build import build_view
    from trtopt.report.precision import verdict_view
    from trtopt.report.profile import receipt_blocks
    from trtopt.report.view import View, plain
    from trtopt.workflows.build.build import build as run, default_output
    from trtopt.workflows.build.folder import check_receipts, receipts_of

    locked = context.params["locked"]
    if locked is not None and locked.is_dir():
        _refuse_other_options(context)
        _rebuild(locked, context.params["output"], context.params["plugins"] or ())
        return
    if request is None:
        raise click.UsageError("give MODEL, an ONNX file, or --locked BUILD_DIR")
    target = Path(request.output or default_output(Path(request.model)))
    sizes = cast("tuple[tuple[int, ...], ...]", request.batch or ())
    is_one = len(sizes) == 1
    request = replace(request, batch=sizes[0] if is_one else None, ranges=None if is_one else sizes or None)
    manifest = perform(run, replace(request, output=target))
    receipts = receipts_of(target, manifest)
    built = build_view(manifest, str(target))
    blocks = [*built.blocks]
    for name, one in receipts.items():
        blocks += receipt_blocks(one, name)
    notes = [*manifest.notes, *(note for engine in manifest.engines for note in engine.notes)]
    if manifest.verdict is not None:
        blocks += verdict_view(manifest.verdict).blocks
        notes += manifest.verdict.notes
    view = View(built.title, blocks, plain(dict.fromkeys(notes)))
    show_result(manifest, view)
    if not allow_fallback:
        was_measured = manifest.verdict is not None and not strict
        show_notes(plain(check_receipts(receipts, was_measured=was_measured)))
    check_alarms(manifest.alarms, strict=strict)


def _refuse_other_options(context: click.Context) -> None:
    options_given = [
        parameter.get_error_hint(context)
        for parameter in context.command.params
        if parameter.expose_value  # how loud it is, and what is written besides, are no settings
        and parameter.name not in (*_ALLOWED_WITH_LOCKED, *OWN)
        and context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    ]
    if options_given:
        raise click.UsageError(
            f"--locked takes everything from the manifest: omit {', '.join(options_given)}"
        )


def _rebuild(source: Path, output: Path | None, plugins: tuple[str, ...]) -> None:
    from trtopt.cli.console import listening, say, show_result
    from trtopt.report.build import build_view
    from trtopt.workflows.build.folder import rebuild_locked

    target = output or Path(f"{source.resolve().name}.rebuilt")  # in the current folder
    with listening() as listener:
        manifest, changes = rebuild_locked(source, target, listener, plugins)
    show_result(manifest, build_view(manifest, str(target)))
    say(*(changes or ["the rebuild is the same in versions, machine, settings and hashes"]))


@command(
    "measure.BenchRequest", synonyms=("benchmark", "infer", "inference", "measure", "perf", "run", "time")
)
@click.option(
    "--strict",
    is_flag=True,
    help="Exit with 4 if a figure is not trustworthy, or unsteady.",
)
@json_option("trtopt.bench", "the result, raw samples included,", indent=None)
@click.option(
    "--export-times",
    type=Output(file_of("peers.trtexec_files.TIMES")),
    metavar="FILE",
    help="Write latencies as trtexec --exportTimes does; several batch sizes: FILE.batchN each.",
)
@click.option(
    "--export-profile",
    type=Output(file_of("peers.trtexec_files.LAYERS")),
    metavar="FILE",
    help="Write layer times as trtexec --exportProfile does; turns on --layers.",
)
def bench(
    request: measuring.BenchRequest, strict: bool, export_times: Path | None, export_profile: Path | None
) -> None:
    """Measure latency and throughput of engines or of an ONNX file.

    PATH is a build folder, one engine of it, or an ONNX file. With `--json -` the table goes to standard
    error. If an engine fails, earlier measurements are kept. Exits with 3 if no rate keeps a given latency.
    """
    from trtopt.cli.console import listening, show_result
    from trtopt.report.bench import bench_view, distrust, is_trustworthy
    from trtopt.workflows.bench.bench import bench as run

    request = replace(request, layers=request.layers or export_profile is not None)
    latest: BenchReport | None = None

    def save(report: BenchReport) -> None:
        """After every engine: a later failure must not take finished measurements along."""
        nonlocal latest
        latest = report
        if not takes_stdout():
            write_json(report)

    def finish() -> None:
        if latest is not None:
            _export_as_trtexec_does(latest, export_times, export_profile)
            view, alarms = bench_view(latest, Path(request.path).name), distrust([latest])
            show_result(latest, view, alarms=alarms)

    try:
        with listening(save) as listener:
            report = run(replace(request, listener=listener))
    except TrtoptError:
        finish()
        raise
    finish()
    if strict and not is_trustworthy(report):
        raise click.exceptions.Exit(UNTRUSTWORTHY)
    searches = [point.load_search for point in report.points if point.load_search is not None]
    if searches and all(search.rate is None for search in searches):
        raise click.exceptions.Exit(NOT_MET)


def _export_as_trtexec_does(report: BenchReport, times: Path | None, profile: Path | None) -> None:
    from trtopt.files.outputs import write_output
    from trtopt.peers import trtexec_files as layouts

    for point in report.points:
        if times is not None and point.latency.staged.start_ms:  # none: it failed before the first report
            file = layouts.path_for(times, point.batch, len(report.points))
            write_output(file, layouts.times(point.latency.staged), layouts.TIMES)
        if profile is not None and point.layers is not None:
            file = layouts.path_for(profile, point.batch, len(report.points))
            write_output(file, layouts.profile(point.layers), layouts.LAYERS)


def profile_files(folder: Path) -> Mapping[Path, Kind]:
    """The files of a profile in their folder; before that is there, the folder itself."""
    from trtopt.files.outputs import json_kind, kind_beginning
    from trtopt.report.trace import TRACE_BEGINS
    from trtopt.workflows.profile.profile import PROFILE_FILE, TRACE_FILE

    report, trace = json_kind("trtopt.profile"), kind_beginning("profile's trace", TRACE_BEGINS)
    return (
        {folder / PROFILE_FILE: report, folder / TRACE_FILE: trace} if folder.is_dir() else {folder: report}
    )


@command("measure.ProfileRequest", synonyms=("analyse", "analyze", "nsys"))
@click.option(
    "-o",
    "--output",
    type=Output(profile_files),
    metavar="FOLDER",
    help="Folder to write profile.json into.",
)
@click.option(
    "--trace", "with_trace", is_flag=True, help="Write trace.json for Perfetto next to profile.json."
)
@json_option("trtopt.profile", "the profile", indent=None)
def profile(request: measuring.ProfileRequest, output: Path | None, with_trace: bool) -> None:
    """Show where an engine's time goes, layer by layer, and why.

    PATH is a build folder, one engine of it, or an ONNX file, whose names the layers have. Shows also which
    types ran; what fused, what did not and why; and how far each layer is from the device's limits.
    """
    from trtopt.cli.console import perform, show_result
    from trtopt.errors import UsageError
    from trtopt.files.outputs import write_output
    from trtopt.records import to_json
    from trtopt.report.trace import trace
    from trtopt.workflows.profile.profile import PROFILE_FILE, TRACE_FILE, profile as run

    if with_trace and output is None:
        raise UsageError("--trace: no folder to write trace.json into", "name one with -o")
    report = perform(run, request)
    if output is not None:
        output.mkdir(exist_ok=True)
        kinds = profile_files(output)
        write_output(output / PROFILE_FILE, to_json(report, indent=None), kinds[output / PROFILE_FILE])
        if with_trace:
            write_output(output / TRACE_FILE, trace(report), kinds[output / TRACE_FILE])
    show_result(report)


@command("measure.CompareRequest")
@markdown_option
@json_option("trtopt.compare", "the comparison, raw samples included,", indent=None)
@export_option
def compare(request: measuring.CompareRequest, markdown: bool, export: tuple[Export, ...]) -> None:
    """Compare results, engines or builds: faster, slower or the same.

    A, the baseline, and B are result files of `trtopt bench`, or build folders or engines, which take turns
    in one process. With --builds K the engines of two build folders are built K times again.

    Verdicts on latency: FASTER, SLOWER, SAME or UNDECIDED, each with its reasons. Exits with 3 if B is slower
    at any batch size, and with 5 if B is not shown to be within --fail-on of A, so that it can gate a CI.
    --upgrade compares the results, layers, memory and build time of two builds of a model too: results that
    rounding does not explain exit with 3.

    --control needs no B, nor does --across-contracts, which explains the contracts of one engine.
    """
    from trtopt.cli.console import perform, show_result
    from trtopt.errors import DeviceError, UsageError
    from trtopt.workflows.compare.compare import compare as run

    if request.b is None and export:
        raise UsageError("--export: there is no B to give a verdict on", "give B, or omit --export")
    with gate("compare", export):
        compared = perform(run, request)
        view = compared.view
        show_result(compared, view.markdown().splitlines() if markdown else None)
        if compared.failure is not None:
            raise DeviceError(
                compared.failure, "earlier measurements are kept; check the GPU with nvidia-smi"
            )
        if request.b is not None:
            end_gate(export, view.gate)


@command("measure.ExplainRequest")
@json_option("trtopt.explanation", "the causes")
def explain(request: measuring.ExplainRequest) -> None:
    """Show why one engine is slower or faster than another.

    A and B are build folders, engines in one or ONNX files, which are profiled here, or what `trtopt profile
    -o` wrote, for which no GPU is needed. Shows the change of the latency as a sum of causes, each with its
    milliseconds, ONNX nodes and what may save them; then the kernels or layers that were replaced.
    """
    from trtopt.cli.console import perform, show_result
    from trtopt.workflows.profile.explain import explain as run

    show_result(perform(run, request))


@click.group(cls=Group)
def history() -> None:
    """Keep results over time, and find where they changed.

    A history is a folder for one model, with a copy of each result of `trtopt bench`.
    """


@history.command("add", request="measure.HistoryAddRequest")
def add_results(request: measuring.HistoryAddRequest) -> None:
    """Add results to a history.

    A result that is in it already stays there once. Several hosts may add at the same time.
    """
    from trtopt.cli.console import say
    from trtopt.workflows.history import add_to_history

    say(*(f"added: {path}" for path in add_to_history(request)))


@history.command("show", request="measure.HistoryRequest")
@json_option("trtopt.history", "the series, their runs and changes,")
def show_history(request: measuring.HistoryRequest) -> None:
    """Show every series, and each change with what else changed there."""
    from trtopt.cli.console import show_result
    from trtopt.workflows.history import history as run

    show_result(run(request))


@history.command("check", request="measure.HistoryRequest")
@json_option("trtopt.history", "the series, their runs and changes,")
@markdown_option
@export_option
def check_history(request: measuring.HistoryRequest, markdown: bool, export: tuple[Export, ...]) -> None:
    """Judge the newest result, or RESULT, for a CI.

    Exits with 3 if a series is slower than before, until twenty runs are at the new level, and with 5 if that
    is not decided: too few runs, figures that are missing, a newer file that cannot be read, or slow runs,
    too few for a change.
    """
    from trtopt.cli.console import show_result
    from trtopt.workflows.history import history as run

    with gate("history check", export):
        report = run(request)
        view = report.view
        show_result(report, view.markdown().splitlines() if markdown else None)
        end_gate(export, view.gate)


@command("build.SweepRequest", synonyms=("grid", "scan"))
@json_option("trtopt.sweep")
def sweep(request: building.SweepRequest) -> None:
    """Build and measure many batch sizes and precisions.

    MODEL, an ONNX file, is built and measured at every combination of the given values.

    The folder holds sweep.json, sweep.csv, build folders and a result file for each point. The same command
    continues an interrupted sweep, and measures nothing twice. `trtopt report FOLDER` draws the curves.
    """
    from trtopt.cli.console import perform, say, show_result
    from trtopt.workflows.sweep.sweep import sweep as run

    try:
        report = perform(run, request)
    except KeyboardInterrupt:
        say("trtopt: run the same command again to continue after the measured points", err=True)
        raise
    show_result(report)


@command("build.TuneRequest", synonyms=("autotune", "search"))
@json_option("trtopt.tuned", "the result")
def tune(request: building.TuneRequest) -> None:
    """Search for a faster engine within a budget of time.

    Tries candidates for MODEL, an ONNX file, one by one, the highest expected gain per second first. Each is
    checked for accuracy and raced against the best so far.

    Candidates are precisions and forms of INT8; builder settings; rewrite rules; batch sizes, streams;
    further builds. Deploy the folder: a build folder of the best engine. ledger.json in it lists every
    candidate with the predicted and the measured gain. Exits with 3 if the baseline misses the accuracy
    bound.
    """
    from trtopt.cli.console import perform, say, show_result
    from trtopt.workflows.tune.setup import default_folder
    from trtopt.workflows.tune.tune import tune as run
    from trtopt.workflows.tune.tuned_folder import LEDGER

    try:
        tuned = perform(run, request)
    except KeyboardInterrupt:
        if Path(request.output or default_folder(Path(request.model))).joinpath(LEDGER).is_file():
            say("trtopt: run the same command with --resume to continue after the candidates tried", err=True)
        raise
    show_result(tuned)


@command("measure.ReportRequest", synonyms=("html", "page", "plot", "visualise", "visualize"))
def report(request: measuring.ReportRequest) -> None:
    """Write a folder's builds, results and profiles as an HTML page.

    The page needs no network. DIR holds what `trtopt build -o DIR`, `trtopt bench --json DIR/bench.json` and
    `trtopt profile -o DIR` write, all of it or some; or it is a sweep's folder. With a second folder the page
    shows both side by side, DIR_B against the baseline DIR.
    """
    _write_page(request)


def _write_page(request: measuring.ReportRequest, *, leave_out_others: bool = False) -> None:
    """Write a page, and show its name."""
    from trtopt.api import write_page
    from trtopt.cli.console import phases, say

    with phases(f"writing the page of {Path(request.folder).resolve().name}"):
        file = write_page(request, leave_out_others=leave_out_others)
    say(f"trtopt: written: {file}", err=True)


# ── commands that consist of others ─────────────────────────────────────────────────────────────────────


def _as_loud(context: click.Context, words: Sequence[str]) -> tuple[str, ...]:
    """The words of another command, as loud as this one if they do not say how loud."""
    verbosity = context.meta.get(VERBOSITY, 0)
    own = ["-q"] if verbosity < 0 else ["-v"] * verbosity
    return tuple(words) if {"-v", "-vv", "-q"} & {*words} else (*words, *own)


def _run_command(context: click.Context, words: Sequence[str]) -> None:
    """Run another command of trtopt; end with its exit code if it fails."""
    words = _as_loud(context, words)
    status = context.find_root().command.main([*words], prog_name="trtopt", standalone_mode=False)
    if status:
        context.exit(status)


@command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="ARGS…")
@click.option("--print", "only_print", is_flag=True, help="Print trtopt's command lines and exit.")
@click.option(
    "--from",
    "written_for",
    type=click.Choice(targets_where(lambda row: row.backend == TENSORRT)),
    help="The version of trtexec that ARGS were written for [default: inferred from them].",
)
@click.option("--data", metavar="DATA", help="Samples: to calibrate on, and as inputs.")
@click.pass_context
def trtexec(
    context: click.Context,
    arguments: tuple[str, ...],
    only_print: bool,
    written_for: str | None,
    data: str | None,
) -> None:
    """Translate a trtexec command line, and run it.

    ARGS is a command line of trtexec 8.6, 10 or 11: `trtopt trtexec --onnx=model.onnx --fp16
    --saveEngine=model.engine` builds and measures. Options that have no effect here are listed; those that
    cannot be translated are refused, with what to do instead.
    """
    from trtopt.peers.trtexec import translate

    own = ["--verbose"] if context.meta.get(VERBOSITY, 0) > 0 else []  # trtexec has it too
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = translate([*arguments, *own], written_for=written_for, data=data, visible=visible)
    _run_translated(context, found, only_print=only_print)


@command(context_settings={"allow_interspersed_args": False})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="TOOL ARGS…", required=True)
@click.option("--print", "only_print", is_flag=True, help="Print trtopt's command lines and exit.")
@click.pass_context
def polygraphy(context: click.Context, arguments: tuple[str, ...], only_print: bool) -> None:
    """Translate a Polygraphy command line, and run it.

    TOOL ARGS is a command line of Polygraphy 0.49 to 0.53: `trtopt polygraphy run model.onnx --trt --onnxrt`
    builds and compares. Options that have no effect here are listed; tools and options that cannot be
    translated are refused, with what to do instead.
    """
    from trtopt.peers.polygraphy import translate

    if not {"-h", "--help"}.isdisjoint(arguments):
        click.echo(context.get_help())
        return
    own = [word for word in arguments if word != "--print"]  # no tool of Polygraphy has it
    _run_translated(context, translate(own), only_print=only_print or len(own) < len(arguments))


def _run_translated(context: click.Context, found: Translation, *, only_print: bool) -> None:
    from trtopt.cli.console import note, say

    found = replace(found, commands=tuple(_as_loud(context, words) for words in found.commands))
    for text in found.notes:
        note(text)
    if only_print:
        say(*found.lines)
        return
    os.environ.update(found.environment)
    for words, line in zip(found.commands, found.lines, strict=True):
        say(f"trtopt: {line}", err=True)
        try:
            _run_command(context, words)
        except TrtoptError as error:
            if re.search(r"(?<!\S)-{1,2}[a-z]", error.remedy):
                error.remedy += (
                    f"; options of trtopt go to the command above, not to `trtopt {context.info_name}`"
                )
            raise


_DEMO = "trtopt-demo"


@command()
@click.option(
    "-o",
    "--output",
    type=Output(),
    metavar="FOLDER",
    help=f"Folder to create [default: {_DEMO} in the current folder, or {_DEMO}-2 and so on].",
)
@click.pass_context
def demo(context: click.Context, output: Path | None) -> None:
    """Build and measure a small model that ships with trtopt.

    Runs `trtopt optimize`, which writes a report too, with what is installed: TensorRT or TensorRT-RTX to
    build, a GPU or ONNX Runtime to measure.
    """
    from trtopt.cli.console import say
    from trtopt.errors import BackendMissingError, OutputError
    from trtopt.files.bounded_reading import shipped_folder

    folder = output if output is not None else _free_folder(Path(_DEMO))
    if folder.exists():
        raise OutputError(f"{folder}: exists", "name a new folder with --output")
    model = shipped_folder("models") / "digits" / "digits.onnx"
    words = ["optimize", str(model), "-o", str(folder), "--duration", "0.5"]
    try:
        _run_command(context, words)
    except BackendMissingError as error:
        say(f"trtopt: {error.problem}: the demo runs on ONNX Runtime instead", err=True)
        _run_command(context, [*words, "--backend", "onnxruntime"])
    say(f"trtopt: the engines are in {folder}; next: trtopt optimize MODEL.onnx", err=True)


def _free_folder(first: Path) -> Path:
    """The first of `trtopt-demo`, `trtopt-demo-2` and so on that does not exist."""
    names = (first if number == 1 else first.with_name(f"{first.name}-{number}") for number in count(1))
    return next(name for name in names if not name.exists())
