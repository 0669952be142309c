"""Sweeps and tuning on all GPUs of a host: through Ray, by local worker processes, and on one GPU.

    python several_gpus.py run --peers FOLDER --work WORK --out OUT --revision REV --budget 580
    python several_gpus.py table --out OUT

FOLDER holds `r50` and `bert` as for ../headline. A cell is one run; it is written to OUT/CELL.json when it is
complete, and a cell that is there is kept. One that will not be done within what is left of the budget is
passed over. The cells, in this order:

    sweep-ray      ResNet-50, 8 batch sizes, FP16 and INT8: `trtopt sweep --executor ray`
    sweep-local    the same with `--jobs N`
    sweep-one      the same on one GPU
    sweep-control  sweep-local once more: what two equal runs differ by
    sweep-killed   sweep-ray, and the process of a Ray worker is killed while it builds
    tune-one       BERT-base at batch 32: `trtopt tune` on one GPU
    tune-ray       the same with `--executor ray`

Every cell has a store of timing caches of its own, which starts empty. sweep-one and tuning continue where
a budget ended; other sweeps then start again. `prepare` fills the graphs and builds a small engine, so that
no cell pays for reading TensorRT from the disk. `--dry-run` goes through all of it on a Ray cluster of two
nodes on this host, with ONNX Runtime and a tiny model.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tune"))
from cells import ROOT, chosen, measure, place_of, read, run_python, unmeasured, write
from ray_workers import kill_a_ray_worker
from tune import prepared, recipe_of
from turns import SOURCES

import trtopt
from trtopt.device.cuda import probe
from trtopt.files.manifests import read_manifest
from trtopt.records import SweepPoint
from trtopt.workflows.compare.result_files import read_result
from trtopt.workflows.listener import DONE, Listener

PRECISIONS = ("fp16", "int8")
BUILDING, MEASURING = "building", "measuring"
GOAL = 0.85
"""Of linear, for building."""
MISSING = "not measured yet"


@dataclass(frozen=True)
class Cell:
    """A run of a sweep or of tuning. `kills`: a worker is killed in the middle of building."""

    name: str
    executor: str
    on_all: bool
    is_tuning: bool = False
    kills: bool = False

    @property
    def resumes(self) -> bool:
        """Whether a run that was interrupted continues: seconds add up where engines are built one by one."""
        return self.is_tuning or not self.on_all


CELLS = (
    Cell("sweep-ray", "ray", on_all=True),
    Cell("sweep-local", "local", on_all=True),
    Cell("sweep-one", "local", on_all=False),
    Cell("sweep-control", "local", on_all=True),
    Cell("sweep-killed", "ray", on_all=True, kills=True),
    Cell("tune-one", "local", on_all=False, is_tuning=True),
    Cell("tune-ray", "ray", on_all=True, is_tuning=True),
)


@dataclass(frozen=True)
class Setting:
    """What is swept and tuned, and about how many seconds that takes."""

    swept: str = "r50"
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    tuned: str = "bert"
    tuned_batch: int = 32
    minutes: int = 20
    backend: Any = "tensorrt"
    duration: float = 1.0
    builds_s: tuple[float, ...] = (720.0, 380.0)
    """The sweep's eight engines of each precision on one GPU; ../sweep."""
    rest_s: float = 150.0
    """Calibrating and measuring."""
    least_s: float = 150.0
    """With less left, no cell that resumes is begun: a build of BERT-base would be lost."""

    def seconds(self, cell: Cell, precisions: Iterable[str], gpus: int) -> float:
        """About what has to be left for a cell."""
        each_s = sum(self.builds_s[PRECISIONS.index(one)] for one in precisions) / len(Setting.batches)
        builds_s = each_s * len(self.batches)
        return self.least_s if cell.resumes else builds_s / gpus + self.rest_s


DRY = Setting(
    swept="digits",
    batches=(1, 2, 4, 8),
    tuned="digits",
    tuned_batch=8,
    minutes=1,
    backend="onnxruntime",
    duration=0.2,
    builds_s=(5.0, 5.0),
    rest_s=1.0,
    least_s=5.0,
)


