"""What is still to be measured, on one host with two GPUs in 26 minutes.

    python docs/measurements/together.py run WORK OUT SECONDS --peers FOLDER
    python docs/measurements/together.py show WORK OUT --peers FOLDER

Each GPU goes through stages of its own, a stage through jobs of the measurements beside this file, several at
a time where they only build. Times are disturbed where builds are at work on the same cores: those of GPU 1
keep to cores of their own. Results are in OUT, `OUT/done/JOB.log` tells of each job, `OUT/timeline.txt` of
the stages. The same command goes on where it was ended. PEERS holds the graphs for int8-vs-modelopt.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
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


VERDICTS = tuple(f"verdict-int8-vit-b16-{batch}" for batch in (8, 128))
FIRST = ("unet3d-1", "unet3d-rewritten-1")
SECOND = ("diffusion-unet-1", "diffusion-unet-rewritten-1")
TESTS = ("verdict", "plan_verified", "bisect_engines", "several_profiles", "profiling")

STAGES = {
    0: (
        Stage("builds", tuple(f"build-{one}" for one in FIRST), 400, at_once=2),
        Stage("measurements", FIRST, 60),
        Stage("where INT8 pays", VERDICTS, 1100),
    ),
    1: (
        Stage("more builds", tuple(f"build-{one}" for one in SECOND), 1300, at_once=2),
        Stage("more measurements", SECOND, 80),
        Stage("tests and all rules", (*TESTS, "audit"), 1600, at_once=3),
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
    threads = [
        threading.Thread(target=go_through, args=(asked, known, stages, gpu, end))
        for gpu, stages in STAGES.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def all_jobs(asked: argparse.Namespace) -> dict[str, str]:
    """Every job of every measurement that has a part here, by name."""
    work, out, graphs = (
        asked.work,
        asked.out,
        (HERE / "collection" / "light", HERE / "collection" / "rewritten"),
    )
    light = ("--light", HERE / "int8-vs-modelopt" / "light", "--peers", asked.peers)
    lists = (
        ("collection/jobs.py", "build", *graphs, work / "models", out / "models", *TACTICS),
        ("collection/jobs.py", "measure", *graphs, work / "models", out / "models"),
        ("int8-vs-modelopt/verdict.py", "jobs", *light, "--work", work / "verdict", "--out", out / "verdict"),
    )
    known = {job["name"]: job["run"] for command in lists for job in listed(*map(str, command))}
    for name in TESTS:
        test = HERE.parents[1] / "tests" / "gpu" / f"test_{name}.py"
        known[name] = f"{sys.executable} -m pytest -q -p no:cacheprovider {test}"
    return known | {"audit": audit(work, out)}


def audit(work: Path, out: Path) -> str:
    """The rules' small graphs, written, built and compared; pairs that are built stay so."""
    script = f"{sys.executable} {HERE / 'fusion-audit' / 'fusion_audit.py'}"
    pairs, told = work / "audit", out / "audit"
    build = f"{script} build {pairs} {' '.join(TACTICS)} --workers 2 --limit 280"
    return f"{script} pairs {pairs} --target 8.6 && {build} && mkdir -p {told} && cp {pairs}/layers.* {told}"


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
) -> None:
    """One stage after the other, none beyond the end."""
    if gpu == 1 and max(OWN_CORES) < (os.cpu_count() or 1):
        os.sched_setaffinity(0, OWN_CORES)  # of this thread, and what it starts
    timeline = asked.out / "timeline.txt"
    for stage in stages:
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


if __name__ == "__main__":
    main()
