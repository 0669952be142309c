"""Eight processes that share a store of timing caches and build into one output folder, many times.

    python benchmarks/reliability/one_folder.py --rounds 100

Every process opens the store, adds an entry of its own, and builds the digits model with ONNX Runtime (no GPU
is needed) into the same folder. Prints a line: rounds, failures, entries lost, whether the folder is whole.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trtopt.builder.timing_cache import TimingStore
from trtopt.records import Backend, CacheTerms, Identity
from trtopt.workflows.build.folder import check_folder

DIGITS = Path(__file__).parents[2] / "models" / "digits" / "digits.onnx"
IDENTITY = Identity(
    backend=Backend(name="tensorrt", version="0"), gpu="none", compute_capability=None, driver=None, cuda=None
)
TERMS = CacheTerms()


def union(ours: bytes, theirs: bytes) -> bytes:
    """Stands in for TensorRT's merge: the union of the lines."""
    return b"".join(sorted({*ours.splitlines(True), *theirs.splitlines(True)}))


def work(folder: Path, name: str, rounds: int) -> None:
    """One of the processes."""
    import trtopt

    store = TimingStore(folder / "store")
    for number in range(rounds):
        before = store.file(IDENTITY, TERMS).load()
        blob = (before.blob if before else b"") + f"{name} {number}\n".encode()
        store.file(IDENTITY, TERMS).save(blob, grown_from=before, merge=union)
        trtopt.build(DIGITS, folder / "out", backend="onnxruntime", rewrite="none", verdict=False)


def main() -> None:
    """Start the processes, wait, look at what is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--worker", nargs=2, metavar=("FOLDER", "NAME"), help=argparse.SUPPRESS)
    request = parser.parse_args()
    if request.worker:
        work(Path(request.worker[0]), request.worker[1], request.rounds)
        return
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, __file__, "--rounds", str(request.rounds), "--worker", scratch]
        workers = [subprocess.Popen([*command, f"process{index}"]) for index in range(request.processes)]
        failures = sum(worker.wait() != 0 for worker in workers)
        found = TimingStore(Path(scratch) / "store").file(IDENTITY, TERMS).load()
        entries = len(found.blob.splitlines()) if found else 0
        check = check_folder(Path(scratch) / "out")
        left = sorted(path.name for path in Path(scratch).iterdir())
    print(
        f"{request.processes} processes, {request.rounds} rounds each, {time.monotonic() - began:.0f} s: "
        f"{failures} failed, {request.processes * request.rounds - entries} entries lost, "
        f"folder {'whole' if check.is_whole else 'DAMAGED'}, beside it {left}"
    )


if __name__ == "__main__":
    main()
