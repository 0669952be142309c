"""The table of rules in docs/rewrites.md says what the catalogue says."""

from __future__ import annotations

from pathlib import Path

from trtopt.rewrite.catalogue import RULES
from trtopt.rewrite.explain import default_of

_PAGE = Path(__file__).parents[3] / "docs" / "rewrites.md"


def test_every_rule_stands_in_the_table_in_order_with_its_class_and_what_engines_show() -> None:
    lines = [line for line in _PAGE.read_text("utf-8").splitlines() if line.startswith("| `")]
    rows = [line.replace("\\|", "").strip("| ").split(" | ") for line in lines]
    found = [(name.strip("`"), kind, default, shown) for name, _, kind, default, _, shown in rows]
    assert found == [
        (rule.name, rule.exactness, default_of(rule), rule.audit if rule.enables else "–") for rule in RULES
    ]
