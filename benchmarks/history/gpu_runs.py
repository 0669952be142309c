"""What `trtopt history` says of real runs: many of one engine on a GPU, then five of a slower one.

    python benchmarks/history/gpu_runs.py run OUT [--runs 60] [--seconds 200]
    python benchmarks/history/gpu_runs.py judge OUT     # no GPU; writes results/gpu-runs.json

`run` builds an encoder of two layers of BERT-base (seeded, FP16, batch 8) at builder optimisation levels 3
and 0, and measures for a second each time. The results are the history OUT/history. It ends early where the
time is over, and leaves time for the slower engine. `judge` gives the same runs to the rules of rates.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import onnx
from rates import AFTER, RULES

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import trtopt
from tests.support.encoders import Encoder
from trtopt.records import BenchReport, read_versioned

HERE = Path(__file__).resolve().parent
SOURCES = ("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")


def run(args: argparse.Namespace) -> None:
    """Equal runs while there is time, then those of the other engine."""
    end, backend = time.monotonic() + args.seconds, args.backend
    args.out.mkdir(parents=True, exist_ok=True)
    model, history = args.out / "encoder.onnx", args.out / "history"
    onnx.save(Encoder(layers=2, batch="N", tokens=128, inner=3072).model(), model)
    on_gpu = {"precision": "fp16", "tactic_sources": SOURCES} if backend == "tensorrt" else {}
    for level in ("3", "0"):
        own = {"opt_level": int(level)} if backend == "tensorrt" else {}
        if not (args.out / level).is_dir():
            trtopt.build(model, args.out / level, batch=8, backend=backend, **on_gpu, **own)
    longest = 0.0
    for number in range(args.runs + AFTER):
        level = "3" if number < args.runs else "0"
        if level == "3" and time.monotonic() + (AFTER + 1) * longest > end:
            continue
        began = time.monotonic()
        result = args.out / f"{number:03}.json"
        result.write_text(json.dumps(trtopt.bench(args.out / level, duration=1).to_dict()))
        trtopt.add_to_history(history, [result])
        result.unlink()
        longest = max(longest, time.monotonic() - began)
        print(f"{number} at level {level}: {time.monotonic() - began:.1f} s", flush=True)


def judge(args: argparse.Namespace) -> None:
    """Each rule's alarms among the equal runs, and whether it sees the slower engine."""
    folder = args.out / "history"
    reports = [read_versioned(path.read_bytes(), BenchReport) for path in sorted(folder.glob("*.json"))]
    told = {
        "device": reports[0].environment.device.name,
        "driver": reports[0].environment.device.driver,
        "backend": str(reports[0].environment.backend),
        "date": reports[0].created[:10],
        "series": [],
    }
    for series in trtopt.history(folder).series:
        if series.mode != "latency":
            continue
        runs = [np.array(report.points[0].latency.samples.latency_ms) for report in reports]
        change = float(np.median([np.median(one) for one in runs[-AFTER:]]))
        change /= float(np.median([np.median(one) for one in runs[:-AFTER]]))
        rules = {}
        for name, rule in RULES.items():
            before = rule(runs[:-AFTER])
            after = [one for one in rule(runs) if one not in before]
            found = any(at >= len(runs) - 2 * AFTER and way == np.sign(change - 1) for at, way in after)
            rules[name] = {"alarms": len(before), "equal_runs": len(runs) - AFTER, "found": found}
        told["series"].append(
            {
                "device": series.device,
                "figures": [one.figures for one in series.runs],
                "planted_ratio": round(change, 4),
                "rules": rules,
                "changes": [
                    {
                        "run": [one.file for one in series.runs].index(one.file),
                        "figure": one.figure,
                        "ratio": round(one.ratio, 4),
                        "causes": [cause.what for cause in one.causes],
                    }
                    for one in series.changes
                ],
                "verdict": f"{series.verdict}: {series.reason}",
            }
        )
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "gpu-runs.json").write_text(json.dumps(told, indent=1) + "\n")
    for one in told["series"]:
        print(one["device"], one["planted_ratio"], one["rules"], one["changes"], one["verdict"], sep="\n  ")


def main() -> None:
    """Run or judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    steps = parser.add_subparsers(required=True)
    for step in (run, judge):
        own = steps.add_parser(step.__name__)
        own.add_argument("out", type=Path)
        own.set_defaults(step=step)
        if step is run:
            own.add_argument("--runs", type=int, default=60)
            own.add_argument("--seconds", type=float, default=200)
            own.add_argument("--backend", default="tensorrt")
    args = parser.parse_args()
    args.step(args)


if __name__ == "__main__":
    main()
