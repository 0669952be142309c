"""How long models take before and after rewriting: their engines in turns, judged as `trtopt compare` judges.

    python docs/measurements/rewrite_latency.py rewrite MODEL.onnx… LIGHT [--target 8.6] [--rules NAME,NAME]
    python docs/measurements/rewrite_latency.py jobs LIGHT WORK OUT LISTS [--batch 1,8,32] [build option …]
    python docs/measurements/on_every_gpu.py LISTS/builds.json DONE/builds 560 --at-once 3
    python docs/measurements/on_every_gpu.py LISTS/compares.json DONE/compares 560
    python docs/measurements/rewrite_latency.py table LIGHT OUT

`rewrite` runs where the models are: it leaves LIGHT/NAME.before.onnx.gz and .after.onnx.gz without weights
(`weights.py`) for each model on which a rule fires, and LIGHT/rules.json, which tells of all. `jobs` writes
`builds.json`, one engine a job, and `compares.json`, one pair of them a job, measured in turns into
OUT/LABEL-BATCH.json; quick models first,
further axes as in collection/jobs.py or, for all of them, as `--shape` says. Both sides share a timing cache.
What is there is not done again; `table` shows what there is so far.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "collection"))

from jobs import QUICK, SHAPES, SLOW

SIDES = ("before", "after")
RULES = "rules.json"
WEIGHTS = str(Path(__file__).parent / "weights.py")
TRTOPT = [sys.executable, "-m", "trtopt"]
SLOWER = 3


def rewrite(models: list[Path], light: Path, target: str, rules: str) -> None:
    """The pairs, and what each rule did to each model."""
    from trtopt.rewrite import rewrite_model

    light.mkdir(parents=True, exist_ok=True)
    told = json.loads((light / RULES).read_text()) if (light / RULES).is_file() else {}
    for model in models:
        after = light / f"{model.stem}.after.onnx"
        chosen = rules.split(",") if rules else None
        trace = rewrite_model(model, after, target=target, rules=chosen, check=False, write_unchanged=False)
        told[model.stem] = {"target": target, "nodes": [trace.nodes_before, trace.nodes_after]}
        told[model.stem]["rules"] = trace.counts
        if trace.applied:
            for side, file in zip(SIDES, (model, after), strict=True):
                packed = light / f"{model.stem}.{side}.onnx.gz"
                subprocess.run([sys.executable, WEIGHTS, "empty", str(file), str(packed)], check=True)
            after.unlink()
        print(f"{model.stem}: {shown(trace.counts)}", flush=True)
        (light / RULES).write_text(json.dumps(told, indent=1) + "\n")


def shown(rules: dict[str, int]) -> str:
    """Counts in words."""
    return ", ".join(f"{count} {name}" for name, count in rules.items()) or "no rule fires"


def write_jobs(light: Path, work: Path, out: Path, lists: Path, batches: str, options: list[str]) -> None:
    """The lists: both sides of a pair one after the other."""
    there = {path.name.removesuffix(".before.onnx.gz") for path in light.glob("*.before.onnx.gz")}
    known = [name for name in (*QUICK, *reversed(SLOW)) if name in there]
    builds, compares = [], []
    for name in (*known, *sorted(there.difference(known))):
        shapes = {} if "--shape" in options else SHAPES.get(name, {})
        for suffix, axes in (shapes or {"": {}}).items():
            flags = [word for key, shape in axes.items() for word in ("--shape", f"{key}:{shape}")]
            for batch in batches.split(","):
                label = "-".join(filter(None, (name, suffix, batch)))
                for side in SIDES:
                    packed = light / f"{name}.{side}.onnx.gz"
                    build = ["build", packed, work, f"{label}-{side}", batch, *flags, *options]
                    builds.append(_job(f"{label}-{side}", 900, build))
                compares.append(_job(label, 120, ["compare", work, out, label]))
    lists.mkdir(parents=True, exist_ok=True)
    for file, jobs in {"builds.json": builds, "compares.json": compares}.items():
        (lists / file).write_text(json.dumps(jobs, indent=1) + "\n")


def _job(name: str, seconds: int, arguments: list[Any]) -> dict[str, str]:
    command = [sys.executable, str(Path(__file__).resolve()), *map(str, arguments)]
    return {"name": name, "run": f"timeout {seconds} {shlex.join(command)}"}


def build(packed: Path, work: Path, label: str, batch: str, options: list[str]) -> int:
    """Refill the model, unless another job has, and build one engine. The exit status."""
    work.mkdir(parents=True, exist_ok=True)
    model, folder = work / packed.name.removesuffix(".gz"), work / label
    with (work / f"{model.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not model.is_file():
            subprocess.run([sys.executable, WEIGHTS, "fill", str(packed), str(model)], check=True)
    if folder.is_dir():
        return 0
    shared = work / f"{packed.name.partition('.')[0]}.cache"  # equal layers get equal tactics
    cache = ["--timing-cache", str(shared)]
    flags = ["-o", str(folder), "--batch", batch, "--no-rewrite", *cache, *options]
    return subprocess.run([*TRTOPT, "build", str(model), *flags], check=False).returncode


def compare(work: Path, out: Path, label: str) -> int:
    """Measure both engines of a pair in turns. The exit status; a slower engine is no failure."""
    out.mkdir(parents=True, exist_ok=True)
    sides = [str(work / f"{label}-{side}") for side in SIDES]
    command = [*TRTOPT, "compare", *sides, "--json", str(out / f"{label}.json")]
    status = subprocess.run(command, check=False).returncode
    return 0 if status == SLOWER else status


def table(light: Path, out: Path) -> str:
    """Medians and verdicts of each pair that was measured, and the models that no rule changes."""
    from trtopt.measure.rounds import judged_rounds, pooled_ms
    from trtopt.records import CompareReport, read_versioned

    told = json.loads((light / RULES).read_text())
    lines = ["| model | batch | before ms | after ms | verdict | rules |", "|---|---|---|---|---|---|"]
    for path in sorted(out.glob("*.json")):
        report = read_versioned(path.read_bytes(), CompareReport)
        label = path.stem.rpartition("-")[0]
        name = max((name for name in told if label.startswith(name)), key=len)
        for run, verdict in zip(report.runs, report.verdicts, strict=True):
            before, after = (f"{pooled_ms(turns):.4f}" for turns in judged_rounds(run).turns)
            rules = shown(told[name]["rules"])
            lines.append(f"| {label} | {run.batch} | {before} | {after} | {verdict.verdict} | {rules} |")
    still = [name for name, item in told.items() if not item["rules"]]
    return "\n".join([*lines, "", f"No rule fires: {', '.join(still) or 'none'}."]) + "\n"


def main() -> None:
    """Read the command line and do what it says; what it does not know goes to `trtopt build`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("step", choices=["rewrite", "jobs", "build", "compare", "table"])
    parser.add_argument("arguments", nargs="+", help="see above")
    parser.add_argument("--target", default="8.6")
    parser.add_argument("--rules", default="", metavar="NAME,NAME")
    parser.add_argument("--batch", default="1,8,32,128", metavar="N,N")
    known, options = parser.parse_known_intermixed_args()
    places = [Path(place).absolute() for place in known.arguments]
    if known.step == "rewrite":
        rewrite(places[:-1], places[-1], known.target, known.rules)
    elif known.step == "jobs":
        write_jobs(*places, known.batch, options)
    elif known.step == "build":
        sys.exit(build(*places[:2], *known.arguments[2:], options))
    elif known.step == "compare":
        sys.exit(compare(*places[:2], known.arguments[2]))
    else:
        print(table(*places), end="")


if __name__ == "__main__":
    main()
