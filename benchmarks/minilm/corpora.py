"""Sentences that any Python brings along: 600 of each corpus, the same for everyone with the same Python.

`docstrings`: first paragraphs of the docstrings of 30 modules of the standard library. Many are
near-duplicates ("Return True if …"), so that a nearest neighbour is lost to a small error. `topics`:
sentences of the language reference that `help()` shows, which differ more.
"""

import importlib
import inspect
import pydoc_data.topics
import re
import warnings
from collections.abc import Iterator
from types import ModuleType

import numpy as np

COUNT = 600
CALIBRATION = 128
WORDS = range(5, 26)
MODULES = (
    "argparse", "ast", "asyncio", "calendar", "collections", "concurrent.futures", "configparser",
    "datetime", "decimal", "difflib", "email.message", "fractions", "importlib.util", "inspect",
    "ipaddress", "json", "logging", "os", "pathlib", "random", "shutil", "socket", "statistics",
    "subprocess", "tarfile", "tempfile", "threading", "typing", "unittest", "urllib.request",
)  # fmt: skip


def halves(name: str) -> tuple[list[str], list[str]]:
    """A corpus by name: 128 sentences to calibrate with and 472 others to test on, shuffled with seed 0."""
    made = docstrings() if name == "docstrings" else topics()
    found = sorted({text for text in made if len(text.split()) in WORDS})
    order = np.random.default_rng(0).permutation(len(found))[:COUNT]
    chosen = [found[index] for index in order]
    if len(chosen) < COUNT:
        raise RuntimeError(f"{name}: {len(chosen)} sentences only")
    return chosen[:CALIBRATION], chosen[CALIBRATION:]


def docstrings() -> list[str]:
    """The first paragraph of each docstring of a module's functions, classes and methods."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some names warn that they will go
        return [text for name in MODULES for text in _of_module(importlib.import_module(name))]


def _of_module(module: ModuleType) -> Iterator[str]:
    for _, item in inspect.getmembers(module):
        yield from _first_paragraph(item)
        if inspect.isclass(item):
            for _, inner in inspect.getmembers(item):
                yield from _first_paragraph(inner)


def _first_paragraph(item: object) -> Iterator[str]:
    if callable(item) and isinstance(text := getattr(item, "__doc__", None), str):
        yield " ".join(inspect.cleandoc(text).split("\n\n")[0].split())


def topics() -> Iterator[str]:
    """Sentences of prose: from a capital letter to a full stop, without code or markup."""
    for _, text in sorted(pydoc_data.topics.topics.items()):
        for paragraph in text.split("\n\n"):
            if not paragraph.startswith(("   ", "*", "|")):
                plain = " ".join(re.sub(r"[`*\"]", "", paragraph).split())
                yield from (part for part in re.findall(r"[A-Z][^.!?:]*\.(?=\s|$)", plain))
