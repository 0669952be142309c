"""What `trtopt rewrite` makes of the collection, to be measured against it, and the table of that.

    python benchmarks/collection/rewritten.py rewrite LIGHT REWRITTEN [--target 8.6] [--rules NAME,…]
    python benchmarks/collection/rewritten.py table REWRITTEN SUMMARY.json

`rewrite` refills each model of LIGHT and leaves, for those on which a rule fires, REWRITTEN/NAME.onnx.gz
without weights (`weights.py`), and REWRITTEN/rules.json, which lists all models. `table` shows what
table.py found of the engines' turns (`measure.sh` with BASELINE), judged as `trtopt compare` judges.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

from weights import empty, fill

from trtopt.rewrite.rewrite import rewrite_model

RULES = "rules.json"
REWRITTEN = "-rewritten-any"


def rewrite(light: Path, rewritten: Path, target: str, rules: str) -> None:
    """Write the rewritten models, and what each rule did to each model."""
    rewritten.mkdir(parents=True, exist_ok=True)
    chosen = rules.split(",") if rules else None
    report = {}
    for packed in sorted(light.glob("*.onnx.gz")):
        name = packed.name.removesuffix(".onnx.gz")
        with tempfile.TemporaryDirectory() as folder:
            before, after = (Path(folder) / f"{side}.onnx" for side in ("before", "after"))
            fill(packed, before)
            trace = rewrite_model(
                before, after, target=target, rules=chosen, check=False, write_unchanged=False
            )
            if trace.applied:
                empty(after, rewritten / packed.name)
        nodes = [trace.nodes_before, trace.nodes_after]
        report[name] = {"target": target, "nodes": nodes, "rules": trace.counts}
        print(f"{name}: {shown(trace.counts)}", flush=True)
    (rewritten / RULES).write_text(json.dumps(report, indent=1) + "\n")


def shown(rules: dict[str, int]) -> str:
    """Counts in words."""
    return ", ".join(f"{count} {name}" for name, count in rules.items()) or "no rule fires"


def table(rewritten: Path, summary: Path) -> str:
    """Medians and verdicts of each pair that was measured, and the models that no rule changes."""
    report = json.loads((rewritten / RULES).read_text())
    lines = ["| model | batch | before ms | after ms | verdict | rules |", "|---|---|---|---|---|---|"]
    for label, compared in json.loads(summary.read_text())["compared"].items():
        name = max((name for name in report if label.startswith(name)), key=len)
        for one in compared:
            before, after = (f"{ms:.4f}" for ms in one["ms"])
            cells = [label.removesuffix(REWRITTEN), str(one["batch"]), before, after, one["verdict"]]
            lines.append(f"| {' | '.join([*cells, shown(report[name]['rules'])])} |")
    still = [name for name, item in report.items() if not item["rules"]]
    return "\n".join([*lines, "", f"No rule fires: {', '.join(still) or 'none'}."]) + "\n"


def main() -> None:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("step", choices=["rewrite", "table"])
    parser.add_argument("places", nargs=2, type=Path, help="see above")
    parser.add_argument("--target", default="8.6")
    parser.add_argument("--rules", default="", metavar="NAME,NAME")
    request = parser.parse_args()
    if request.step == "rewrite":
        rewrite(*request.places, request.target, request.rules)
    else:
        print(table(*request.places), end="")


if __name__ == "__main__":
    main()
