"""How much separate runs of one engine differ on a device: measured by controls, kept for what compares runs
or predicts their noise."""

from __future__ import annotations

import hashlib
from pathlib import Path

from trtopt.errors import OutputError
from trtopt.files.atomic import write_atomically
from trtopt.files.bounded_reading import read_bounded
from trtopt.measure.statistics.comparison import RunSpread
from trtopt.records import DeviceInfo, MeasuredRunSpread, read_versioned, to_json
from trtopt.workflows.build.timing_cache_commands import store_folder
from trtopt.workflows.invocation import now

_NAME_DIGITS = 16


def keep_run_spread(device: DeviceInfo, spread: RunSpread) -> str:
    """Keep it for a device, in place of an earlier one; a note on what was kept."""
    assert spread.runs is not None
    kept = MeasuredRunSpread(created=now(), device=device, deviation=spread.deviation, runs=spread.runs)
    found = f"{spread.runs} runs of A on {device.name} differ by {spread.deviation:.2%} (standard deviation)"
    try:
        write_atomically(_file_of(device), to_json(kept))
    except OutputError as error:
        return f"{found}; not kept for comparisons of result files and for tuning: {error.problem}"
    return f"{found}; kept for comparisons of result files and for tuning"


def measured_run_spread(device: DeviceInfo) -> MeasuredRunSpread | None:
    """What was kept for a device; None where nothing was, or it cannot be read."""
    try:
        kept = read_versioned(read_bounded(_file_of(device)), MeasuredRunSpread)
    except (OSError, ValueError):
        return None
    return kept if kept.deviation >= 0 and kept.runs > 1 else None


def _file_of(device: DeviceInfo) -> Path:
    """By the device's own number; processors have none, and are known by their names."""
    name = device.uuid or device.name
    return store_folder() / "run-spread" / f"{hashlib.sha256(name.encode()).hexdigest()[:_NAME_DIGITS]}.json"
