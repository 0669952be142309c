"""The benchmarks' folder: small, one README per study, and no link of a page that leads nowhere."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"
STUDIES = sorted(path.name for path in BENCHMARKS.iterdir() if path.is_dir() and path.name != "shared")
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md")), *sorted(BENCHMARKS.rglob("*.md"))]
SCRIPTS = sorted(BENCHMARKS.rglob("*.py"))
MOST_BYTES = 128 * 1024


def test_figures_are_small_text_files() -> None:
    files = [path for path in BENCHMARKS.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    kinds = {path.suffix for path in files}
    assert kinds <= {".py", ".sh", ".json", ".md", ".txt"}
    assert [path.name for path in files if path.stat().st_size > MOST_BYTES] == []


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_has_a_readme_and_a_line_in_the_index(study: str) -> None:
    assert (BENCHMARKS / study / "README.md").is_file()
    assert f"]({study})" in (BENCHMARKS / "README.md").read_text()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: str(script.relative_to(BENCHMARKS)))
def test_what_a_script_imports_of_the_package_is_there(script: Path) -> None:
    imports = [one for one in ast.walk(ast.parse(script.read_text())) if isinstance(one, ast.ImportFrom)]
    for one in imports:
        if one.module is not None and one.module.split(".")[0] == "trtopt":
            module = import_module(one.module)
            assert [name.name for name in one.names if not hasattr(module, name.name)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    local = [target.partition("#") for target in targets if not re.match(r"[a-z]+:", target)]
    assert [path for path, _, _ in local if not (page.parent / path).exists()] == []
    for path, _, anchor in local:
        linked = page if not path else page.parent / path
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(linked), f"{path}#{anchor}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
