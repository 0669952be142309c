"""`trtopt cache`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtopt.cli.declared import option
from trtopt.cli.options.outputs import JsonOutput, json_option, output_option, takes_stdout, write_json
from trtopt.requests.shared import CacheDir

if TYPE_CHECKING:
    from trtopt.files.outputs import Kind

_MIB = 2**20


def cache_file(path: Path) -> Mapping[Path, Kind]:
    """A timing cache; TensorRT's own data, of --raw, does not show who wrote it."""
    from trtopt.builder.timing_cache import CACHE

    return {path: CACHE}


@click.group()
def cache() -> None:
    """Manage the timing caches that builds share, one for each TensorRT, GPU, driver and settings."""


@cache.command("ls")
@option("cache_dir", CacheDir)
@json_option("trtopt.cache", "the entries, one per line,")
def ls(cache_dir: Path | None, json: JsonOutput | None) -> None:
    """List the caches, the latest used first."""
    from trtopt.cli.console import show as display
    from trtopt.report.build import caches_view
    from trtopt.workflows.build.timing_cache_commands import entries, store_folder

    cache_entries = entries(cache_dir)
    write_json(json, *cache_entries, indent=None)
    if not takes_stdout(json):
        display(caches_view(cache_entries, str(store_folder(cache_dir))))


@cache.command()
@click.argument("name")
@option("cache_dir", CacheDir)
@click.option("--tactics", "with_tactics", is_flag=True, help="List its entries (TensorRT 10.8 and newer).")
@click.option("--against", metavar="NAME|FILE", help="Show how its tactics differ from another cache's.")
@json_option("trtopt.cache", "the entry")
def show(
    name: str, cache_dir: Path | None, with_tactics: bool, against: str | None, json: JsonOutput | None
) -> None:
    """Show where and by which builds the cache NAME (or a part of its name) was made."""
    from trtopt.cli.console import show as display
    from trtopt.report.build import cache_view, difference_view, tactics_view
    from trtopt.workflows.build import timing_cache_commands as caches

    if against is not None:
        display(difference_view(caches.difference(name, against, cache_dir)))
    elif with_tactics:
        display(tactics_view(caches.tactics(name, cache_dir)))
    else:
        entry = caches.entry(name, cache_dir)
        write_json(json, entry)
        if not takes_stdout(json):
            display(cache_view(entry))


@cache.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@option("cache_dir", CacheDir)
def merge(files: tuple[Path, ...], cache_dir: Path | None) -> None:
    """Add exported caches FILES to the store; TensorRT merges those that have a counterpart."""
    from trtopt.cli.console import say
    from trtopt.workflows.build.timing_cache_commands import take_in

    for path in take_in(files, cache_dir):
        say(str(path))


@cache.command()
@option("cache_dir", CacheDir)
def verify(cache_dir: Path | None) -> None:
    """Check every cache against its hash; fails if one is damaged."""
    from trtopt.workflows.build import timing_cache_commands as caches

    click.echo(f"{len(caches.verify(cache_dir))} caches are intact")


@cache.command()
@option("cache_dir", CacheDir)
@click.option("--max-size", type=click.IntRange(min=0), metavar="MIB", help="Size to keep [default: 2048].")
def prune(cache_dir: Path | None, max_size: int | None) -> None:
    """Remove damaged caches, then the least recently used ones."""
    from trtopt.cli.console import say
    from trtopt.workflows.build import timing_cache_commands as caches

    limit = {} if max_size is None else {"limit_bytes": max_size * _MIB}
    removed = caches.prune(cache_dir=cache_dir, **limit)
    say(*(f"removed {path.name}" for path in removed) if removed else ("nothing to remove",))


@cache.command()
@click.argument("name")
@output_option("FILE", "File to write.", cache_file, required=True)
@click.option("--raw", is_flag=True, help="Only TensorRT's data, as trtexec reads it.")
@option("cache_dir", CacheDir)
def export(name: str, output: Path, raw: bool, cache_dir: Path | None) -> None:
    """Write the cache NAME to a file, for another store or for --timing-cache."""
    from trtopt.workflows.build import timing_cache_commands as caches

    caches.export(name, output, raw=raw, cache_dir=cache_dir)
