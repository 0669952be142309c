"""Serving, and what is still to be measured, on one host with two GPUs in 26 minutes.

    python docs/measurements/together.py run WORK OUT SECONDS --peers FOLDER
    python docs/measurements/together.py show WORK OUT --peers FOLDER

Each GPU goes through stages of its own, a stage through jobs of the measurements beside this file, several at
a time where they only build or test. Requests are answered late where builds are at work on other cards of
the host: those of GPU 1 keep to cores of their own, and stand still while GPU 0 verifies plans. Results are
in OUT, `OUT/done/JOB.log` tells of each job, `OUT/timeline.txt` of the stages. The same command goes on where
it was ended. PEERS holds the graphs for int8-vs-modelopt.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from turns import SOURCES

HERE = Path(__file__).parent
TACTICS = ("--tactic-sources", ",".join(SOURCES))


@dataclass(frozen=True)
class Stage:
    """Jobs by name, at most so long, so many at a time."""

    name: str
    jobs: tuple[str, ...]
    seconds: float
    at_once: int = 1
    after: str | None = None
    """The stage of the other GPU that must be over first."""


SERVING = tuple(
    f"serving-{what}{model}"
    for what in ("best", "0.6", "0.9", "overhead-2", "overhead-4")
    for model in ("-bert", "")
)
COPYING = (
    *(f"serving-overhead-{many}-device" for many in (2, 4)),
    "serving-overhead-2-page-locked",
    *(f"serving-steps-2-{place}" for place in ("device", "page-locked")),
    "serving-overlap",
)
TESTS = ("runtime", "verdict", "plan_verified")
PAIR = ("maskrcnn-any", "maskrcnn-rewritten-any")

STAGES = {
    0: (
        Stage("ResNet-50 to serve", ("whole-model", "whole"), 420),
        Stage("serving", SERVING, 650, after="BERT-base to serve"),
        Stage("copying", COPYING, 150),
        Stage("where INT8 pays", ("verdict-int8-efficientnet-b0-32", "verdict-int8-vit-b16-32"), 900),
    ),
    1: (
        Stage("BERT-base to serve", ("model", "each"), 300),
        Stage("where INT8 pays for BERT", ("verdict-int8-bert-base-32",), 450),
        Stage("builds", tuple(f"build-{one}" for one in PAIR), 450, at_once=2),
        Stage("measurements", PAIR, 150),
        Stage("tests", TESTS, 600),
    ),
}
OWN_CORES = range(20, 32)
"""GPU 1's."""


def main() -> None:
    """Run, or show the commands."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("step", choices=["run", "show"])
    parser.add_argument("work", type=lambda text: Path(text).absolute())
    parser.add_argument("out", type=lambda text: Path(text).absolute())
    parser.add_argument("seconds", type=float, nargs="?", default=1600)
    parser.add_argument("--peers", type=lambda text: Path(text).absolute(), required=True)
    asked = parser.parse_args()
    known = all_jobs(asked)
    for stage in (*STAGES[0], *STAGES[1]):
        if missing := [name for name in stage.jobs if name not in known]:
            sys.exit(f"{stage.name}: no such jobs: {', '.join(missing)}")
    if asked.step == "show":
        print("\n".join(f"# {name}\n{run}" for name, run in known.items()))
        return
    asked.out.mkdir(parents=True, exist_ok=True)
    asked.work.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + asked.seconds
    over = {stage.name: threading.Event() for stages in STAGES.values() for stage in stages}
    threads = [
        threading.Thread(target=go_through, args=(asked, known, stages, gpu, end, over))
        for gpu, stages in STAGES.items()
    ]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.2)
            of_gpu_0 = {pid for pid, told in processes("environ") if b"CUDA_VISIBLE_DEVICES=0\0" in told}
            told = [told for pid, told in processes("cmdline") if pid in of_gpu_0]
            hold(all(any(what in one for one in told) for what in (b"\0--verify\0", b"\0trtopt.worker\0")))
    finally:
        hold(False)


def hold(is_wanted: bool) -> None:
    """Let what GPU 1 has to do stand still, or go on."""
    for pid in [pid for pid, told in processes("environ") if b"CUDA_VISIBLE_DEVICES=1\0" in told]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP if is_wanted else signal.SIGCONT)


def processes(file: str) -> Iterator[tuple[int, bytes]]:
    """Every process of ours, and what /proc tells of it."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            yield int(folder.name), (folder / file).read_bytes()


