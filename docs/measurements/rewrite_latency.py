"""How long a model takes before and after rewriting, judged as `trtopt compare` judges.

    python docs/measurements/rewrite_latency.py OUT.json MODEL.onnx... [--rules NAME,NAME] [--batch 1,8,32]

Each model is rewritten with the rules given (those that are on, without), both are built and measured one
after the other, and OUT.json and OUT.md tell medians and verdicts per batch size. Of a file
`NAME-before.onnx` the partner is `NAME-after.onnx`, as `fusion_audit.py pairs` leaves them; nothing is
rewritten then. When --limit seconds are over no further model is begun.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import trtopt
from trtopt.errors import TrtoptError
from trtopt.measure.comparison import THRESHOLD
from trtopt.measure.results import compare_reports
from trtopt.records import BenchReport
from trtopt.rewrite import rewrite_model

_BEFORE, _AFTER = "-before.onnx", "-after.onnx"


def _sides(model: Path, folder: Path, options: argparse.Namespace) -> tuple[Path, dict[str, int]]:
    """The model's other form, and how often each rule was applied."""
    if model.name.endswith(_BEFORE):
        return model.with_name(model.name.removesuffix(_BEFORE) + _AFTER), {}
    after = folder / "after.onnx"
    rules = options.rules.split(",") if options.rules else None
    trace = rewrite_model(model, after, target=options.target, rules=rules)
    return after, trace.counts


def _measured(model: Path, folder: Path, options: argparse.Namespace) -> BenchReport:
    sources = options.tactic_sources.split(",") if options.tactic_sources else None
    trtopt.build(
        model, folder, batch=options.batch, backend=options.backend, rewrite=False, tactic_sources=sources
    )
    return trtopt.bench(folder, duration=options.duration)


def measure(model: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What became of one model."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            after, counts = _sides(model, folder, options)
            if not counts and not model.name.endswith(_BEFORE):
                return {"model": model.name, "rules": {}, "rows": []}
            sides = [_measured(side, folder / part, options) for side, part in ((model, "a"), (after, "b"))]
            rows = compare_reports(*sides, threshold=THRESHOLD, force=False).rows
        except TrtoptError as error:
            return {"model": model.name, "problem": f"{error.problem}"}
    return {
        "model": model.name,
        "rules": counts,
        "device": sides[0].environment.device.name,
        "backend": str(sides[0].environment.backend),
        "rows": [
            {
                "batch": row.batch,
                "before_ms": row.a_ms,
                "after_ms": row.b_ms,
                "verdict": row.comparison.verdict.name,
            }
            for row in rows
        ],
    }


def _table(results: list[dict[str, Any]]) -> str:
    lines = ["| model | rules | batch | before ms | after ms | verdict |", "|---|---|---|---|---|---|"]
    for result in results:
        rules = ", ".join(f"{count} {name}" for name, count in result.get("rules", {}).items())
        if "problem" in result:
            lines.append(f"| {result['model']} | {result['problem']} | | | | |")
        elif not result["rows"]:
            lines.append(f"| {result['model']} | none fires | | | | |")
        for row in result.get("rows", []):
            figures = f"{row['before_ms']:.4f} | {row['after_ms']:.4f} | {row['verdict']}"
            lines.append(f"| {result['model']} | {rules} | {row['batch']} | {figures} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure every model and write the results after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--rules", default="")
    parser.add_argument("--target", default="8.6")
    parser.add_argument("--backend", default="tensorrt")
    parser.add_argument("--tactic-sources", default="")
    parser.add_argument("--batch", default="1,8,32,128")
    parser.add_argument("--duration", type=float, default=1.0)
    parser.add_argument("--limit", type=float, default=540)
    options = parser.parse_args()
    options.batch = tuple(int(size) for size in options.batch.split(","))
    deadline, results = time.monotonic() + options.limit, []
    for model in options.models:
        if time.monotonic() > deadline:
            results.append({"model": model.name, "problem": "not begun: the time was over"})
        else:
            results.append(measure(model, options))
        options.out.write_text(json.dumps(results, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(_table(results))
    print(_table(results))


if __name__ == "__main__":
    main()
