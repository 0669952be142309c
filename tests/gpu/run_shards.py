"""Runs the GPU tests within a budget of seconds, and goes on the next time where it ended.

    python tests/gpu/run_shards.py --out DIR --revision REV --budget 480 [--store DIR] [--only WORD …]

Run it in the repository's root. DIR/tests.json holds each test's last outcome, seconds, revision, device,
TensorRT and date, rewritten after every test; DIR/pytest.log is what pytest printed. What has not passed at
this revision runs, what has never run at it first, files with the shortest tests first. Every file of tests
has a process of its own; a test that takes longer than its limit is killed, told as "timed out", and the
rest of its file goes on. A test that the end of the budget cuts off is no failure and runs again the next
time. `--store` is a folder of timing caches, and of a build that files of tests share: keep it, and the next
run builds in seconds. Runners on several GPUs need a DIR and a store each.

Exits with 0 if all asked for have passed or were skipped at this revision, 1 if one failed, 3 if some are
left.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path
from typing import Any

FILE_SECONDS = {
    "test_room.py": 1,
    "test_cuda_bindings.py": 5,
    "test_clocks.py": 25,
    "test_data_dependent.py": 25,
    "test_runtime.py": 35,
    "test_compare.py": 40,
    "test_plugins.py": 45,
    "test_kernels.py": 80,
    "test_sweep.py": 120,
    "test_several_profiles.py": 125,
    "test_plan_verified.py": 125,
    "test_bisect_engines.py": 200,
    "test_profiling.py": 200,
    "test_timing_store.py": 210,
    "test_typed_io.py": 245,
    "test_several_gpus.py": 280,
    "test_engines.py": 310,
    "test_verdict.py": 380,
}
"""About how long a whole file takes on an H100, for an order as long as no run has told."""
LONG_TESTS = {
    "test_verdict.py": 480.0,
    "test_bisect_engines.py": 420.0,
    "test_profiling.py": 300.0,
    "test_several_gpus.py": 300.0,
    "test_engines.py": 240.0,
    "test_plan_verified.py": 240.0,
    "test_sweep.py": 240.0,
    "test_timing_store.py": 240.0,
}
"""Limits by file, in seconds, where the usual one is too short."""
LIMIT_S = 120.0
POLL_S = 0.1
LEAST_S = 5.0
"""With less left nothing new is started."""
FAILED = ("failed", "timed out", "crashed")

Records = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Places:
    """The files of a run."""

    folder: Path

    @property
    def records(self) -> Path:
        return self.folder / "tests.json"

    @property
    def journal(self) -> Path:
        """What the process that runs now has told; a run that was killed leaves it to the next."""
        return self.folder / "running.jsonl"

    @property
    def log(self) -> Path:
        return self.folder / "pytest.log"


def main() -> int:
    """Run what there is time for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tests", nargs="*", default=["tests/gpu"], help="files or folders of tests")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--revision", required=True, help="of the code under test")
    parser.add_argument("--budget", type=float, default=480.0, help="seconds")
    parser.add_argument("--store", type=Path, help="timing caches that runs share")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="tests whose id has one of these")
    parser.add_argument("--limit", type=float, help="seconds that a test may take [default: by file]")
    args = parser.parse_args()
    end = time.monotonic() + args.budget
    places = Places(args.out)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.store is not None:
        args.store.mkdir(parents=True, exist_ok=True)
        os.environ["TRTOPT_TEST_STORE"] = str(args.store.absolute())
    os.environ["TRTOPT_TEST_JOURNAL"] = str(places.journal.absolute())
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)

    records = read_records(places)
    run = {"revision": args.revision, **this_machine(), "date": f"{datetime.now(timezone.utc):%Y-%m-%d}"}
    found = collected(places, args.tests, records, run)
    asked = [test for test in found if not args.only or any(word in test for word in args.only)]
    for tests in shards(asked, records, run):
        run_file(tests, places, records, run, end, args.limit)
    places.journal.unlink(missing_ok=True)  # all of it is in the records
    left = [test for test in asked if not is_done(records.get(test), run)]
    failed = [test for test in left if is_failed(records.get(test), run)]
    for test in left:
        print(f"{records[test]['outcome'] if test in failed else 'left':>9}  {test}")
    print(
        f"{len(asked) - len(left)} of {len(asked)} passed or skipped at {args.revision}, {len(failed)} failed"
    )
    return 1 if failed else 3 if left else 0


# ── records ─────────────────────────────────────────────────────────────────────────────────────────────


def read_records(places: Places) -> Records:
    """The last outcome of every test; what a killed run had told is taken in."""
    records: Records = json.loads(places.records.read_text()) if places.records.is_file() else {}
    for line in journal_lines(places.journal):
        if "run" in line:
            run = line["run"]
        elif "test" in line:
            note(records, run, line)
    close(records)
    write_records(places, records)
    places.journal.unlink(missing_ok=True)
    return records


