"""A sweep against each of its points alone without a shared cache; points of it measured by a plain loop.

    python benchmarks/sweep/sweep.py jobs PART LIGHT.onnx.gz WORK OUT [option …] > JOBS.json
    python benchmarks/shared/on_every_gpu.py JOBS.json DONE SECONDS --gpus 0
    python benchmarks/sweep/sweep.py table OUT

PART `whole` is one sweep, on as many GPUs as its `--jobs` may build on. `alone` sweeps each point into a
folder of its own with no timing cache, prepared again, in any order on any GPU. `again` needs the whole one,
and measures `--points` [fp16:8,int8:64] of it by `trtopt bench` and by a loop of this file. A command's time
is from its start to its end; one that was ended and started again has none.
LIGHT is a graph of `weights.py` in FP32. `--batch` [1,2,4,8,16,32,64,128], `--precision` [fp16,int8] and
`--seconds` [1] of sampling a pass say what is swept; further options go to `trtopt sweep`.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from trtopt.data.random_inputs import random_batch
from trtopt.device.backends import open_target
from trtopt.files.manifests import read_manifest
from trtopt.measure.statistics.intervals import Interval, percentile_interval
from trtopt.onnxio.model_info import read_onnx
from trtopt.records import BenchReport, SweepReport, from_json

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))

from bare import query

HERE = Path(__file__)
SAMPLES = 32
"""Of seeded noise, to calibrate on: scales of any values cost a GPU the same."""
WARMUP_S = 0.5


def main() -> None:
    """Print the jobs or the table, or do a step of a job."""
    parser = argparse.ArgumentParser()
    steps = parser.add_subparsers(dest="step", required=True)
    jobs = steps.add_parser("jobs")
    jobs.add_argument("part", choices=["whole", "alone", "again"])
    for name in ("light", "work", "out"):
        jobs.add_argument(name, type=lambda text: Path(text).absolute())
    jobs.add_argument("--batch", default="1,2,4,8,16,32,64,128")
    jobs.add_argument("--precision", default="fp16,int8")
    jobs.add_argument("--points", default="fp16:8,int8:64")
    jobs.add_argument("--seconds", default="1")
    steps.add_parser("calib").add_argument("paths", nargs=2, type=Path, metavar="MODEL.onnx CALIB.npz")
    hand = steps.add_parser("hand")
    hand.add_argument("folder", type=Path)
    hand.add_argument("batch", type=int)
    hand.add_argument("seconds", type=float)
    hand.add_argument("out", type=Path)
    steps.add_parser("table").add_argument("out", type=Path)
    request, options = parser.parse_known_args()
    if request.step == "jobs":
        json.dump(_jobs(request, options), sys.stdout, indent=1)
        return
    if options:
        parser.error(f"unrecognized arguments: {' '.join(options)}")
    if request.step == "calib":
        _calibration(*request.paths)
    elif request.step == "hand":
        request.out.write_text(json.dumps(_by_hand_ms(request.folder, request.batch, request.seconds)))
    else:
        _table(request.out)


# ── the jobs ────────────────────────────────────────────────────────────────────────────────────────────


def _jobs(request: argparse.Namespace, options: list[str]) -> list[dict[str, str]]:
    own = [sys.executable, str(HERE.absolute())]
    if request.part == "again":
        return [_again(request, own, *point.split(":")) for point in request.points.split(",")]
    model, calib = request.work / f"{request.part}.onnx", request.work / f"{request.part}.npz"
    fill = [
        sys.executable,
        str(HERE.absolute().parents[1] / "shared" / "weights.py"),
        "fill",
        str(request.light),
    ]
    made = [*fill, str(model)], [*own, "calib", str(model), str(calib)]
    folders = ["mkdir", "-p", str(request.work), str(request.out)]
    sweep = [str(model), "--data", str(calib), "--duration", request.seconds, *options]
    jobs = [{"name": f"{request.part}-model", "run": _lines(folders, *made)}]
    if request.part == "whole":
        return [
            *jobs,
            {"name": "whole", "run": _sweep(request, sweep, "whole", request.precision, request.batch)},
        ]
    batches = sorted(request.batch.split(","), key=lambda batch: _far_first(request.batch.split(","), batch))
    for batch in batches:  # from both ends, so that a few of them stand for all
        for precision in request.precision.split(","):
            name = f"alone-{precision}-{batch}"
            jobs.append({"name": name, "run": _sweep(request, sweep, name, precision, batch)})
    return jobs


def _far_first(batches: list[str], batch: str) -> int:
    at = batches.index(batch)
    return min(at, len(batches) - 1 - at)


def _sweep(request: argparse.Namespace, sweep: list[str], name: str, precision: str, batch: str) -> str:
    folder = request.work / name
    cache = ["--cache-dir", str(request.work / "cache")] if name == "whole" else ["--timing-cache", "none"]
    fresh = [] if name == "whole" else [["rm", "-rf", str(folder)]]
    what = ["--precision", precision, "--batch", batch, "-o", str(folder), *cache]
    begun, ended = (shlex.quote(str(request.out / f"{name}.{end}")) for end in ("begun", "ended"))
    return "\n".join(
        (
            _lines(*fresh),
            f"date +%s.%N >> {begun}",
            shlex.join([sys.executable, "-m", "trtopt", "sweep", *sweep, *what]),
            f"date +%s.%N > {ended}",
            shlex.join(["cp", str(folder / "sweep.json"), str(request.out / f"{name}.json")]),
        )
    )


def _again(request: argparse.Namespace, own: list[str], precision: str, batch: str) -> dict[str, str]:
    folder, name = request.work / "whole" / "builds" / precision, f"again-{precision}-{batch}"
    result = f"{precision}-batch{batch}-*.json"
    bench = [sys.executable, "-m", "trtopt", "bench", str(folder), "--batch", batch]
    run = (
        [*bench, "--duration", request.seconds, "--json", str(request.out / f"{name}.bench.json")],
        [*own, "hand", str(folder), batch, request.seconds, str(request.out / f"{name}.hand.json")],
    )
    results, kept = request.work / "whole" / "results", request.out / f"{name}.sweep.json"
    copy = f"cp {shlex.quote(str(results))}/{result} {shlex.quote(str(kept))}"
    return {"name": name, "run": f"{_lines(*run)}\n{copy}"}


def _lines(*commands: list[str]) -> str:
    return "\n".join(["set -eu", *map(shlex.join, commands)])


def _calibration(model: Path, target: Path) -> None:
    inputs = read_onnx(model).inputs
    shapes = {spec.name: (SAMPLES, *(int(axis) for axis in spec.shape[1:])) for spec in inputs}
    np.savez(target, **random_batch(inputs, shapes))


def _by_hand_ms(folder: Path, batch: int, seconds: float) -> list[float]:
    """Each query's latency by a plain loop: launch, wait, read the clock. Nothing of `trtopt.measure`."""
    backend = read_manifest(folder).engines[0].plan.backend.name
    with ExitStack() as resources:
        target = resources.enter_context(closing(open_target(backend)))
        return _timed_ms(query(target, folder, batch, resources), seconds)


