"""What `make house` prints: how large the package is, and what a change to it touches.

Lines are a symptom: nothing here fails. The last row of docs/house.md is what the figures are compared with;
`python -m tests.support.house --record` adds today's.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "house.md"
DURATIONS = ROOT / ".pytest_cache" / "durations.xml"
"""What `make test` leaves."""
SHARED_NAMES = 6
SLOWEST = 12

BUDGET = {
    "trtopt": 1400,
    "requests": 1300,
    "cli": 1900,
    "records": 2000,
    "files": 800,
    "onnxio": 2000,
    "data": 1200,
    "export": 1600,
    "rewrite": 4800,
    "precision": 5600,
    "device": 3900,
    "builder": 1200,
    "measure": 5000,
    "inspect": 2500,
    "workflows": 4900,
    "serving": 2400,
    "workers": 1600,
    "report": 3300,
}
"""Lines that a folder is to have; `trtopt` is the files in none."""
PART_OF = {"executors": "workers", "processes": "workers", "peers": "cli"}


@dataclass(frozen=True)
class Trial:
    """A made-up extension: in a copy of the package its names take the places of an existing one's.

    Every line that had to change is a place that an extension of this kind touches. Text for people is left
    alone, but for labels that are a name and nothing else. The copy works if `shown` is in what `trtopt`
    prints with `arguments`.
    """

    kind: str
    names: dict[str, str]
    arguments: tuple[str, ...]
    shown: str


TRIALS = (
    Trial(
        "setting",
        {"aux_streams": "house_probe", "aux-streams": "house-probe"},
        ("build", "--help-all"),
        "--house-probe",
    ),
    Trial(
        "rule",
        {"erase_arithmetic": "house_probe", "erase-arithmetic": "house-probe"},
        ("rewrite", "--list"),
        "house-probe",
    ),
    Trial(
        "metric",
        {"enqueue_ms": "probe_ms", "enqueue ms": "probe ms"},
        ("bench", "models/digits/digits.onnx", "--backend", "onnxruntime", "--duration", "0.1"),
        "probe ms",
    ),
    Trial(
        "command",
        {
            "optimize": "probe",
            "Optimized": "Probed",
            "OptimizeRequest": "ProbeRequest",
            "OPTIMIZE_SCHEMA": "PROBE_SCHEMA",
        },
        ("--help",),
        "probe ",
    ),
)


@dataclass(frozen=True)
class Touched:
    """Lines and files of the package."""

    lines: int
    files: int

    def __str__(self) -> str:
        return f"{self.lines} in {self.files}"


def sizes(package: Path) -> dict[str, tuple[int, int]]:
    """Files and lines of each folder."""
    found: dict[str, tuple[int, int]] = dict.fromkeys(BUDGET, (0, 0))
    for file in package.rglob("*.py"):
        folder = next(iter(file.relative_to(package).parent.parts), "trtopt")
        folder = PART_OF.get(folder, folder)
        files, lines = found.get(folder, (0, 0))
        found[folder] = (files + 1, lines + len(file.read_text("utf-8").splitlines()))
    return found


def mirrored_pairs(package: Path) -> int:
    """Pairs of functions and classes whose parameters or fields share `SHARED_NAMES` names or more."""
    declared = [names for file in package.rglob("*.py") for names in _declared(file)]
    return sum(len(a & b) >= SHARED_NAMES for a, b in combinations(declared, 2))


def _declared(file: Path) -> Iterator[set[str]]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            yield {one.arg for one in every} - {"self", "cls"}
        elif isinstance(node, ast.ClassDef):
            fields = (one.target for one in node.body if isinstance(one, ast.AnnAssign))
            yield {field.id for field in fields if isinstance(field, ast.Name)}


# ── what an extension touches ───────────────────────────────────────────────────────────────────────────


def touched(package: Path, names: dict[str, str]) -> Touched:
    """Rename in `package`, files included."""
    lines = files = 0
    for file in sorted(package.rglob("*.py")):
        changed = _rename(file, names)
        renamed = file.with_stem(names.get(file.stem, file.stem))
        lines, files = lines + changed, files + bool(changed or renamed != file)
        file.rename(renamed)
    return Touched(lines, files)


def _rename(file: Path, names: dict[str, str]) -> int:
    """How many lines changed."""
    inside = re.compile(rf"(?<![a-zA-Z0-9])(?:{'|'.join(names)})(?![a-z0-9])")
    lines = file.read_text("utf-8").splitlines(keepends=True)
    changed: set[int] = set()
    with file.open("rb") as source:
        tokens = [one for one in tokenize.tokenize(source.readline) if one.start[0] == one.end[0]]
    for token in reversed(tokens):  # from the end of a line, so that columns stay right
        text, is_string = token.string, token.type == tokenize.STRING
        if not is_string and token.type != tokenize.NAME:
            continue
        is_prose = is_string and " " in text and text.strip("'\"") not in names
        new = text if is_prose else inside.sub(lambda match: names[match[0]], text)
        if new != text:
            row, start, end = token.start[0] - 1, token.start[1], token.end[1]
            lines[row] = lines[row][:start] + new + lines[row][end:]
            changed.add(row)
    file.write_text("".join(lines), "utf-8")
    return len(changed)


def tried(trial: Trial) -> str:
    """What a made-up extension touches, and whether the copy works with it."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("trtopt", "profiles", "models"):
            shutil.copytree(ROOT / name, Path(folder) / name, ignore=shutil.ignore_patterns("__pycache__"))
        found = touched(Path(folder) / "trtopt", trial.names)
        if not found.files:
            return f"– ({next(iter(trial.names))} is gone: name another in tests/support/house.py)"
        command = (sys.executable, "-m", "trtopt", *trial.arguments)
        done = subprocess.run(command, cwd=folder, env={"PYTHONPATH": folder}, capture_output=True, text=True)
    is_whole = done.returncode == 0 and trial.shown in done.stdout
    return str(found) if is_whole else f"{found}, and more: the copy does not work"


