"""What a collection run measured: `python table.py OUT_FOLDER LOG_FOLDER SUMMARY.json`.

Prints a table as Markdown and what failed, and writes the figures behind both without their raw samples.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from trtopt.measure.loop.interleaved import pooled_ms, valid_rounds
from trtopt.measure.statistics.summaries import summarise
from trtopt.records import BenchPoint, BenchReport, CompareReport, Manifest, from_json, read_versioned

BATCHES = (1, 8, 32, 128)


def main() -> None:
    """Print and write."""
    out, logs, summary = map(Path, sys.argv[1:4])
    engines = [_engine(path, out) for path in sorted(out.glob("*.manifest.json"))]
    failures = {log.stem: entry for log in sorted(logs.glob("*.log")) if (entry := _failure(log))}
    pairs = {
        path.name.removesuffix(".compare.json"): _pair(path) for path in sorted(out.glob("*.compare.json"))
    }
    summary.write_text(
        json.dumps({"engines": engines, "compared": pairs, "failures": failures}, indent=1) + "\n"
    )
    heads = " | ".join(f"{what} {batch}" for what in ("ms at", "samples/s at") for batch in BATCHES)
    print(f"| engine | {heads} | build s | MiB |\n|---|{'---|' * (2 * len(BATCHES) + 2)}")
    for engine in engines:
        points = engine["points"]
        cells = [f"{points[b]['p50_ms']:.3f}" if b in points else "–" for b in BATCHES]
        cells += [f"{points[b]['samples_per_s']:,.0f}" if b in points else "–" for b in BATCHES]
        print(
            "| "
            + " | ".join([engine["label"], *cells, f"{engine['build_s']:.0f}", f"{engine['mib']:.0f}"])
            + " |"
        )
    print("\nNot built or not measured:\n")
    for name, entry in failures.items():
        print(f"- {name}: {entry}")


def _engine(manifest: Path, out: Path) -> dict[str, Any]:
    built = from_json(manifest.read_bytes(), Manifest).engines[0]
    label = manifest.name.removesuffix(".manifest.json")
    result = out / f"{label}.json"
    report = from_json(result.read_bytes(), BenchReport) if result.is_file() else None
    return {
        "label": label,
        "engine_sha256": built.sha256,
        "build_s": built.build_seconds,
        "cache_hits": built.timing_cache_hits,
        "mib": built.size_bytes / 2**20,
        "points": {point.batch: _point(point) for point in report.points} if report else {},
    }


def _point(point: BenchPoint) -> dict[str, float | None]:
    samples = (point.throughput or point.latency).samples
    entry = summarise(point.latency.samples.latency_ms)
    return {
        "queries": entry.count,
        "p50_ms": entry.median,
        "p90_ms": entry.percentiles[90.0],
        "p99_ms": entry.percentiles[99.0],
        "samples_per_s": len(samples.start_ms) * point.batch / samples.wall_ms * 1e3,
    }


def _pair(path: Path) -> list[dict[str, Any]]:
    report = read_versioned(path.read_bytes(), CompareReport)
    return [
        {
            "batch": run.batch,
            "ms": [pooled_ms(turns) for turns in valid_rounds(run).turns],
            "verdict": verdict.verdict,
            "reasons": verdict.reasons,
        }
        for run, verdict in zip(report.runs, report.verdicts, strict=True)
    ]


def _failure(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    if any(line.startswith("exit status 0") for line in lines):
        return ""
    return (
        " ".join([line for line in lines if line.startswith(("trtopt:", "exit status"))][1:])[:400]
        or "stopped"
    )


if __name__ == "__main__":
    main()