def main() -> None:
    """Prepare, measure what there is time for, or print what there is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("step", choices=["prepare", "run", "table", "cell"])
    parser.add_argument("--peers", type=Path, help="the graphs without weights: r50 and bert")
    parser.add_argument("--work", type=Path, help="models and engines: keep it to go on")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--revision", default="", help="of trtopt, to be kept in every cell")
    parser.add_argument("--budget", type=float, default=580.0, help="seconds of this call")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="cells whose name has one of these")
    parser.add_argument(
        "--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS, help="of the sweeps"
    )
    parser.add_argument(
        "--batch", nargs="+", type=int, choices=Setting.batches, default=Setting.batches, help="of the sweeps"
    )
    parser.add_argument("--dry-run", action="store_true", help="a tiny model on ONNX Runtime, two Ray nodes")
    args = parser.parse_args()
    if args.step != "cell" and args.out is None:
        parser.error("--out is needed")
    if args.step == "table":
        print(table(args.out))
        return
    if args.work is None or (args.peers is None and not args.dry_run):
        parser.error(f"{args.step}: --work and --peers are needed")
    if args.step == "cell":  # one of them, in a process of its own: `run` starts it
        run_cell(next(cell for cell in CELLS if args.only == [cell.name]), args)
        return
    for folder in (args.out, args.work):
        folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(args)
    bench.prepare()
    if args.step == "run":
        print("left:", ", ".join(bench.run()) or "none")


def setting_of(args: argparse.Namespace) -> Setting:
    """What is measured."""
    return DRY if args.dry_run else replace(Setting(), batches=tuple(args.batch))


def gpus_of(args: argparse.Namespace) -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES calls the GPUs of this host; the dry run has two nodes in their place."""
    return ("", "") if args.dry_run else probe.names_of_a_kind()


class Bench:
    """Runs cells within the budget, each in a process of its own."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args, self._setting, self._gpus = args, setting_of(args), gpus_of(args)
        self._end = time.monotonic() + args.budget
        if len(self._gpus) < 2:
            raise SystemExit(
                f"needs two GPUs of one kind, and finds {len(self._gpus)}: --dry-run needs no GPU"
            )

    def prepare(self) -> None:
        """The graphs, and an engine that nothing is measured of."""
        for graph in (self._setting.swept, self._setting.tuned):
            prepared(graph, self._args)
        warm = self._args.work / "warm"
        if not (warm / "manifest.json").is_file() and not self._args.dry_run:
            model = ROOT / "models" / "digits" / "digits.onnx"
            words = ["--backend", self._setting.backend, "--tactic-sources", ",".join(SOURCES)]
            words += ["--timing-cache", "none", "-o", warm]
            run_python("warm", ["-m", "trtopt", "build", model, *words], self._left())

    def run(self) -> list[str]:
        """Measure what is missing, what failed before last; the names of what is left."""
        out, asked = self._args.out, chosen(CELLS, self._args.only)
        for cell in unmeasured(asked, out):
            if self._left() > self._setting.seconds(cell, self._args.precision, len(self._gpus)):
                about = {"cell": cell.name, "revision": self._args.revision}
                measure(cell, out, about, partial(self._measured, cell), summary)
        return [cell.name for cell in asked if "gpus" not in read(place_of(cell, out))]

    def _measured(self, cell: Cell) -> dict[str, Any]:
        folder = self._args.work / cell.name
        if not cell.resumes:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(exist_ok=True)
        words: list[object] = [__file__, "cell", "--only", cell.name, "--work", self._args.work]
        words += ["--precision", *self._args.precision, "--batch", *self._args.batch]
        words += ["--dry-run"] if self._args.dry_run else ["--peers", self._args.peers]
        visible = os.environ.copy()
        if not cell.on_all and not self._args.dry_run:
            visible["CUDA_VISIBLE_DEVICES"] = self._gpus[0]
        run_python(cell.name, words, self._left(), environment=visible)
        return read(folder / "cell.json")

    def _left(self) -> float:
        return self._end - time.monotonic()


# ── one cell ────────────────────────────────────────────────────────────────────────────────────────────


def run_cell(cell: Cell, args: argparse.Namespace) -> None:
    """Sweep or tune; what came of it goes into the cell's folder."""
    folder = args.work / cell.name
    gpus = len(gpus_of(args)) if cell.on_all else 1
    with two_nodes() if args.dry_run and cell.executor == "ray" else this_host():
        found = (tuned if cell.is_tuning else swept)(cell, folder, gpus, args)
    write(folder / "cell.json", {"gpus": gpus, "executor": cell.executor, **found})