# ── the page and the printed text ───────────────────────────────────────────────────────────────────────


def seconds_of(report: Path) -> Counter[str]:
    """Seconds of the tests by folder, of a JUnit file; none without one."""
    found: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase") if report.is_file() else ():
        parts = case.get("classname", "").split(".")
        found["/".join(parts[: 3 if parts[1:2] == ["unit"] else 2])] += float(case.get("time", 0))
    return found


def last_row(page: str) -> dict[str, str]:
    """The columns of the page's last row by their heading."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if "|" in line
    ]
    return dict(zip(rows[0], rows[-1], strict=True))


def main() -> None:
    """Print it; with `--record` also add a row to the page."""
    package = ROOT / "trtopt"
    found, seconds = sizes(package), seconds_of(DURATIONS)
    print(f"{'folder':12} {'files':>6} {'lines':>7} {'budget':>7}  over")
    for folder, (files, lines) in found.items():
        budget = BUDGET.get(folder, 0)
        print(f"{folder:12} {files:6} {lines:7,} {budget:7,} {max(0, lines - budget):+6,}")
    total = [sum(column) for column in zip(*found.values(), strict=True)]
    print(f"{'in all':12} {total[0]:6} {total[1]:7,} {sum(BUDGET.values()):7,}")
    for folder, taken in seconds.most_common(SLOWEST):
        print(f"{taken:8.0f} s  {folder}")
    before = last_row(PAGE.read_text("utf-8"))
    row = {
        "date": date.today().isoformat(),
        "files": f"{total[0]}",
        "lines": f"{total[1]:,}",
        "mirrored pairs": str(mirrored_pairs(package)),
        **{f"a {trial.kind}": tried(trial) for trial in TRIALS},
        "test seconds": f"{sum(seconds.values()):,.0f}" if seconds else "–",
    }
    for name, now in row.items():
        print(f"{name:15} {now:>12}   {'' if before.get(name) == now else f'before: {before.get(name)}'}")
    if "--record" in sys.argv[1:]:
        PAGE.write_text(PAGE.read_text("utf-8") + f"| {' | '.join(row.values())} |\n", "utf-8")


if __name__ == "__main__":
    main()
