"""Every command, option and call on a documentation page exists."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import click
import pytest

from tests.support.page_commands import (
    PAGES,
    all_options,
    blocks_of,
    calls_in,
    check_call,
    check_python,
    inline_problems,
)
from tests.support.paths import ROOT

WITH_FOREIGN_OPTIONS = {"coming-from", "changelog.md"}
"""Pages that also name options of other tools."""

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
known_options = cache(all_options)


@each_page
def test_commands_in_blocks_exist_with_their_options(page: Path) -> None:
    problems = []
    for block in blocks_of(page, "console", "sh"):
        for command in block.commands:
            for call in calls_in(command):
                try:
                    check_call(call)
                except click.UsageError as error:
                    problems.append(f"{command}: {error.format_message()}")
    assert problems == []


@each_page
def test_commands_and_options_in_running_text_exist(page: Path) -> None:
    if not WITH_FOREIGN_OPTIONS & {page.name, page.parent.name}:
        assert inline_problems(page, known_options()) == []


@each_page
def test_no_line_of_text_is_a_comment_of_the_site(page: Path) -> None:
    assert not [line for line in page.read_text("utf-8").splitlines() if line.startswith("%")]


@each_page
def test_python_on_a_page_calls_what_there_is(page: Path) -> None:
    for block in blocks_of(page, "python"):
        check_python(block.text)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (["bench", "engines", "--no-such-option"], "--no-such-option"),
        (["no-such-command"], "no-such-command"),
        (["cast", "model.onnx"], "output"),
        (["cast", "model.onnx", "-o", "x.onnx", "--precision", "fp12"], "fp12"),
    ],
)
def test_a_wrong_call_is_found(call: list[str], problem: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        check_call(call)
    assert problem in caught.value.format_message()
