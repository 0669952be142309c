"""The tables in documentation pages that are made of the package's own: run it as a module to write them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from trtopt.rewrite import rules
from trtopt.rewrite.catalogue import in_order, modules_of
from trtopt.rewrite.explain import default_of

DOCS = Path(__file__).parents[2] / "docs"


def rules_table(package: ModuleType = rules) -> str:
    """The rewrite rules of a package in their order; what each does is its module's first line."""
    modules = {module.RULE.name: module for module in modules_of(package)}
    rows = ["| rule | what | class | default | enables | engines show |", "|---|---|---|---|---|---|"]
    for rule in in_order(module.RULE for module in modules.values()):
        what = (modules[rule.name].__doc__ or "").partition("\n")[0].rstrip(".")
        enables, shown = (rule.enables, rule.audit) if rule.enables else ("cleaning only", "–")
        cells = (f"`{rule.name}`", what, rule.exactness, default_of(rule), enables, shown)
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows)


PAGES: dict[str, Callable[[], str]] = {"rewrites.md": rules_table}
"""The pages below docs/ with a table in them, and what makes it."""


def with_table(page: str, table: str) -> str:
    """The page with the table between its two marks."""
    made, count = re.subn(
        r"(<!-- begin of table[^\n]*-->\n).*?(\n<!-- end of table -->)",
        lambda marks: f"{marks[1]}{table}{marks[2]}",
        page,
        flags=re.DOTALL,
    )
    assert count == 1, "a page has one pair of marks"
    return made


if __name__ == "__main__":
    for name, table in PAGES.items():
        page = DOCS / name
        page.write_text(with_table(page.read_text("utf-8"), table()), "utf-8")
