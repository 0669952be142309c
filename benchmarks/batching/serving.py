"""Plans put to the test at shares of the best throughput, and what the batcher costs, on a sweep's engines.

    python benchmarks/batching/serving.py jobs SWEEP OUT [--slo p99=5ms] [--precision fp16] > JOBS.json
    python benchmarks/shared/on_every_gpu.py JOBS.json DONE SECONDS --gpus 0
    python benchmarks/batching/serving.py table OUT

SWEEP is a folder of `trtopt sweep`. The best throughput is the highest rate for which `trtopt plan` finds a
setup that keeps the goal; `--shares` [0.6,0.9] of it are planned for and served. The batcher's overhead is
measured on the engines of `--precision`, with 1, 2 and 4 workers. The jobs follow one another on one GPU.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

from trtopt.files.manifests import read_plan
from trtopt.records import Estimate

HERE = Path(__file__)
OVERHEAD = HERE.parents[1] / "runtime" / "overhead.py"
WORKERS = (1, 2, 4)


def main() -> None:
    """Print the jobs or the table, or plan for a share of the best rate."""
    parser = argparse.ArgumentParser()
    steps = parser.add_subparsers(dest="step", required=True)
    jobs, plan, table = (steps.add_parser(name) for name in ("jobs", "plan", "table"))
    for step in (jobs, plan):
        step.add_argument("sweep", type=lambda text: Path(text).absolute())
    for step in (jobs, plan, table):
        step.add_argument("out", type=lambda text: Path(text).absolute())
    for step in (jobs, plan):
        step.add_argument("--slo", default="p99=5ms")
    jobs.add_argument("--shares", default="0.6,0.9")
    jobs.add_argument("--precision", default="fp16")
    jobs.add_argument("--rounds", default="5")
    plan.add_argument("share", type=float)
    args = parser.parse_args()
    if args.step == "jobs":
        json.dump(_jobs(args), sys.stdout, indent=1)
    elif args.step == "plan":
        best = read_plan(args.out / "best.json").load.rate
        plan_for = _planning(
            args,
            f"{args.share:g}",
            "--rate",
            f"{args.share * best:.1f}",
            "--verify",
        )
        sys.exit(subprocess.run(plan_for, check=False).returncode)
    else:
        _table(args.out)


def _jobs(args: argparse.Namespace) -> list[dict[str, str]]:
    own, folder = (
        [sys.executable, str(HERE.absolute())],
        args.sweep / "builds" / args.precision,
    )
    jobs = {"best": [_planning(args, "best")]}
    for share in args.shares.split(","):
        jobs[share] = [
            [
                *own,
                "plan",
                str(args.sweep),
                str(args.out),
                "--slo",
                args.slo,
                share,
            ]
        ]
    for workers in WORKERS:
        result = ["--json", str(args.out / f"overhead-{workers}.json")]
        way = ["--workers", str(workers), "--rounds", args.rounds]
        jobs[f"overhead-{workers}"] = [[sys.executable, str(OVERHEAD.absolute()), str(folder), *way, *result]]
    begin = ["set -eu", shlex.join(["mkdir", "-p", str(args.out)])]
    return [
        {"name": f"serving-{name}", "run": "\n".join([*begin, *map(shlex.join, commands)])}
        for name, commands in jobs.items()
    ]


def _planning(args: argparse.Namespace, name: str, *options: str) -> list[str]:
    target = str(args.out / f"{name}.json")
    return [
        sys.executable,
        "-m",
        "trtopt",
        "plan",
        str(args.sweep),
        "-o",
        target,
        "--slo",
        args.slo,
        *options,
    ]


# ── the table ───────────────────────────────────────────────────────────────────────────────────────────


def _table(out: Path) -> None:
    """What was predicted and what was measured, of each plan; then the batcher's microseconds."""
    print("| requests/s | engines | workers | batch | delay | | predicted | 95 % | measured | off by |")
    print("|--:|---|--:|--:|--:|---|--:|---|--:|--:|")
    for path in sorted(out.glob("[01].*.json")):
        plan = read_plan(path)
        setup = (
            f"{plan.load.rate:,.0f}",
            ", ".join(f"{one.precision} {one.artifact.plan.label}" for one in plan.engines),
            str(plan.workers),
            str(plan.policy.max_batch),
            f"{plan.policy.max_delay_ms:.2g} ms",
        )
        report, done = plan.prediction, plan.verification
        rows = [
            ("p50 ms", report.p50, done and done.typical.p50_ms),
            ("p99 ms", report.p99, done and done.typical.p99_ms),
            ("requests/s", report.throughput, done and done.typical.throughput),
        ]
        for name, estimate, measured in rows:
            print(f"| {' | '.join(setup)} | {name} | {' | '.join(_cells(estimate, measured))} |")
            setup = ("",) * len(setup)
        if done is not None:
            late = f"{done.total.lag_p99_ms:.2f} ms late in the 99th percentile"
            each = ", ".join(f"{one.p99_ms:.2f}" for one in done.runs)
            told_of_all = f"p99 of runs {each} ms, of all {done.total.p99_ms:.2f} ms; sent {late}"
            print(f"| | {done.answered:,} of {done.requests:,} answered; {told_of_all} | | | | | | | | |")
    _table_of_overhead(out)


def _cells(estimate: Estimate, measured: float | None) -> tuple[str, ...]:
    predicted = f"{estimate.value:,.2f}", f"{estimate.low:,.2f} to {estimate.high:,.2f}"
    if measured is None:
        return *predicted, "–", "–"
    return *predicted, f"{measured:,.2f}", f"{(measured / estimate.value - 1) * 100:+.1f} %"


def _table_of_overhead(out: Path) -> None:
    found = [json.loads(path.read_text()) for path in sorted(out.glob("overhead-*.json"))]
    for one in found:
        us, batch = one["us_per_request"], one["largest_batch"]
        print(f"\nWorkers: {one['workers']}.")
        print("µs a request, and throughput against the session alone:\n")
        print(f"| | one at a time | | batches of {batch} | |\n|---|--:|--:|--:|--:|")
        for name in ("session", "pool", "batcher"):
            cells = []
            for way in ("alone", "full"):
                value, bare = us[f"{way}: {name}"], us[f"{way}: session"]
                cells += [f"{value:.1f}", f"{bare / value:.0%}"]
            print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
