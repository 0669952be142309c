"""Every test that docs/reliability.md names is there."""

import re

import pytest

from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "reliability.md").read_text("utf-8")
FILES = sorted(set(re.findall(r"`((?:unit|cpu|gpu|export|fuzz)/[\w/]+\.py)`", PAGE)))
TESTS = sorted(set(re.findall(r"`(test_\w+)`", PAGE)))
DEFINED = {
    name
    for file in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text("utf-8"), re.MULTILINE)
}


@pytest.mark.parametrize("file", FILES)
def test_a_file_of_tests_is_there(file: str) -> None:
    assert (ROOT / "tests" / file).is_file()


@pytest.mark.parametrize("name", TESTS)
def test_a_test_is_there(name: str) -> None:
    assert name in DEFINED


def test_the_page_names_many() -> None:
    assert len(FILES) > 20
    assert len(TESTS) > 40