def _timed_ms(run: Callable[[], None], seconds: float) -> list[float]:
    times: list[float] = []
    begin = time.perf_counter()
    while (start := time.perf_counter()) - begin < WARMUP_S + seconds:
        run()
        if start - begin >= WARMUP_S:
            times.append((time.perf_counter() - start) * 1e3)
    return times


# ── the table ───────────────────────────────────────────────────────────────────────────────────────────


def _table(out: Path) -> None:
    """Seconds of the whole sweep, of each point of it and alone, and what was measured twice."""
    whole = from_json((out / "whole.json").read_bytes(), SweepReport)
    print("| point | building it in the sweep, s | building it alone, s | all of it alone, s |")
    print("|---|--:|--:|--:|")
    builds_s, alone_s = 0.0, {}
    for point in whole.points:
        name = f"alone-{point.setting.precision}-{point.setting.batch}"
        seconds = _seconds(out, name)
        report = (_described(one) for one in (point.build_seconds, _build_s(out / f"{name}.json"), seconds))
        print(f"| {' | '.join([point.label, *report])} |")
        if point.failure is not None:
            print(f"|  | failed: {point.failure} | | |")
        builds_s += point.build_seconds or 0.0
        if seconds is not None:
            alone_s[point.label] = seconds
    swept_s, sum_s = _seconds(out, "whole"), sum(alone_s.values())
    print(f"\nThe sweep took {_described(swept_s)} s, its builds {builds_s:,.0f} s of GPUs.", end=" ")
    print(f"{len(alone_s)} of {len(whole.points)} points alone took {sum_s:,.0f} s.", end=" ")
    if swept_s is not None and len(alone_s) == len(whole.points):
        print(f"That is {swept_s / sum_s:.2f} of the time.", end="")
    print()
    _table_again(out)


def _seconds(out: Path, name: str) -> float | None:
    """How long the command took; None if it has not ended, or was begun more than once."""
    begun, ended = out / f"{name}.begun", out / f"{name}.ended"
    if not ended.is_file() or len(starts := begun.read_text().split()) != 1:
        return None
    return float(ended.read_text()) - float(starts[0])


def _build_s(path: Path) -> float | None:
    if not path.is_file():
        return None
    return from_json(path.read_bytes(), SweepReport).points[0].build_seconds


def _described(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:,.1f}"


def _table_again(out: Path) -> None:
    """Medians with 95 % intervals: the sweep's, those of another process, and those of the plain loop."""
    found = sorted(out.glob("again-*.hand.json"))
    if found:
        print("\n| point | the sweep's ms | `trtopt bench` | off by | plain loop | off by |")
        print("|---|--:|--:|--:|--:|--:|")
    for path in found:
        name = path.name.removesuffix(".hand.json")
        swept, bench = (_interval(_latencies(out / f"{name}.{way}.json")) for way in ("sweep", "bench"))
        hand = _interval(json.loads(path.read_text()))
        cells = [_with_interval(swept)]
        for other in (bench, hand):
            agree = (other.low or 0.0) <= (swept.high or math.inf) and (swept.low or 0.0) <= (
                other.high or math.inf
            )
            off = f"{(other.value / swept.value - 1) * 100:+.2f} %"
            cells += [_with_interval(other), off if agree else f"{off}, outside"]
        print(f"| {name.removeprefix('again-')} | {' | '.join(cells)} |")


def _latencies(path: Path) -> list[float]:
    (point,) = from_json(path.read_bytes(), BenchReport).points
    return point.latency.samples.latency_ms


def _interval(values: list[float]) -> Interval:
    return percentile_interval(values, 50.0)


def _with_interval(one: Interval) -> str:
    low, high = ("open" if bound is None else f"{bound:.4f}" for bound in (one.low, one.high))
    return f"{one.value:.4f} ({low} to {high})"


if __name__ == "__main__":
    main()