@contextmanager
def two_nodes() -> Iterator[None]:
    """A Ray cluster of two nodes on this host, which `--executor ray` finds."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80_000_000, "resources": {"trtopt_measuring": 1}}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    cluster.add_node(**node)
    os.environ["RAY_ADDRESS"] = cluster.address
    try:
        yield
    finally:
        cluster.shutdown()


@contextmanager
def this_host() -> Iterator[None]:
    """No cluster but the one that trtopt starts."""
    yield


def swept(cell: Cell, folder: Path, gpus: int, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of building and of measuring, and every point."""
    setting = setting_of(args)
    model, samples = prepared(setting.swept, args)
    jobs = Jobs(folder / "jobs.json")
    with killing(jobs, len(args.precision) * len(setting.batches)) if cell.kills else this_host():
        report = trtopt.sweep(
            model,
            folder / "sweep",
            batch=setting.batches,
            precision=args.precision,
            data=samples,
            backend=setting.backend,
            tactic_sources=None if args.dry_run else SOURCES,
            cache_dir=folder / "cache",
            executor=cell.executor,
            jobs=gpus if cell.executor == "local" else None,
            duration=setting.duration,
            listener=Listener(progress=jobs.progress, note=jobs.note, plans=jobs.plans),
        )
    if cell.kills and jobs.killed_s is None:
        raise SystemExit("no worker was killed: none was building when half of the engines were there")
    points = [point_of(folder / "sweep", point) for point in report.points]
    builds = [read_manifest(folder / "sweep" / "builds" / one) for one in args.precision]
    engines = [engine for manifest in builds for engine in manifest.engines]
    return {
        "device": engines[0].device.name,
        "backend": str(engines[0].plan.backend),
        "builders": sorted({str(engine.device.uuid) for engine in engines}),
        **jobs.seconds(),
        "killed_s": jobs.killed_s,
        "notes": [(round(at, 2), text) for at, text in jobs.notes],
        "points": points,
    }


def point_of(folder: Path, point: SweepPoint) -> dict[str, Any]:
    """A point's latency, and where it was measured."""
    found: dict[str, Any] = {"precision": point.setting.precision, "batch": point.setting.batch}
    if point.failure is not None or point.result is None or point.latency is None:
        return found | {"failed": point.failure}
    environment = read_result(folder / point.result).environment
    return found | {
        "ms": point.latency.p50_ms,
        "samples_s": point.samples_per_s,
        "build_s": point.build_seconds,
        "gpu": environment.device.uuid,
        "node": environment.node,
        "untrustworthy": point.untrustworthy,
    }


def tuned(cell: Cell, folder: Path, gpus: int, args: argparse.Namespace) -> dict[str, Any]:
    """The ledger; its seconds are those of the wall clock, of a run that was interrupted too."""
    setting = setting_of(args)
    model, samples = prepared(setting.tuned, args)
    found = trtopt.tune(
        model,
        folder / "tuned",
        batch=setting.tuned_batch,
        budget=f"{setting.minutes}m",
        include=("builder-setting",),
        data=samples,
        min_cosine=0.99,
        backend=setting.backend,
        profile=str(recipe_of(setting.tuned, args)),
        executor=cell.executor,
        cache_dir=folder / "cache",
        duration=setting.duration,
        resume=True,
    )
    ledger = found.ledger
    return {
        "device": ledger.terms.device.name,
        "backend": str(ledger.terms.backend),
        "changes": found.changes,
        "stopped": found.stopped,
        "wall_s": round(ledger.spent_s, 1),
        "baseline_s": round(ledger.baseline.total_s, 1),
        "entries": [
            {
                "candidate": entry.candidate,
                "verdict": entry.verdict,
                "gain": entry.measured_gain,
                "low": entry.measured_low,
                "high": entry.measured_high,
                "cost_s": round(entry.cost_s, 1),
            }
            for entry in ledger.entries
        ],
    }


