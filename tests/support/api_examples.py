"""The examples in the help of the public functions, run as they are printed."""

from __future__ import annotations

import doctest
import shutil
from pathlib import Path

import trtopt
from tests.support.paths import ROOT

DIGITS = ROOT / "models" / "digits"


def example_files(folder: Path) -> Path:
    """A folder with the model and the data that the examples name."""
    shutil.copy(DIGITS / "digits.onnx", folder / "model.onnx")
    shutil.copy(DIGITS / "heldout.npz", folder / "data.npz")
    return folder


def run_example(name: str) -> dict[str, object]:
    """Run the example of a public function in the current folder; the names that it leaves.

    Raises:
        AssertionError: it prints something else than the help shows.
    """
    globs: dict[str, object] = {"trtopt": trtopt}
    example = doctest.DocTestParser().get_doctest(getattr(trtopt, name).__doc__, globs, name, None, None)
    printed: list[str] = []
    failed, ran = doctest.DocTestRunner().run(example, out=printed.append, clear_globs=False)
    assert ran > 0
    assert failed == 0, "".join(printed)
    return example.globs
