"""Measurements in the layouts of trtexec's own `--exportTimes` and `--exportProfile` files.

Both are lists of objects with times in milliseconds, alike in TensorRT 8.6 and 10.x (samples/common,
sampleReporting.cpp: exportJSONTrace and exportJSONProfile); up to 8.4 times also had an `endToEndMs`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from trtopt.files.outputs import kind_beginning
from trtopt.records import LayerPass, Samples

TIMES = kind_beginning("bench's times", b'[\n  {"startEnqMs": ')  # trtexec itself puts blanks elsewhere
LAYERS = kind_beginning("bench's layers", b'[\n  {"count": ')


def path_for(path: Path, batch: int, batches: int) -> Path:
    """The export file of a batch size: trtexec's files hold one batch size each.

    `times.json` is used unchanged for one batch size, and becomes `times.batch8.json` among several.
    """
    return path if batches == 1 else path.with_name(f"{path.stem}.batch{batch}{path.suffix}")


def times(samples: Samples) -> bytes:
    """A file in the format of `--exportTimes`: one object per query whose stages the device timed.

    `latencyMs` is trtexec's: copies and computing, without what the host adds. Durations are those of the
    device's events. Their places in time are the host's: a query's stages end where the host had the output
    and follow one another without a gap, so give a pass with one query in flight. Without copies, H2D begins
    and ends with the beginning of compute and D2H with its end, as with trtexec's `--noDataTransfers`.
    """
    idle = [0.0] * len(samples.start_ms)
    columns = zip(
        samples.start_ms,
        samples.end_ms,
        samples.enqueue_ms,
        samples.h2d_ms or idle,
        samples.gpu_compute_ms,
        samples.d2h_ms or idle,
        strict=True,
    )
    return _lines([_query(*row) for row in columns])


def _query(
    start: float, end: float, enqueue: float, h2d: float, compute: float, d2h: float
) -> dict[str, float]:
    computed = end - d2h
    copied = computed - compute
    return {
        "startEnqMs": start,
        "endEnqMs": start + enqueue,
        "startH2dMs": copied - h2d,
        "endH2dMs": copied,
        "startComputeMs": copied,
        "endComputeMs": computed,
        "startD2hMs": computed,
        "endD2hMs": end,
        "h2dMs": h2d,
        "computeMs": compute,
        "d2hMs": d2h,
        "latencyMs": h2d + compute + d2h,
    }


def profile(layers: LayerPass) -> bytes:
    """A file in the format of `--exportProfile`: first the number of runs, then one object per layer.

    `timeMs` is the sum over all runs, `percentage` a layer's share in the sum of all layers.
    """
    total = sum(sum(layer.ms) for layer in layers.layers)
    rows: list[Mapping[str, str | float]] = [{"count": layers.runs}]
    for layer in layers.layers:
        spent = sum(layer.ms)
        rows.append(
            {
                "name": layer.name,
                "timeMs": spent,
                "averageMs": spent / len(layer.ms),
                "medianMs": median(layer.ms),
                "percentage": spent / total * 100 if total else 0.0,
            }
        )
    return _lines(rows)


def _lines(rows: Sequence[Mapping[str, str | float]]) -> bytes:
    """One object per line, numbers to the nanosecond."""
    rounded = (
        {key: round(value, 6) if isinstance(value, float) else value for key, value in row.items()}
        for row in rows
    )
    return ("[\n  " + "\n, ".join(json.dumps(row) for row in rounded) + "\n]\n").encode()