class Jobs:
    """When each job of a sweep ran: seconds since its command began; written after each, for the next run."""

    def __init__(self, place: Path) -> None:
        self._place, self._began = place, time.monotonic()
        self._runs: list[dict[str, Any]] = [*read(place).get("runs", []), {"wall_s": 0.0, "jobs": []}]
        self._running: dict[int, tuple[float, str]] = {}
        self.notes: list[tuple[float, str]] = []
        self.killed_s: float | None = None

    def plans(self, labels: Sequence[str]) -> None:
        """Other jobs from now on."""
        self._running = {}

    def progress(self, index: int, phase: str, fraction: float | None) -> None:
        """A job has begun, measures, or is done."""
        now = self._now()
        began, kind = self._running.get(index, (now, BUILDING))
        self._running = {
            **self._running,
            index: (began, MEASURING if phase.startswith("latency") else kind),
        }
        if phase == DONE:
            del self._running[index]
            run = self._runs[-1]
            run["jobs"].append([kind, round(began, 2), round(now, 2)])
            run["wall_s"] = round(now, 2)
            write(self._place, {"runs": self._runs})

    def note(self, text: str) -> None:
        """Keep it, with its time."""
        self.notes.append((self._now(), text))

    def kill_in_the_middle(self, engines: int, kill: Callable[[], object]) -> bool:
        """Kill when half of the engines are built and another is well under way; whether it was done."""
        took = [end - begin for kind, begin, end in self._runs[-1]["jobs"] if kind == BUILDING]
        running = [began for began, kind in self._running.values() if kind == BUILDING]
        if len(took) < engines // 2 or not running:
            return False
        now = self._now()
        if now - min(running) < statistics.median(took) / 4 or not kill():
            return False
        self.killed_s = round(now, 2)
        return True

    def seconds(self) -> dict[str, Any]:
        """Of all runs together."""
        self._runs[-1]["wall_s"] = round(self._now(), 2)
        found: dict[str, Any] = {
            f"{kind}_s": round(sum(covered_s(run["jobs"], kind) for run in self._runs), 2)
            for kind in (BUILDING, MEASURING)
        }
        found["wall_s"] = round(sum(run["wall_s"] for run in self._runs), 2)
        found["measured_at_once"] = max(most_at_once(run["jobs"], MEASURING) for run in self._runs)
        return found | {"runs": self._runs}

    def _now(self) -> float:
        return time.monotonic() - self._began


def covered_s(jobs: Iterable[Sequence[Any]], kind: str) -> float:
    """Seconds in which at least one job of that kind ran."""
    total, until = 0.0, 0.0
    for begin, end in sorted((begin, end) for one, begin, end in jobs if one == kind):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def most_at_once(jobs: Iterable[Sequence[Any]], kind: str) -> int:
    """How many jobs of that kind ran at the same time."""
    there = [(begin, end) for one, begin, end in jobs if one == kind]
    return max((sum(begin <= at < end for begin, end in there) for at, _ in there), default=0)


