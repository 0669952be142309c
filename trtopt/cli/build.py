"""`trtopt build`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import click
from click.core import ParameterSource

from trtopt.cli.declared import command
from trtopt.cli.exit_codes import check_alarms, strict_option
from trtopt.cli.options.outputs import JsonOutput, json_option, takes_stdout, write_json
from trtopt.requests.build import BuildRequest

_ALLOWED_WITH_LOCKED = ("locked", "output", "plugins")
"""A manifest can name any plugin: the user decides which are loaded."""


@command(BuildRequest, has_sections=True, optional=("model",))
@click.option("--allow-fallback", is_flag=True, help="Accept layers that ran wider than the graph requests.")
@json_option("trtopt.build", "the manifest")
@strict_option
@click.option(
    "--locked",
    metavar="BUILD_DIR",
    type=click.Path(exists=True, path_type=Path),
    help="Build again what a folder's manifest describes, and show the differences.",
)
@click.pass_context
def build(
    context: click.Context,
    request: BuildRequest | None,
    allow_fallback: bool,
    json: JsonOutput | None,
    strict: bool,
    locked: Path | None,
) -> None:
    """Build engines from MODEL, an ONNX file, into a folder.

    The folder holds one engine per batch size (or one dynamic engine), the ONNX file they were built from,
    their logs and manifest.json. Fails if more than 1 % of an engine's weights run in a wider type than the
    graph requests, where TensorRT reports types. For FP16 on TensorRT 8.6 the limit is half of the weights,
    because it may choose FP32 where that is faster. What measured fastest fails only with --strict.
    """
    from trtopt.cli.console import show, show_notes, warn
    from trtopt.cli.progress import listening
    from trtopt.report.build import build_view, engine_lines, engine_notes
    from trtopt.report.notes import plain
    from trtopt.report.precision import verdict_view
    from trtopt.report.profile import build_memory_lines, receipt_lines
    from trtopt.workflows.build.build import default_output
    from trtopt.workflows.build.folder import check_receipts, memories_of, receipts_of
    from trtopt.workflows.requested import build as run

    if locked is not None:
        _refuse_other_options(context)
        _rebuild(locked, context.params["output"], context.params["plugins"] or ())
        return
    if request is None:
        raise click.UsageError("give MODEL, an ONNX file, or --locked BUILD_DIR")
    target = Path(request.output or default_output(Path(request.model)))
    sizes = cast("tuple[tuple[int, ...], ...]", request.batch or ())
    is_one = len(sizes) == 1
    request = replace(request, batch=sizes[0] if is_one else None, ranges=None if is_one else sizes or None)
    with listening() as listener:
        manifest = run(replace(request, output=target), listener)
    receipts = receipts_of(target, manifest)
    memories = memories_of(target, manifest)
    write_json(json, manifest)
    warn(manifest.alarms)
    verdicts = [] if manifest.verdict is None else [manifest.verdict]
    show(
        build_view(manifest, str(target)),
        engine_lines({name: receipt_lines(one) for name, one in receipts.items()}),
        engine_lines({name: build_memory_lines(one) for name, one in memories.items()}),
        *map(verdict_view, verdicts),
        err=takes_stdout(json),
    )
    verdict_notes = [note for one in verdicts for note in one.notes]
    notes = dict.fromkeys((*manifest.notes, *engine_notes(manifest), *verdict_notes))
    show_notes(plain(notes), err=takes_stdout(json))
    if not allow_fallback:
        was_measured = manifest.verdict is not None and not strict
        show_notes(plain(check_receipts(receipts, was_measured=was_measured)), err=takes_stdout(json))
    check_alarms(manifest.alarms, strict=strict)


def _refuse_other_options(context: click.Context) -> None:
    options_given = [
        parameter.get_error_hint(context)
        for parameter in context.command.params
        if parameter.name not in _ALLOWED_WITH_LOCKED
        and context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    ]
    if options_given:
        raise click.UsageError(
            f"--locked takes everything from the manifest: omit {', '.join(options_given)}"
        )


def _rebuild(source: Path, output: Path | None, plugins: tuple[str, ...]) -> None:
    from trtopt.cli.console import say, show_view, warn
    from trtopt.cli.progress import listening
    from trtopt.report.build import build_view, change_lines
    from trtopt.workflows.build.folder import rebuild_locked, rebuilt_name

    target = output or rebuilt_name(source)
    with listening() as listener:
        manifest, changes = rebuild_locked(source, target, listener, plugins)
    warn(manifest.alarms)
    show_view(build_view(manifest, str(target)))
    say(*change_lines(changes))
