"""Runs cases one after the other and says a line before and after each: `python fuzz_worker.py --help`.

A case must end in success or a typed error, within the time limit, and leave no file behind. What this
process cannot tell, because it died or hangs in native code, the one that started it does (`fuzz_cases.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import FrameType

from tests.fuzz import fuzz_targets
from trtopt.errors import TrtoptError

TIME_LIMIT_S = 10
_MEMORY = 8 << 30
_OF_ONNXRUNTIME = "/.ses"
"""A file that importing ONNX Runtime leaves in the folder of temporary files."""


class _TimeIsUp(BaseException):
    """Not an Exception: whoever handles any must not handle this."""


def _time_is_up(number: int, frame: FrameType | None) -> None:
    raise _TimeIsUp


def run_case(target: fuzz_targets.Target, seeds: list[Path], number: int, scratch: Path) -> tuple[str, str]:
    """(outcome, detail): `read`, the error's class, or `FAULT` with what went wrong."""
    folder = scratch / "case"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path = fuzz_targets.prepare(target, seeds, number, folder)
    before = _files(scratch)
    signal.setitimer(signal.ITIMER_REAL, TIME_LIMIT_S)
    try:
        target.read(path)
        outcome, detail = "read", ""
    except TrtoptError as error:
        outcome, detail = type(error).__name__, ""
        if type(error) is TrtoptError:  # what names a mistake of trtopt's own
            outcome, detail = "FAULT", str(error)
        if not error.problem.strip() or not error.remedy.strip():
            outcome, detail = "FAULT", f"says no remedy: {error!r}"
    except _TimeIsUp:
        outcome, detail = "FAULT", f"over {TIME_LIMIT_S} s: {traceback.format_exc(limit=-4)}"
    except BaseException:  # noqa: BLE001  (anything else is what is looked for)
        outcome, detail = "FAULT", traceback.format_exc(limit=-5)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if stray := _files(scratch) - before:
        outcome, detail = "FAULT", f"left behind: {', '.join(sorted(stray))}"
    return outcome, detail


def _files(folder: Path) -> set[str]:
    found = (os.path.join(where, name) for where, _, names in os.walk(folder) for name in names)
    return {name for name in found if not name.endswith(_OF_ONNXRUNTIME)}


def main() -> None:
    """Run a slice of a target's cases."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target", choices=[*fuzz_targets.TARGETS, *fuzz_targets.NATIVE])
    parser.add_argument("seeds", type=Path, help="the folder that fuzz_seeds.py filled")
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    asked = parser.parse_args()
    target = {**fuzz_targets.TARGETS, **fuzz_targets.NATIVE}[asked.target]
    seeds = fuzz_targets.case_files(target, asked.seeds.resolve())
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, _time_is_up)
    told = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        tempfile.tempdir = scratch
        os.environ["TMPDIR"] = scratch
        os.chdir(scratch)
        for number in range(asked.first, asked.first + asked.count):
            told.write(f"{number}\n")
            began = time.monotonic()
            outcome, detail = run_case(target, seeds, number, Path(scratch))
            told.write(json.dumps([outcome, detail, time.monotonic() - began]) + "\n")
        os.chdir("/")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
