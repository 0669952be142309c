"""The commands that look after what is installed and built."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from trtopt.cli.command import Group, command
from trtopt.cli.outputs import json_option, write_json

if TYPE_CHECKING:
    from trtopt.requests.build import CacheRequest, VerifyRequest


@command("build.VerifyRequest")
@json_option("trtopt.verify", "the findings")
def verify(request: VerifyRequest) -> None:
    """Check a build folder's hashes.

    Hashes every file of the build FOLDER again. Exits with 1 if something is missing or has changed.
    """
    from trtopt.cli.console import show_result
    from trtopt.report.build import folder_view
    from trtopt.workflows.build.folder import verify as run

    check = run(request)
    show_result(check, folder_view(check, str(request.folder)))
    if not check.is_whole:
        click.get_current_context().exit(1)


_MIB = 2**20


@click.group(cls=Group)
def cache() -> None:
    """Manage the timing caches that builds share.

    There is one for each TensorRT, GPU, driver and settings.
    """


@cache.command("ls", request="build.CacheRequest")
@json_option("trtopt.cache", "the entries, one per line,", indent=None)
def list_caches(request: CacheRequest) -> None:
    """List the caches, the latest used first."""
    from trtopt.cli.console import show
    from trtopt.report.build import caches_view
    from trtopt.workflows.cache_folder import entries, store_folder

    cache_entries = entries(request.cache_dir)
    write_json(*cache_entries)
    show(caches_view(cache_entries, str(store_folder(request.cache_dir))))


@cache.command("prune", request="build.CacheRequest")
@click.option("--max-size", type=click.IntRange(min=0), metavar="MIB", help="Size to keep [default: 2048].")
def prune_caches(request: CacheRequest, max_size: int | None) -> None:
    """Remove damaged caches, then the least recently used ones."""
    from trtopt.cli.console import say
    from trtopt.workflows import cache_folder as caches

    limit = {} if max_size is None else {"limit_bytes": max_size * _MIB}
    removed = caches.prune(cache_dir=request.cache_dir, **limit)
    say(*(f"removed {path.name}" for path in removed) if removed else ("nothing to remove",))


@command(synonyms=("env",))
@json_option("trtopt.doctor", "the findings")
def doctor() -> None:
    """Show what is installed and which commands work here.

    Shows what to install for the others too.
    """
    from trtopt.cli.console import say_wrapped
    from trtopt.report.doctor import doctor_lines
    from trtopt.workflows.provenance import survey

    findings = survey()
    write_json(findings)
    say_wrapped(*doctor_lines(findings))


_COMPLETION_FILES = {
    "bash": "trtopt completion bash > ~/.local/share/bash-completion/completions/trtopt",
    "zsh": 'trtopt completion zsh > "${fpath[1]}/_trtopt"',
    "fish": "trtopt completion fish > ~/.config/fish/completions/trtopt.fish",
}
"""By shell: how to install its script."""


@command()
@click.argument("shell", type=click.Choice(list(_COMPLETION_FILES), case_sensitive=False))
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
