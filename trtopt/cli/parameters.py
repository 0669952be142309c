"""Kinds of options and arguments, and what a shell offers for them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from trtopt.options import Names


class NewPath(click.Path):
    """A path that need not exist. An empty one, of a variable that is not set, is not the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.Path.convert`."""
        if value == "":
            self.fail("the name is empty; the current folder is '.'.", param, ctx)
        return super().convert(value, param, ctx)


class OnnxFile(click.Path):
    """An existing file; the error of another path names the ONNX file that may have been meant."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.Path.convert`."""
        path = Path(value)
        if path.is_dir():
            inside = sorted(file.name for file in path.glob("*.onnx"))
            such = f", such as {path / inside[0]}" if inside else ""
            self.fail(f"{path} is a folder: give an ONNX file{such}.", param, ctx)
        if not path.exists():
            known = {file.stem: file for file in path.parent.glob("*.onnx")}
            near = difflib.get_close_matches(path.stem, known, n=1)  # the suffix alone makes no likeness
            meant = f" Did you mean {known[near[0]]}?" if near else ""
            self.fail(f"File {str(path)!r} does not exist.{meant}", param, ctx)
        return super().convert(value, param, ctx)


# ── what a shell offers; a table is read when the shell asks ──────────────────────────────────────────────

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def offer(table: Names, *, files: bool = False, in_list: bool = False) -> Completer:
    """Offer the names of a table, `files` too; `in_list` as the next entry of a list with commas."""

    def offered(_context: click.Context, _option: click.Parameter, begun: str) -> list[CompletionItem]:
        done, comma, last = begun.rpartition(",") if in_list else ("", "", begun)
        found = [CompletionItem(f"{done}{comma}{name}") for name in table() if name.startswith(last)]
        return [*found, CompletionItem(begun, type="file")] if files else found

    return offered


def model_names() -> Iterable[str]:
    """The models of the collection."""
    from trtopt.export.spec import files as models

    return models()


def lint_check_names() -> Iterable[str]:
    """The checks of `trtopt lint`."""
    from trtopt.rewrite.lint import CHECKS

    return ("any", *(check.name for check in CHECKS))
