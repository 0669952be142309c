"""What tests run in processes that are killed as they write, or beside others that write the same."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support import examples
from tests.support.killing import run_fork_killed
from trtopt.builder.timing_cache import CacheFile, TimingStore
from trtopt.files import outputs
from trtopt.files.atomic import scratch_folder, write_atomically
from trtopt.files.manifests import write_manifest
from trtopt.files.outputs import check_output, folder_in_progress, kind_beginning
from trtopt.onnxio.model_file import load, save
from trtopt.records import CacheTerms, Identity, from_json

PROCESSES = 4


def run_beside(function: Callable[..., None], *arguments: str) -> list[int]:
    """Run a function of a module in `PROCESSES` forks at once, each with its number; how they ended."""
    with ThreadPoolExecutor(PROCESSES) as pool:
        numbers = map(str, range(PROCESSES))
        return [*pool.map(lambda number: run_fork_killed("fsync", 0, function, *arguments, number), numbers)]


def union(ours: bytes, theirs: bytes) -> bytes:
    """The lines of both: a merge."""
    return b"".join(sorted({*ours.splitlines(True), *theirs.splitlines(True)}))


def lines_of(rounds: int) -> set[str]:
    """What `PROCESSES` that grow a cache put there."""
    return {f"{process} {number}" for process in range(PROCESSES) for number in range(rounds)}


def grow(file: CacheFile, line: str) -> None:
    """Load a cache, and save it with a line more."""
    before = file.load()
    file.save((before.blob if before else b"") + f"{line}\n".encode(), grown_from=before, merge=union)


def grow_file(path: str, here: str, rounds: str, name: str) -> None:
    """Grow a cache in a file."""
    for number in range(int(rounds)):
        grow(CacheFile(Path(path), from_json(here.encode(), Identity)), f"{name} {number}")


def grow_in_store(folder: str, here: str, rounds: str, name: str) -> None:
    """Grow a cache in a store, and look at what is in it."""
    store = TimingStore(Path(folder))
    for number in range(int(rounds)):
        grow(store.file(from_json(here.encode(), Identity), CacheTerms(opt_level=3)), f"{name} {number}")
        store.entries()


def save_model(source: str, out: str, *table: str) -> None:
    """Save a model under another name, with a file beside it if one is named."""
    save(load(Path(source)), Path(out), (Path(table[0]), b"2.0") if table else None)


def make_folder(final: str, rounds: str, name: str, how: str = "at once") -> None:
    """Make a folder over and over; `apart`: where no two names can be exchanged."""
    if how == "apart":
        outputs._exchanged = lambda one, other: False
    for number in range(int(rounds)):
        with folder_in_progress(Path(final)) as folder:
            for file in ("a", "b"):
                write_atomically(folder / file, f"{name} {number}".encode())
            write_manifest(folder, examples.manifest(), files={"a": "0" * 64, "b": "0" * 64})


def write_file(path: str, text: str) -> None:
    """Write a text over an earlier one."""
    check_output(Path(path), kind_beginning("text", b""))
    write_atomically(Path(path), text.encode())


def leave_scratch(how: str) -> None:
    """Make a file in a folder of the system's temporary one; with a call that can be died at, or without."""
    with scratch_folder() as folder:
        (folder / "file").touch()
        if how == "fsync":
            os.fsync(0)
