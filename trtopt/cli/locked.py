"""`trtopt build --locked`: everything comes from a manifest, so other options are refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

_ALLOWED = ("locked", "output", "plugins")
"""Options allowed with --locked. A manifest can name any plugin: the user decides which are loaded."""


def or_locked(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--locked BUILD_DIR`, which replaces MODEL and every option but `_ALLOWED`."""

    @functools.wraps(command)
    def either(locked: Path | None, model: Path | None, output: Path | None, **options: Any) -> Any:
        if locked is not None:
            _refuse_other_options()
            return _rebuild(locked, output, click.get_current_context().params["plugins"] or ())
        if model is None:
            raise click.UsageError("give MODEL, an ONNX file, or --locked BUILD_DIR")
        return command(model=model, output=output, **options)

    return click.option(
        "--locked",
        metavar="BUILD_DIR",
        type=click.Path(exists=True, path_type=Path),
        help="Build again what a folder's manifest describes, and show the differences.",
    )(either)


def _refuse_other_options() -> None:
    context = click.get_current_context()
    options_given = [
        parameter.get_error_hint(context)
        for parameter in context.command.params
        if parameter.name not in _ALLOWED
        and context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    ]
    if options_given:
        raise click.UsageError(
            f"--locked takes everything from the manifest: omit {', '.join(options_given)}"
        )


def _rebuild(source: Path, output: Path | None, plugins: tuple[str, ...]) -> None:
    from trtopt.cli.console import say, show, show_notes, warn
    from trtopt.cli.progress import listening
    from trtopt.report.notes import plain
    from trtopt.report.text import build_summary
    from trtopt.report.verifying import change_lines
    from trtopt.workflows.build.rebuild import rebuild_locked, rebuilt_name

    target = output or rebuilt_name(source)
    with listening() as listener:
        manifest, changes = rebuild_locked(source, target, listener, plugins)
    warn(manifest.alarms)
    show(build_summary(manifest, str(target)))
    show_notes(plain(manifest.notes))
    say(*change_lines(changes))
