"""Whether rows get into a batch while the engine computes another one: copies beside inferences.

    python benchmarks/runtime/overlap.py FOLDER [--rounds 3] [--json FILE]

FOLDER holds a build for a GPU; its largest engine runs in one thread and stream, copies of as many rows as
its batch holds in another, by the ways of gathering.py that leave the host's cores alone. Milliseconds of
either, alone and during the other; medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from contextlib import ExitStack, closing
from pathlib import Path

from gathering import repeated, ways

from trtopt.device.backends import open_target
from trtopt.files.manifests import read_manifest
from trtopt.onnxio.element_types import numpy_dtype

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))

from bare import query


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    request = parser.parse_args()
    engine = max(read_manifest(request.folder).engines, key=lambda one: one.plan.batch.max)
    (rows,) = engine.plan.batch.max
    row_bytes = sum(
        math.prod(engine.plan.shapes[spec.name].opt[1:]) * numpy_dtype(spec.dtype).itemsize
        for spec in engine.inputs
    )
    rates: dict[str, list[list[float]]] = {}
    with closing(open_target(engine.plan.backend.name)) as target, ExitStack() as resources:
        compute = query(target, request.folder, rows, resources)
        copies = ways(target.device, {}, rows, row_bytes, resources)
        together = {name: [copy] for name, copy in copies.items()}
        together |= {f"inference, {name}": [compute, copy] for name, copy in copies.items()}
        for _ in range(request.rounds):
            for name, works in {"inference": [compute], **together}.items():
                rates.setdefault(name, []).append(repeated(target.device, works))
    medians = {
        name: [round(1e3 / statistics.median(each), 3) for each in zip(*rounds, strict=True)]
        for name, rounds in rates.items()
    }
    result = {"rows": rows, "row_bytes": row_bytes, "ms": medians}
    print(json.dumps(result, indent=1))
    if request.json:
        request.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
