"""An engine for each batch size against one dynamic engine and one with several optimisation profiles.

    python benchmarks/batching/engines.py jobs LIGHT.onnx.gz WORK OUT [option …] > JOBS.json
    python benchmarks/shared/on_every_gpu.py JOBS.json DONE SECONDS --gpus 0
    python benchmarks/batching/engines.py table OUT

The first job refills the graph, the second sweeps an engine for each batch size; then each other way is
built, and measured in turns with the engines of the sweep. Jobs need those before them, so one GPU runs them
all; the same commands again go on where they were ended. LIGHT is a graph of `weights.py` with BERT's inputs,
run at `--length` [128]; `--seconds` [2] is how long each side is sampled. Further options go to `trtopt
build` and `trtopt sweep`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
from pathlib import Path

from trtopt.records import CompareReport, ComparisonVerdict, Manifest, SweepReport, TurnSamples, from_json

HERE = Path(__file__).parent
BATCHES = (1, 2, 4, 8, 16, 32)
WAYS = {
    "tuned at 8": ("1,8,32",),
    "3 profiles": ("1,1,4", "4,8,16", "16,32,32"),
    "tuned at 32": ("1,32,32",),
    "6 profiles": tuple(map(str, BATCHES)),
    "tuned at 1": ("1,1,32",),
}
"""Each one engine: MIN,OPT,MAX of its profiles. The most informative come first, in case time runs out."""
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
MIB = 2**20
VERDICTS = {"SAME": "", "UNDECIDED": " ?", "FASTER": " faster", "SLOWER": " slower"}


def main() -> None:
    """Print the jobs, or the table."""
    parser = argparse.ArgumentParser()
    steps = parser.add_subparsers(dest="step", required=True)
    jobs = steps.add_parser("jobs")
    for name in ("light", "work", "out"):
        jobs.add_argument(name, type=lambda text: Path(text).absolute())
    jobs.add_argument("--seconds", default="2")
    jobs.add_argument("--length", type=int, default=128)
    steps.add_parser("table").add_argument("out", type=Path)
    request, options = parser.parse_known_args()
    if request.step == "table":
        _table(request.out)
    else:
        json.dump(_jobs(request, options), sys.stdout, indent=1)


def _jobs(request: argparse.Namespace, options: list[str]) -> list[dict[str, str]]:
    light, work, out, seconds = request.light, request.work, request.out, request.seconds
    model, each, python = work / "model.onnx", work / "each", sys.executable
    shapes = [word for name in INPUTS for word in ("--shape", f"{name}:Nx{request.length}")]
    flags = [*options, "--rewrite", "none", *shapes]
    batches = ",".join(map(str, BATCHES))
    trtopt = [python, "-m", "trtopt"]

    def job(name: str, *commands: list[str], verdict_is_no_failure: bool = False) -> dict[str, str]:
        lines = ["set -eu", *map(shlex.join, commands)]
        if verdict_is_no_failure:
            lines[-1] += " || case $? in 3|5) ;; *) false ;; esac"
        return {"name": name, "run": "\n".join(lines)}

    fill = [python, str(HERE.parent / "shared" / "weights.py"), "fill", str(light), str(model)]
    sweep = [*trtopt, "sweep", str(model), "-o", str(each), "--batch", batches, "--duration", seconds, *flags]
    jobs = [
        job("model", ["mkdir", "-p", str(work), str(out)], fill),
        job("each", sweep, ["cp", str(each / "sweep.json"), str(out / "sweep.json")]),
    ]
    for way, ranges in WAYS.items():
        name = way.replace(" ", "-")
        folder = work / name
        sizes = [word for one in ranges for word in ("--batch", one)]
        build = [*trtopt, "build", str(model), "-o", str(folder), "--dynamic", *sizes, "--allow-fallback"]
        turns = ["compare", str(each / "builds" / "model"), str(folder), "--batch", batches]
        result = ["--duration", seconds, "--json", str(out / f"{name}.json")]
        keep = ["cp", str(folder / "manifest.json"), _manifest(out, name)]
        jobs.append(job(f"{name}-build", [*build, *flags], keep))
        jobs.append(job(f"{name}-turns", [*trtopt, *turns, *result], verdict_is_no_failure=True))
    return jobs


def _manifest(out: Path, name: str) -> str:
    return str(out / f"{name}.manifest.json")


# ── the table ───────────────────────────────────────────────────────────────────────────────────────────


def _table(out: Path) -> None:
    """Median latency of each way at each batch size, and what it is of the own engine's in the same turns."""
    sweep = from_json((out / "sweep.json").read_bytes(), SweepReport)
    own = {point.setting.batch: point for point in sweep.measured}
    columns = {way: _column(out / f"{way.replace(' ', '-')}.json") for way in WAYS}
    print(f"| batch | an engine each | {' | '.join(WAYS)} |\n|{'---|' * (2 + len(WAYS))}")
    for batch in BATCHES:
        latency = own[batch].latency if batch in own else None
        first = f"{latency.p50_ms:.3f}" if latency is not None else "–"
        print(f"| {batch} | {first} | {' | '.join(column.get(batch, '–') for column in columns.values())} |")
    sizes = [point.engine_bytes or 0 for point in own.values()]
    seconds = [point.build_seconds or 0.0 for point in own.values()]
    manifests = [Path(_manifest(out, way.replace(" ", "-"))) for way in WAYS]
    built = [
        from_json(path.read_bytes(), Manifest).engines[0] if path.is_file() else None for path in manifests
    ]
    summary = [f"{one.size_bytes / MIB:,.0f}" if one else "–" for one in built]
    print(f"| MiB | {sum(sizes) / MIB:,.0f} | {' | '.join(summary)} |")
    summary = [f"{one.build_seconds:,.0f}" if one else "–" for one in built]
    print(f"| build s | {sum(seconds):,.0f} | {' | '.join(summary)} |")


def _column(path: Path) -> dict[int, str]:
    """`0.777 (+27 % slower)` by batch: the median in turns, and the change against the own engine's.

    `?` stands where the verdict is UNDECIDED; where it is SAME, no word follows.
    """
    if not path.is_file():
        return {}
    report = from_json(path.read_bytes(), CompareReport)
    verdicts = {judged.batch: judged for judged in report.verdicts}
    return {run.batch: _entry(run.turns[1], verdicts.get(run.batch)) for run in report.runs}


def _entry(turns: TurnSamples, judged: ComparisonVerdict | None) -> str:
    median = f"{statistics.median(ms for block in turns.blocks for ms in block.latency_ms):.3f}"
    if judged is None or judged.ratio is None:
        return median
    return f"{median} ({(judged.ratio - 1) * 100:+.1f} %{VERDICTS[judged.verdict]})"


if __name__ == "__main__":
    main()