@contextmanager
def killing(jobs: Jobs, engines: int) -> Iterator[None]:
    """Once, in the middle of building, kill the process of the Ray worker that has built for longest."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            if jobs.kill_in_the_middle(engines, kill_a_ray_worker):
                return

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()


# ── table ───────────────────────────────────────────────────────────────────────────────────────────────


def summary(found: Mapping[str, Any]) -> str:
    """One line."""
    if "gpus" not in found:
        return str(found.get("failed", MISSING))
    if "entries" in found:
        return f"{len(found['entries'])} candidates in {found['wall_s']:.0f} s; {found['stopped']}"
    measured = sum("ms" in point for point in found["points"])
    return (
        f"building {found['building_s']:.1f} s, measuring {found['measuring_s']:.1f} s, "
        f"{measured} of {len(found['points'])} points"
    )


def table(out: Path) -> str:
    """What scales how, whether results are equal, what a killed worker costs, and tuning, as Markdown."""
    found = {cell.name: read(out / f"{cell.name}.json") for cell in CELLS}
    there = [one for one in found.values() if "gpus" in one]
    where = sorted({f"{one['device']}, {one['backend']}, {one['date']}" for one in there})
    parts = [where, scaling_rows(found), equality_rows(found), killed_lines(found), tuning_rows(found)]
    return "\n\n".join("\n".join(part) for part in parts if part)


def scaling_rows(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Seconds by cell; scaling is those of one GPU over N times those of N."""
    rows = [
        "| sweep | GPUs | building, s | scaling | measuring, s | whole, s | points | measured at once |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    one = found["sweep-one"].get("building_s")
    for cell in CELLS:
        result = found[cell.name]
        if cell.is_tuning:
            continue
        if "gpus" not in result:
            rows.append(f"| {cell.name} | {summary(result)} |{' |' * 6}")
            continue
        gpus, building = result["gpus"], result["building_s"]
        scaling = f"{one / gpus / building:.2f}" if one and gpus > 1 else "–"
        points = sum("ms" in point for point in result["points"])
        rows.append(
            f"| {cell.name} | {gpus} | {building:.1f} | {scaling} | {result['measuring_s']:.1f} "
            f"| {result['wall_s']:.1f} | {points} of {len(result['points'])} | {result['measured_at_once']} |"
        )
    return rows


def equality_rows(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Latencies against sweep-local's, beside what the control differs from it by."""
    control = changes_of(found["sweep-control"], found["sweep-local"])
    if not control:
        return []
    noise = max(abs(change) for change in control)
    rows = [
        f"| against sweep-local | median change | largest | points beyond the control's {noise:.1%} |",
        "|---|--:|--:|--:|",
    ]
    for name in ("sweep-control", "sweep-one", "sweep-ray", "sweep-killed"):
        changes = changes_of(found[name], found["sweep-local"])
        if changes:
            beyond = sum(abs(change) > noise for change in changes)
            largest = max(changes, key=abs)
            shown = f"{statistics.median(changes):+.1%} | {largest:+.1%} | {beyond} of {len(changes)}"
            rows.append(f"| {name} | {shown} |")
    return rows


def changes_of(result: Mapping[str, Any], base: Mapping[str, Any]) -> list[float]:
    """Of each point's latency, where both have it."""
    latency = {
        (point["precision"], point["batch"]): point["ms"] for point in base.get("points", []) if "ms" in point
    }
    return [
        point["ms"] / latency[point["precision"], point["batch"]] - 1
        for point in result.get("points", [])
        if "ms" in point and (point["precision"], point["batch"]) in latency
    ]


def killed_lines(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What the killed worker cost."""
    killed, whole = found["sweep-killed"], found["sweep-ray"]
    if "gpus" not in killed or "gpus" not in whole:
        return []
    at = killed["killed_s"]
    reported = [(when, text) for when, text in killed["notes"] if "tried again" in text]
    lost = sum("ms" not in point for point in killed["points"])
    lines = [
        f"A worker was killed after {at:.1f} s; {lost} points lost; "
        f"building took {killed['building_s'] - whole['building_s']:+.1f} s."
    ]
    return lines + [f"- {when - at:.1f} s later: {text}" for when, text in reported]


def tuning_rows(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Both ledgers, candidate by candidate, and the seconds until the last that both have."""
    one, ray = found["tune-one"], found["tune-ray"]
    if "gpus" not in one or "gpus" not in ray:
        return []
    ledgers = [{entry["candidate"]: entry for entry in side["entries"]} for side in (one, ray)]
    rows = [
        f"| candidate | on one GPU | s | on {ray['gpus']}, by Ray | s |",
        "|---|---|--:|---|--:|",
        f"| baseline | | {one['baseline_s']:.0f} | | {ray['baseline_s']:.0f} |",
    ]
    for name in dict.fromkeys([*ledgers[0], *ledgers[1]]):
        sides = [entry_of(ledger.get(name)) for ledger in ledgers]
        rows.append(f"| {name} | {' | '.join(sides)} |")
    common = ledgers[0].keys() & ledgers[1].keys()
    alike = sum(ledgers[0][name]["verdict"] == ledgers[1][name]["verdict"] for name in common)
    spent = [until_s(side, common) for side in (one, ray)]
    return [
        *rows,
        "",
        f"{len(common)} candidates are in both ledgers, {alike} of them with the same verdict. "
        f"The last of them was entered after {spent[0]:.0f} s on one GPU and {spent[1]:.0f} s on "
        f"{ray['gpus']}: {spent[0] / spent[1]:.2f} times as fast.",
    ]


def entry_of(entry: Mapping[str, Any] | None) -> str:
    """A candidate's verdict and seconds."""
    if entry is None:
        return "not tried | –"
    if entry["gain"] is None:
        return f"{entry['verdict']} | {entry['cost_s']:.0f}"
    interval = f"{entry['low']:+.1%} to {entry['high']:+.1%}"
    return f"{entry['verdict']}, {entry['gain']:+.1%} ({interval}) | {entry['cost_s']:.0f}"


def until_s(side: Mapping[str, Any], names: Iterable[str]) -> float:
    """Seconds from the start to the last of these candidates' entries."""
    wanted, spent, until = set(names), side["baseline_s"], side["baseline_s"]
    for entry in side["entries"]:
        spent += entry["cost_s"]
        if entry["candidate"] in wanted:
            until = spent
    return float(until)


if __name__ == "__main__":
    main()
