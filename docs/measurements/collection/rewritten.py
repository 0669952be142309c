"""What `trtopt rewrite` makes of the collection, to be measured beside it, and the table of that.

    python docs/measurements/collection/rewritten.py rewrite LIGHT REWRITTEN [--target 8.6] [--rules NAME,…]
    python docs/measurements/collection/rewritten.py table REWRITTEN OUT

`rewrite` refills each model of LIGHT and leaves, for those on which a rule fires, REWRITTEN/NAME.onnx.gz
without weights (`weights.py`), and REWRITTEN/rules.json, which tells of all. `table` shows what the engines'
turns in OUT (`measure.sh` with BASELINE) came to, judged as `trtopt compare` judges.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from weights import empty, fill

from trtopt.measure.rounds import judged_rounds, pooled_ms
from trtopt.records import CompareReport, read_versioned
from trtopt.rewrite import rewrite_model

RULES = "rules.json"
COMPARED = "-rewritten-any.compare.json"


def rewrite(light: Path, rewritten: Path, target: str, rules: str) -> None:
    """Write the rewritten models, and what each rule did to each model."""
    rewritten.mkdir(parents=True, exist_ok=True)
    chosen = rules.split(",") if rules else None
    told = {}
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
        told[name] = {"target": target, "nodes": nodes, "rules": trace.counts}
        print(f"{name}: {shown(trace.counts)}", flush=True)
    (rewritten / RULES).write_text(json.dumps(told, indent=1) + "\n")


def shown(rules: dict[str, int]) -> str:
    """Counts in words."""
    return ", ".join(f"{count} {name}" for name, count in rules.items()) or "no rule fires"


def table(rewritten: Path, out: Path) -> str:
    """Medians and verdicts of each pair that was measured, and the models that no rule changes."""
    told = json.loads((rewritten / RULES).read_text())
    lines = ["| model | batch | before ms | after ms | verdict | rules |", "|---|---|---|---|---|---|"]
    for path in sorted(out.glob(f"*{COMPARED}")):
        report = read_versioned(path.read_bytes(), CompareReport)
        label = path.name.removesuffix(COMPARED)
        name = max((name for name in told if label.startswith(name)), key=len)
        for run, verdict in zip(report.runs, report.verdicts, strict=True):
            before, after = (f"{pooled_ms(turns):.4f}" for turns in judged_rounds(run).turns)
            rules = shown(told[name]["rules"])
            lines.append(f"| {label} | {run.batch} | {before} | {after} | {verdict.verdict} | {rules} |")
    still = [name for name, item in told.items() if not item["rules"]]
    return "\n".join([*lines, "", f"No rule fires: {', '.join(still) or 'none'}."]) + "\n"


def main() -> None:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("step", choices=["rewrite", "table"])
    parser.add_argument("folders", nargs=2, type=Path)
    parser.add_argument("--target", default="8.6")
    parser.add_argument("--rules", default="", metavar="NAME,NAME")
    asked = parser.parse_args()
    if asked.step == "rewrite":
        rewrite(*asked.folders, asked.target, asked.rules)
    else:
        print(table(*asked.folders), end="")


if __name__ == "__main__":
    main()
