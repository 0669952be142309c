"""The commands that look after what is installed and built."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtopt.cli.declared import command, option
from trtopt.cli.outputs import (
    JsonOutput,
    Output,
    json_option,
    takes_stdout,
    write_json,
)
from trtopt.requests.build import VerifyRequest
from trtopt.requests.shared import CacheDir

if TYPE_CHECKING:
    from trtopt.files.outputs import Kind


@command(VerifyRequest)
@json_option("trtopt.verify", "the findings")
def verify(request: VerifyRequest, json: JsonOutput | None) -> None:
    """Check a build folder's hashes.

    Hashes every file of the build FOLDER again. Exits with 1 if something is missing or has changed.
    """
    from trtopt.cli.console import show_result
    from trtopt.report.build import check_lines
    from trtopt.workflows.build.folder import verify as run

    check = run(request)
    show_result(json, check, check_lines(str(request.folder), check))
    if not check.is_whole:
        click.get_current_context().exit(1)


_MIB = 2**20


@click.group()
def cache() -> None:
    """Manage the timing caches that builds share.

    There is one for each TensorRT, GPU, driver and settings.
    """


@cache.command("ls")
@option("cache_dir", CacheDir)
@json_option("trtopt.cache", "the entries, one per line,")
def list_caches(cache_dir: Path | None, json: JsonOutput | None) -> None:
    """List the caches, the latest used first."""
    from trtopt.cli.console import show
    from trtopt.report.build import caches_view
    from trtopt.workflows.build.timing_cache_commands import entries, store_folder

    cache_entries = entries(cache_dir)
    write_json(json, *cache_entries, indent=None)
    show(caches_view(cache_entries, str(store_folder(cache_dir))), err=takes_stdout(json))


@cache.command("prune")
@option("cache_dir", CacheDir)
@click.option("--max-size", type=click.IntRange(min=0), metavar="MIB", help="Size to keep [default: 2048].")
def prune_caches(cache_dir: Path | None, max_size: int | None) -> None:
    """Remove damaged caches, then the least recently used ones."""
    from trtopt.cli.console import say
    from trtopt.workflows.build import timing_cache_commands as caches

    limit = {} if max_size is None else {"limit_bytes": max_size * _MIB}
    removed = caches.prune(cache_dir=cache_dir, **limit)
    say(*(f"removed {path.name}" for path in removed) if removed else ("nothing to remove",))


def bundle_file(path: Path) -> Mapping[Path, Kind]:
    """The zip of a bug report."""
    from trtopt.workflows.doctor import BUNDLE

    return {path: BUNDLE}


@click.command()
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(exists=True, path_type=Path))
@json_option("trtopt.doctor", "the findings")
@click.option(
    "--bundle",
    type=Output(bundle_file),
    metavar="FILE.zip",
    help="Pack the data for a bug report, with the build folder DIR; read it before you send it.",
)
def doctor(folder: Path | None, json: JsonOutput | None, bundle: Path | None) -> None:
    """Show what is installed and which commands work here.

    Shows what to install for the others too. With --bundle all of that is packed, with the versions of all
    packages, the names (never the values) of environment variables and the manifest, logs and layers of DIR.
    The home folder, the names of user and host and apparent secrets of the environment are removed from every
    file.
    """
    from trtopt.cli.console import say, say_wrapped
    from trtopt.errors import UsageError
    from trtopt.report.doctor import doctor_lines
    from trtopt.workflows.doctor import survey, write_bundle

    if folder is not None and bundle is None:
        raise UsageError(f"{folder}: a folder is packed only with --bundle", "add --bundle FILE.zip")
    findings = survey()
    write_json(json, findings)
    if bundle is None:
        say_wrapped(*doctor_lines(findings), err=takes_stdout(json))
    else:
        for name in write_bundle(bundle, findings, folder):
            say(f"trtopt: packed {name}", err=True)


_COMPLETION_FILES = {
    "bash": "trtopt completion bash > ~/.local/share/bash-completion/completions/trtopt",
    "zsh": 'trtopt completion zsh > "${fpath[1]}/_trtopt"',
    "fish": "trtopt completion fish > ~/.config/fish/completions/trtopt.fish",
}
"""By shell: how to install its script."""


@click.command()
@click.argument("shell", type=click.Choice(list(_COMPLETION_FILES)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands in a shell.

    It completes options and files too. Standard error shows how to install it; a new shell then has it.
    """
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    assert script is not None  # click brings these three
    root = context.find_root().command
    click.echo(script(root, {}, "trtopt", "_TRTOPT_COMPLETE").source())
    click.echo(f"trtopt: to install: {_COMPLETION_FILES[shell]}", err=True)