def all_jobs(asked: argparse.Namespace) -> dict[str, str]:
    """Every job of every measurement that has a part here, by name."""
    work, out, collection = asked.work, asked.out, HERE / "collection"
    bert, graphs = (
        collection / "light" / "bert-base.onnx.gz",
        (collection / "light", collection / "rewritten"),
    )
    resnet = HERE / "sweep" / "resnet50-fp32.onnx.gz"
    light = ("--light", HERE / "int8-vs-modelopt" / "light", "--peers", asked.peers)
    served = ("--batch", "1,8,128", "--precision", "fp16", "--streams", "1,2", "--jobs", "4")
    each = ("--jobs", "6", "--streams", "1,2")
    lists = (
        ("sweep/sweep.py", "jobs", "whole", resnet, work / "r50", out / "r50", *TACTICS, *served),
        ("batching/engines.py", "jobs", bert, work / "bert", out / "bert", *TACTICS, *each),
        ("batching/serving.py", "jobs", work / "r50" / "whole", out / "r50" / "serving", "--rounds", "3"),
        ("collection/jobs.py", "build", *graphs, work / "models", out / "models", *TACTICS),
        ("collection/jobs.py", "measure", *graphs, work / "models", out / "models"),
        ("int8-vs-modelopt/verdict.py", "jobs", *light, "--work", work / "verdict", "--out", out / "verdict"),
    )
    known = {job["name"]: job["run"] for command in lists for job in listed(*map(str, command))}
    places = (str(work / "bert" / "each"), str(out / "bert" / "serving"), "--rounds", "3")
    serving = listed("batching/serving.py", "jobs", *places, "--precision", "model")
    known |= {f"{job['name']}-bert": job["run"] for job in serving}
    for name in TESTS:
        test = HERE.parents[1] / "tests" / "gpu" / f"test_{name}.py"
        known[name] = f"{sys.executable} -m pytest -q -p no:cacheprovider {test}"
    return known


def listed(script: str, *arguments: str) -> list[dict[str, str]]:
    """The jobs that a measurement's script prints."""
    command = [sys.executable, str(HERE / script), *arguments]
    jobs: list[dict[str, str]] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return jobs


def go_through(
    asked: argparse.Namespace,
    known: dict[str, str],
    stages: tuple[Stage, ...],
    gpu: int,
    end: float,
    over: dict[str, threading.Event],
) -> None:
    """One stage after the other, none beyond the end."""
    if gpu == 1 and max(OWN_CORES) < (os.cpu_count() or 1):
        os.sched_setaffinity(0, OWN_CORES)  # of this thread, and what it starts
    timeline = asked.out / "timeline.txt"
    for stage in stages:
        if stage.after is not None:
            over[stage.after].wait(max(0.0, end - time.monotonic()))
        seconds = min(stage.seconds, end - time.monotonic())
        if seconds < 5:
            return
        jobs = asked.out / f"{stage.name.replace(' ', '-')}.jobs.json"
        jobs.write_text(json.dumps([{"name": name, "run": known[name]} for name in stage.jobs], indent=1))
        with timeline.open("a") as told:
            print(f"{time.time():.0f} GPU {gpu}: {stage.name}, at most {seconds:.0f} s", file=told)
        run = [sys.executable, HERE / "on_every_gpu.py", jobs, asked.out / "done", f"{seconds:.0f}"]
        gpus = ",".join([str(gpu)] * stage.at_once)
        done = subprocess.run([*map(str, run), "--gpus", gpus], capture_output=True, text=True, check=False)
        with timeline.open("a") as told:
            print(f"{time.time():.0f} GPU {gpu}: {stage.name}: {done.stdout}{done.stderr}", file=told)
        over[stage.name].set()


if __name__ == "__main__":
    main()
