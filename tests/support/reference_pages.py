"""Tables and schemas of the documentation that are made of the code: run it as a module to write them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from tests.support import schemas
from trtopt.measure.contracts import CONTRACTS, DEFAULT, SUMMARIES
from trtopt.peers import polygraphy, trtexec
from trtopt.peers.options import PeerOption
from trtopt.rewrite.rule import Rule
from trtopt.rewrite.rules import RULES, use_of
from trtopt.targets import target_names

ROOT = Path(__file__).parents[2]


def rules_table() -> str:
    """The rewrite rules in their order."""
    rows = [
        "| rule | what | class | applied by | enables | evidence |",
        "|---|---|---|---|---|---|",
    ]
    for rule in RULES:
        known = "; ".join(_evidence_of(rule)) or "none"
        enables = rule.enables or "cleaning only"
        uses: dict[str, list[str]] = {}
        for target in target_names():
            uses.setdefault(use_of(rule, target), []).append(target)
        split = "; ".join(f"{', '.join(targets)}: {use}" for use, targets in uses.items())
        applied = split if len(uses) > 1 else next(iter(uses))
        cells = (f"`{rule.name}`", rule.what, rule.exactness, applied, enables, known)
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows)


def _evidence_of(rule: Rule) -> list[str]:
    """What is known of a rule, a line a finding, findings of all targets once."""
    found: dict[str, list[str]] = {}
    for target in target_names():
        for one in rule.known(target):
            where = "in quantising: " if one.kind == "stage" else ""
            found.setdefault(f"{where}{one.shows}", []).append(target)
    every = list(target_names())
    return [text if told == every else f"{', '.join(told)}: {text}" for text, told in found.items()]


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


def peer_table(program: str, found_in: str, options: Sequence[PeerOption]) -> str:
    """The options of another program, those alike in one row; `found_in` heads where they are found."""
    rows = [f"| {program} | {found_in} | here | trtopt | note |", "|---|---|---|---|---|"]
    for shared, alike in groupby(options, attrgetter("found_in", "kind", "form", "note", "harmless")):
        found, kind, words, note, harmless = shared
        names = ", ".join(f"`{name}`" for option in alike for name in (option.usage, *option.names[1:]))
        form = words if words == "–" else f"`{words}`"
        accepted = f" (accepted: {', '.join(f'`{value}`' for value in harmless)})" if harmless else ""
        rows.append(f"| {' | '.join((names, ', '.join(found), kind, form, note + accepted))} |")
    return "\n".join(rows)


def tools_table() -> str:
    """The tools of Polygraphy."""
    rows = ["| tool of Polygraphy | here | trtopt | note |", "|---|---|---|---|"]
    read = attrgetter("kind", "form", "note")
    for (kind, words, note), alike in groupby(polygraphy.TOOLS.items(), lambda item: read(item[1])):
        form = words if words == "–" else f"`{words}`"
        rows.append(f"| {', '.join(f'`{tool}`' for tool, _ in alike)} | {kind} | {form} | {note} |")
    return "\n".join(rows)


PAGES: dict[str, tuple[Callable[[], str], ...]] = {
    "docs/reference/rewrite-rules.md": (rules_table,),
    "docs/concepts/contracts.md": (contracts_table,),
    "docs/coming-from/trtexec.md": (partial(peer_table, "trtexec", "versions", trtexec.OPTIONS),),
    "docs/coming-from/polygraphy.md": (
        tools_table,
        partial(peer_table, "Polygraphy", "tools", polygraphy.OPTIONS),
    ),
}
"""The pages with tables in them, and what makes these."""


def with_table(page: str, table: str) -> str:
    """The page with the table instead of the one that has the same header."""
    header = re.escape(table.partition("\n")[0])
    made, count = re.subn(rf"^{header}\n(\|.*\n)+", lambda _: f"{table}\n", page, flags=re.MULTILINE)
    assert count == 1, "a page has one table of that header"
    return made


if __name__ == "__main__":
    for name, tables in PAGES.items():
        page = ROOT / name
        for table in tables:
            page.write_text(with_table(page.read_text("utf-8"), table()), "utf-8")
    schemas.write()
