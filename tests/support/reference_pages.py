"""Tables and schemas of the documentation that are made of the code: run it as a module to write them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.support import schemas
from trtopt.measure.contracts import CONTRACTS, DEFAULT, SUMMARIES
from trtopt.rewrite.explain import evidence_of, use_of
from trtopt.rewrite.rules import RULES
from trtopt.targets import target_names
from trtopt.trtexec.options import OPTIONS

ROOT = Path(__file__).parents[2]


def rules_table() -> str:
    """The rewrite rules in their order."""
    rows = [
        "| rule | what | class | applied by | enables | evidence |",
        "|---|---|---|---|---|---|",
    ]
    for rule in RULES:
        known = "; ".join(evidence_of(rule)) or "none"
        enables = rule.enables or "cleaning only"
        uses: dict[str, list[str]] = {}
        for target in target_names():
            uses.setdefault(use_of(rule, target), []).append(target)
        split = "; ".join(f"{', '.join(targets)}: {use}" for use, targets in uses.items())
        applied = split if len(uses) > 1 else next(iter(uses))
        cells = (f"`{rule.name}`", rule.what, rule.exactness, applied, enables, known)
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows)


def contracts_table() -> str:
    """The contracts, the default one first."""
    rows = [
        "| contract | CUDA graph | copies | queue ahead | host waits | what it stands for |",
        "|---|---|---|---|---|---|",
    ]
    for name, contract in sorted(CONTRACTS.items(), key=lambda item: item[0] != DEFAULT):
        cells = (
            f"`{name}` (default)" if name == DEFAULT else f"`{name}`",
            "yes" if contract.graph else "no",
            ("yes, page-locked" if contract.pinned else "yes, pageable") if contract.transfers else "no",
            str(contract.queue_ahead),
            {"spin": "spinning", "blocking": "sleeping"}[contract.sync],
            SUMMARIES[name],
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def trtexec_table() -> str:
    """Every option of trtexec and what it is here."""
    rows = ["| trtexec | versions | here | trtopt | note |", "|---|---|---|---|---|"]
    for option in OPTIONS:
        name = f"{option.name}={option.value}" if option.value else option.name
        form = option.form if option.form == "–" else f"`{option.form}`"
        accepted = (
            f" (accepted: {', '.join(f'`{value}`' for value in option.harmless)})" if option.harmless else ""
        )
        cells = (f"`{name}`", ", ".join(option.versions), option.kind, form, option.note + accepted)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/rewrite-rules.md": rules_table,
    "docs/concepts/contracts.md": contracts_table,
    "docs/coming-from/trtexec.md": trtexec_table,
}
"""The pages with a table in them, and what makes it."""


def with_table(page: str, table: str) -> str:
    """The page with the table instead of the one that has the same header."""
    header = re.escape(table.partition("\n")[0])
    made, count = re.subn(rf"^{header}\n(\|.*\n)+", lambda _: f"{table}\n", page, flags=re.MULTILINE)
    assert count == 1, "a page has one table of that header"
    return made


if __name__ == "__main__":
    for name, table in PAGES.items():
        page = ROOT / name
        page.write_text(with_table(page.read_text("utf-8"), table()), "utf-8")
    schemas.write()
