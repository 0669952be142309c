"""The table of a collection run, as Markdown: `python table.py OUT_FOLDER LOG_FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from trtopt.measure.statistics import summarise
from trtopt.records import BenchPoint, BenchReport, Manifest, from_json

BATCHES = (1, 8, 32)


def main() -> None:
    """Print latency, throughput and build time of each label and batch, and what failed."""
    out, logs = map(Path, sys.argv[1:3])
    labels = sorted({path.name.rsplit("-", 1)[0] for path in out.glob("*.manifest.json")})
    heads = " | ".join(f"{what} {batch}" for what in ("ms at", "samples/s at") for batch in BATCHES)
    print(f"| model | {heads} | build s |\n|---|{'---|' * 7}")
    for label in labels:
        found = {batch: point(out / f"{label}-{batch}.json") for batch in BATCHES}
        latencies = [
            f"{summarise(p.latency.samples.latency_ms).median:.3f}" if p else "–" for p in found.values()
        ]
        rates = [f"{samples_per_s(p):,.0f}" if p else "–" for p in found.values()]
        print(f"| {label} | {' | '.join(latencies + rates)} | {build_seconds(out, label)} |")
    print("\nNot built:\n")
    for log in sorted(logs.glob("*.log")):
        for line in log.read_text(errors="replace").splitlines():
            if (line.startswith("trtopt:") and "error" in line.lower()) or "build failed" in line:
                print(f"- {log.stem}: {line}")


def point(path: Path) -> BenchPoint | None:
    """The file's one point, if it was measured."""
    return from_json(path.read_bytes(), BenchReport).points[0] if path.is_file() else None


def samples_per_s(measured: BenchPoint) -> float:
    """Of the pass with a query queued ahead."""
    samples = (measured.throughput or measured.latency).samples
    return len(samples.start_ms) * measured.batch / samples.wall_ms * 1e3


def build_seconds(out: Path, label: str) -> str:
    """Of each batch's engine, in the order of building."""
    manifests = (out / f"{label}-{batch}.manifest.json" for batch in BATCHES)
    return ", ".join(
        f"{from_json(path.read_bytes(), Manifest).engines[0].build_seconds:.0f}"
        for path in manifests
        if path.is_file()
    )


if __name__ == "__main__":
    main()
