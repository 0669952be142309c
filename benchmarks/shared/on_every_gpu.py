"""Runs shell commands on a host's GPUs, one command per GPU at a time; what is done stays done.

    python benchmarks/shared/on_every_gpu.py JOBS.json DONE_FOLDER SECONDS [--gpus 0,1]

`--gpus 0,0` runs two commands at a time on one GPU, `--gpus 0+1` gives two GPUs to one command.
JOBS.json lists `{"name": …, "run": shell command}` in the order in which they should start. A job's output
goes to `DONE_FOLDER/NAME.log`, whose last line is its exit status and time. A job that has such a line is
not run again; after SECONDS nothing new starts and what runs is stopped, to be started again the next time.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path


def main() -> None:
    """Run all jobs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("jobs", type=Path)
    parser.add_argument("done", type=Path)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--gpus")
    request = parser.parse_args()
    jobs, folder = json.loads(request.jobs.read_text()), request.done
    end = time.monotonic() + request.seconds
    folder.mkdir(parents=True, exist_ok=True)
    waiting = [job for job in jobs if not _is_done(folder / f"{job['name']}.log")]
    gpus = request.gpus.split(",") if request.gpus else _all_gpus()
    guard = threading.Lock()

    def serve(gpu: str) -> None:
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


def _all_gpus() -> list[str]:
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    return [str(number) for number, _ in enumerate(listed.stdout.splitlines())]


def _is_done(log: Path) -> bool:
    return log.is_file() and "\nexit status " in log.read_text(errors="replace")


def _run(job: dict[str, str], gpu: str, log: Path, end: float) -> None:
    began = time.monotonic()
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu.replace("+", ",")}
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
