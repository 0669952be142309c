"""The table of a collection run, as Markdown: `python table.py OUT_FOLDER LOG_FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from trtopt.measure.statistics import summarise
from trtopt.records import BenchPoint, BenchReport, Manifest, from_json

BATCHES = (1, 8, 32, 128)
ENGINES = {"each": "one a batch size", "any": "one, tuned at 8"}


def main() -> None:
    """Print latency, throughput and build time of each label and batch, and what failed."""
    out, logs = map(Path, sys.argv[1:3])
    heads = " | ".join(f"{what} {batch}" for what in ("ms at", "samples/s at") for batch in BATCHES)
    print(f"| model | engine | {heads} | build s |\n|---|---|{'---|' * (2 * len(BATCHES) + 1)}")
    labels = sorted({path.name.rsplit("-", 1)[0] for path in out.glob("*.manifest.json")})
    for label in labels:
        for kind, files in {
            "each": [f"{label}-{batch}" for batch in BATCHES],
            "any": [f"{label}-any"],
        }.items():
            points = {point.batch: point for file in files for point in _points(out / f"{file}.json")}
            if points:
                built = ", ".join(_build_seconds(out / f"{file}.manifest.json") for file in files)
                print(f"| {label} | {ENGINES[kind]} | {_figures(points)} | {built} |")
    print("\nNot built or not measured:\n")
    for log in sorted(logs.glob("*.log")):
        lines = log.read_text(errors="replace").splitlines()
        if not any(line.startswith("exit status 0") for line in lines):
            told = [line for line in lines if line.startswith("trtopt:") or "exit status" in line]
            print(f"- {log.stem}: {' '.join(told[-2:])[:300] or 'stopped'}")


def _points(path: Path) -> tuple[BenchPoint, ...]:
    return from_json(path.read_bytes(), BenchReport).points if path.is_file() else ()


def _figures(points: dict[int, BenchPoint]) -> str:
    found = [points.get(batch) for batch in BATCHES]
    latencies = [f"{summarise(p.latency.samples.latency_ms).median:.3f}" if p else "–" for p in found]
    return " | ".join(latencies + [f"{_samples_per_s(p):,.0f}" if p else "–" for p in found])


def _samples_per_s(measured: BenchPoint) -> float:
    """Of the pass with a query queued ahead."""
    samples = (measured.throughput or measured.latency).samples
    return len(samples.start_ms) * measured.batch / samples.wall_ms * 1e3


def _build_seconds(manifest: Path) -> str:
    if not manifest.is_file():
        return "–"
    return f"{from_json(manifest.read_bytes(), Manifest).engines[0].build_seconds:.0f}"


if __name__ == "__main__":
    main()
