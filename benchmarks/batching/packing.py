"""BERT with several sequences in a row against BERT with each padded up: estimated, and measured.

    python benchmarks/batching/packing.py jobs PLAIN PACKED WORK OUT [option …] > JOBS.json
    python benchmarks/shared/on_every_gpu.py JOBS.json DONE SECONDS --gpus 0
    python benchmarks/batching/packing.py table OUT 40:0.3,80:0.3,128:0.2,200:0.1,384:0.1

PLAIN and PACKED are graphs of `weights.py` with the inputs of bert-base and bert-base-packed. PLAIN is swept
over `--lengths` [128,384], PACKED over the longest, both at `--batch` [1,8,32]; other options go to `trtopt
sweep`. The table is for requests whose lengths have those shares: 6,000 are drawn.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trtopt.records import SweepReport, from_json
from trtopt.serving.planning.simulation import lengths_of

WEIGHTS = Path(__file__).parents[1] / "shared" / "weights.py"
DRAWN = 6000
MOST = 3
"""Sequences in a row: Krell et al. (2021, arXiv:2107.02027) found that more gain next to nothing."""


def main() -> None:
    """Print the jobs, or the table."""
    parser = argparse.ArgumentParser()
    steps = parser.add_subparsers(dest="step", required=True)
    jobs = steps.add_parser("jobs")
    for name in ("plain", "packed", "work", "out"):
        jobs.add_argument(name, type=lambda text: Path(text).absolute())
    jobs.add_argument("--lengths", default="128,384")
    jobs.add_argument("--batch", default="1,8,32")
    table = steps.add_parser("table")
    table.add_argument("out", type=Path)
    table.add_argument("shares")
    request, options = parser.parse_known_args()
    if request.step == "jobs":
        json.dump(_jobs(request, options), sys.stdout, indent=1)
        return
    pairs = (pair.split(":") for pair in request.shares.split(","))
    _table(request.out, {int(length): float(share) for length, share in pairs})


def _jobs(request: argparse.Namespace, options: list[str]) -> list[dict[str, str]]:
    longest = max(request.lengths.split(","), key=int)
    jobs = []
    for name, light, lengths in (
        ("packed", request.packed, longest),
        ("plain", request.plain, request.lengths),
    ):
        model, folder = request.work / f"{name}.onnx", request.work / name
        sweep = [
            "sweep",
            str(model),
            "-o",
            str(folder),
            "--batch",
            request.batch,
            "--rewrite",
            "none",
            *options,
        ]
        commands = (
            ["mkdir", "-p", str(request.work), str(request.out)],
            [sys.executable, str(WEIGHTS), "fill", str(light), str(model)],
            [sys.executable, "-m", "trtopt", *sweep, "--axis", f"sequence={lengths}"],
            ["cp", str(folder / "sweep.json"), str(request.out / f"{name}.sweep.json")],
        )
        jobs.append({"name": name, "run": "\n".join(["set -eu", *map(shlex.join, commands)])})
    return jobs


# ── the table ───────────────────────────────────────────────────────────────────────────────────────────


def _table(out: Path, shares: dict[int, float]) -> None:
    """Padding and requests a second, each row in a batch of the size that does most rows a second."""
    plain, packed = (_rows_per_s(out / f"{name}.sweep.json") for name in ("plain", "packed"))
    lengths = lengths_of("poisson", shares, DRAWN, 0)
    buckets = np.asarray(sorted(plain))
    padded = buckets[np.searchsorted(buckets, lengths)]
    ((row, (packed_rate, batch)),) = packed.items()
    window = MOST * batch
    drawn = lengths.tolist()
    windows = [drawn[at : at + window] for at in range(0, DRAWN, window)]
    rows = sum(len(first_fit_decreasing(one, row)) for one in windows)
    alone_s = sum(np.count_nonzero(padded == length) / rate for length, (rate, _) in plain.items())
    full = lengths.sum()
    print("| | rows | padding | requests/s |\n|---|---|---|---|")
    summary = " or ".join(map(str, buckets))
    print(f"| padded up to {summary} | {DRAWN} | {1 - full / padded.sum():.0%} | {DRAWN / alone_s:,.1f} |")
    ways = {"estimated by rows of bert-base": plain[row][0], "measured with bert-base-packed": packed_rate}
    for way, rate in ways.items():
        share = 1 - full / (rows * row)
        print(f"| packed into {row}, {way} | {rows} | {share:.0%} | {DRAWN * rate / rows:,.1f} |")
    print(f"\nFirst-fit decreasing of {window} requests at a time, up to {MOST} a row: {DRAWN / rows:.2f}.")


def _rows_per_s(path: Path) -> dict[int, tuple[float, int]]:
    """By length: the most rows a second of any batch size, and that batch size."""
    report = from_json(path.read_bytes(), SweepReport)
    found: dict[int, tuple[float, int]] = {}
    for point in report.measured:
        ((_, length),) = point.setting.axes.items()
        found[length] = max(found.get(length, (0.0, 0)), (point.samples_per_s or 0.0, point.setting.batch))
    return found


def first_fit_decreasing(lengths: Sequence[int], row: int, most: int = MOST) -> list[list[int]]:
    """Pack sequences into rows of `row` tokens, at most `most` to a row; rows of indices into `lengths`.

    The longest first, each into the first row that has room for it: first-fit decreasing (Johnson 1973,
    "Near-optimal bin packing algorithms"), with a bound on the items of a bin (Krause, Shen and Schwetman
    1975). Of equal lengths the earlier one goes first.
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda one: -lengths[one]):
        length = lengths[index]
        place = next((at for at, left in enumerate(room) if left >= length and len(rows[at]) < most), None)
        if place is None:
            rows.append([index])
            room.append(row - length)
        else:
            rows[place].append(index)
            room[place] -= length
    return rows


if __name__ == "__main__":
    main()