def journal_lines(journal: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of the journal; one whose end is missing was being written."""
    text = journal.read_text(encoding="utf-8") if journal.is_file() else ""
    yield from (json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n"))


def note(records: Records, run: Mapping[str, Any], line: Mapping[str, Any]) -> None:
    """Take one line of the journal in."""
    told = {key: value for key, value in line.items() if key != "test"}
    known = records.get(line["test"], {})
    records[line["test"]] = {"seconds": known.get("seconds"), **told, **run}


def close(records: Records) -> None:
    """What was begun and told nothing more was cut off."""
    for record in records.values():
        if record["outcome"] == "begun":
            record["outcome"] = "cut off"


def write_records(places: Places, records: Records) -> None:
    """Whole or not at all."""
    scratch = places.records.with_suffix(".part")
    scratch.write_text(json.dumps(dict(sorted(records.items())), indent=1) + "\n")
    scratch.replace(places.records)


def is_done(record: Mapping[str, Any] | None, run: Mapping[str, Any]) -> bool:
    """Whether the test needs no run at this revision any more: a pass on any GPU, a skip on these."""
    if record is None or record["revision"] != run["revision"]:
        return False
    is_same = all(record.get(key) == run[key] for key in ("device", "visible"))
    return record["outcome"] == "passed" or (record["outcome"] == "skipped" and is_same)


def is_failed(record: Mapping[str, Any] | None, run: Mapping[str, Any]) -> bool:
    """Whether it has run at this revision and did not pass."""
    return record is not None and record["revision"] == run["revision"] and record["outcome"] in FAILED


# ── what to run ─────────────────────────────────────────────────────────────────────────────────────────


def file_of(test: str) -> str:
    """The file of a test's id."""
    return test.partition("::")[0]


def shards(tests: Iterable[str], records: Records, run: Mapping[str, Any]) -> list[list[str]]:
    """What is not done, by file: those never run at this revision first, and the shortest first."""
    todo = [test for test in tests if not is_done(records.get(test), run)]
    again = {test for test in todo if is_failed(records.get(test), run)}
    groups = []
    for part in ([test for test in todo if test not in again], [test for test in todo if test in again]):
        files = [list(group) for _, group in groupby(part, key=file_of)]
        groups += sorted(files, key=lambda group: sum(seconds_of(test, records, group) for test in group))
    return groups


def seconds_of(test: str, records: Records, group: list[str]) -> float:
    """How long it took, or its share of what its file is known to take."""
    seconds = records.get(test, {}).get("seconds")
    return seconds if seconds is not None else FILE_SECONDS.get(Path(file_of(test)).name, 30) / len(group)


def limit_of(test: str) -> float:
    """The most seconds that a test may take."""
    return LONG_TESTS.get(Path(file_of(test)).name, LIMIT_S)


def collected(places: Places, tests: list[str], records: Records, run: Mapping[str, Any]) -> list[str]:
    """The ids of all tests; a file that cannot be imported is noted as failed."""
    process = start(["--collect-only", "-q", *tests], places, run)
    process.wait()
    found: list[str] = []
    for line in journal_lines(places.journal):
        if "collected" in line:
            found = line["collected"]
        elif "test" in line:
            note(records, run, line)
            found.append(line["test"])
    write_records(places, records)
    return found


def this_machine() -> dict[str, str]:
    """The GPUs and TensorRT that the tests will find."""
    asked = "import tensorrt; print(tensorrt.__version__)"
    return {
        "device": first_line(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]) or "none",
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES", "all"),
        "tensorrt": first_line([sys.executable, "-c", asked]) or "none",
    }


def first_line(command: list[str]) -> str:
    """Of what a command prints; empty if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return ""
    return (done.stdout.splitlines() or [""])[0].strip()


# ── running ─────────────────────────────────────────────────────────────────────────────────────────────


def start(words: list[str], places: Places, run: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    """pytest, in a process group of its own, telling the journal."""
    places.journal.write_text(json.dumps({"run": run}) + "\n")
    command = [sys.executable, "-m", "pytest", "-p", "journal", "-p", "no:cacheprovider", *words]
    with places.log.open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def run_file(
    tests: list[str],
    places: Places,
    records: Records,
    run: Mapping[str, Any],
    end: float,
    limit_s: float | None,
) -> None:
    """Run the tests of one file; a process that a test has ended is followed by one for the rest."""
    while tests and end - time.monotonic() > LEAST_S:
        began = time.monotonic()
        process = start(["-q", "--tb=short", *tests], places, run)
        told = watch(process, places, records, run, end, limit_s)
        write_records(places, records)
        if not told and time.monotonic() < end:
            for test in tests:
                record(records, run, test, "crashed", time.monotonic() - began, "see pytest.log")
            write_records(places, records)
            return
        tests = [test for test in tests if test not in told]


def watch(
    process: subprocess.Popen[bytes],
    places: Places,
    records: Records,
    run: Mapping[str, Any],
    end: float,
    limit_s: float | None,
) -> set[str]:
    """Follow the journal until the process ends, a test takes too long or the budget is over."""
    told: set[str] = set()
    seen, running, since = 0, "", time.monotonic()
    while True:
        ended = process.poll() is not None
        lines = list(journal_lines(places.journal))
        for line in lines[seen:]:
            if "test" not in line:
                continue
            note(records, run, line)
            told.add(line["test"])
            is_begun = line["outcome"] == "begun"
            running, since = (line["test"] if is_begun else ""), time.monotonic()
            if not is_begun:
                print(f"{line['outcome']:>9} {line['seconds']:7.2f} s  {line['test']}", flush=True)
                write_records(places, records)
        seen, now = len(lines), time.monotonic()
        if ended:
            if running:
                record(records, run, running, "crashed", now - since, f"exit status {process.returncode}")
            return told
        is_late = running and now - since > (limit_s or limit_of(running))
        if is_late or now >= end:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if running:
                outcome = "timed out" if is_late else "cut off"
                record(records, run, running, outcome, now - since, f"killed after {now - since:.0f} s")
            return told
        time.sleep(POLL_S)


def record(
    records: Records, run: Mapping[str, Any], test: str, outcome: str, seconds: float, message: str
) -> None:
    """Note what the test could not tell itself."""
    line = {"test": test, "outcome": outcome, "seconds": round(seconds, 2), "message": message}
    note(records, run, line)
    print(f"{outcome:>9} {seconds:7.2f} s  {test}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
