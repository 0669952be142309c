"""Runs shell commands on a host's GPUs, one command a GPU at a time; what is done stays done.

    python docs/measurements/on_every_gpu.py JOBS.json DONE_FOLDER SECONDS

JOBS.json lists `{"name": …, "run": shell command}` in the order in which they should start. A job's output
goes to `DONE_FOLDER/NAME.log`, whose last line is its exit status and time. A job that has such a line is not
run again; after SECONDS nothing new starts and what runs is stopped, to be started again the next time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path


def main() -> None:
    """Run all jobs."""
    jobs, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    end = time.monotonic() + float(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    waiting = [job for job in jobs if not _is_done(folder / f"{job['name']}.log")]
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    gpus = range(len(listed.stdout.splitlines()))
    guard = threading.Lock()

    def serve(gpu: int) -> None:
        while time.monotonic() < end:
            with guard:
                if not waiting:
                    return
                job = waiting.pop(0)
            _run(job, gpu, folder / f"{job['name']}.log", end)

    threads = [threading.Thread(target=serve, args=(gpu,)) for gpu in gpus]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    undone = [job["name"] for job in jobs if not _is_done(folder / f"{job['name']}.log")]
    print("undone:", ", ".join(undone) or "none")


def _is_done(log: Path) -> bool:
    return log.is_file() and "\nexit status " in log.read_text(errors="replace")


def _run(job: dict[str, str], gpu: int, log: Path, end: float) -> None:
    began = time.monotonic()
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)}
    with log.open("w") as out:
        process = subprocess.Popen(
            ["bash", "-c", job["run"]], stdout=out, stderr=out, env=environment, start_new_session=True
        )
        try:
            status = process.wait(timeout=max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return
    with log.open("a") as out:
        out.write(f"\nexit status {status} after {time.monotonic() - began:.1f} s on GPU {gpu}\n")


if __name__ == "__main__":
    main()
