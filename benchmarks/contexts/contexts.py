"""Why equal contexts of one process differ: loads of one engine, with one part at a time of their own.

    python benchmarks/contexts/contexts.py run --work WORK --out OUT --budget 150 [--engine BUILD_FOLDER …]
    python benchmarks/contexts/contexts.py table --out OUT

The subjects are models/digits at batches 8 and 1, built into WORK, and the engines of every BUILD_FOLDER.
A block is a warm-up and three medians, in ms: `wall`, a replay of the CUDA graph that is waited for at once;
`gpu`, the time between two events around one; `queued`, the time per replay of many handed over at a time.
Each round has a block of each subject in an order of its own. Each experiment is OUT/ENGINE-EXPERIMENT.json,
written when it ends; the same command continues where it ended. The most telling come first. An experiment
in which a process dies is noted as failed and passed over. `--dry-run` is a short pass on ONNX Runtime.

    loads           every subject a load of the engine: weights, scratch memory, inputs and outputs, graph
    weights         own weights; one scratch memory, one set of inputs and outputs
    scratch         own scratch memory; the rest shared
    io              own inputs and outputs; the rest shared
    graph           own graph (captured again) and own stream; the rest shared
    graphs          own graph, launched on one stream; the rest shared
    streams         own stream, on which one graph is launched; the rest shared
    eager           own stream, without a graph; the rest shared
    one-stream      loads, all launched on one stream
    eager-loads     loads, without graphs
    context         own execution context; the rest shared, scratch memory too
    swapped         the loads of `loads` made anew; then each with the inputs and outputs of the next
    permuted        engines, contexts and buffers allocated in three orders, each drawn at random
    reloaded        everything is closed and loaded again between groups of blocks
    reloaded-padded as before, behind device memory of a random size
    offsets         one context whose inputs and outputs begin at other offsets from 2 MiB
    alive           one subject in a fresh process, while others are loaded, have contexts, have run, or run
    alive-parts     as before, while others ran without a graph, or on the same stream, or have but a graph
    power           one subject after pauses, with its clocks
    processes       one subject in each of several processes
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from statistics import correlation, median
from typing import Any

import numpy as np

from trtopt.data.random_inputs import random_batch
from trtopt.device.api import Context, Device, DeviceBuffer, Graph, Session, Stream, Target
from trtopt.device.backends import open_target
from trtopt.device.cuda.cuda_python import load_runtime
from trtopt.errors import DeviceError, GraphCaptureError
from trtopt.files.manifests import read_manifest, read_verified
from trtopt.measure.loop.inference_stream import device_buffers, fill, host_buffers
from trtopt.measure.loop.sampling import no_garbage_collection
from trtopt.measure.statistics.builds import spread

DIGITS = Path(__file__).resolve().parents[2] / "models" / "digits" / "digits.onnx"
SOURCES = "EDGE_MASK_CONVOLUTIONS,JIT_CONVOLUTIONS"
"""TensorRT 8.6's tactics that need neither cuDNN nor cuBLAS."""
FIGURES = ("wall", "gpu", "queued")
GROUP = (
    *("loads", "weights", "scratch", "io", "graph", "context"),
    *("graphs", "streams", "eager", "one-stream", "eager-loads"),
    *("swapped", "reloaded", "reloaded-padded", "permuted", "offsets"),
)
"""Experiments that share a process; the others have one of their own."""
PARTS = ("launched", "never launched", "eager", "same stream", "eager on it")
"""What others have done in `alive-parts`: replayed their graphs on their own stream or on the measured one's,
captured them, or run without."""
OFFSETS = (0, 256, 512, 1024, 2048, 4096, 16384, 65536, 262144, 1 << 20, (1 << 20) + 256, (2 << 20) - 4096)
MEBIBYTE = 1 << 20
SETTLE_S = 0.008
"""Replays before a block's samples: until then caches are another subject's."""
LIMIT_S = 100.0
"""A process that takes longer is ended."""


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    loads: int = 16
    subjects: int = 12
    rounds: int = 6
    seconds: float = 0.022
    """Of `wall` in a block."""
    queries: int = 40
    """Of `gpu`, and twice as many of `queued`."""
    alive: tuple[int, ...] = (1, 3, 7)
    reloads: int = 5
    processes: int = 5


SHORT = Size(3, 3, 2, 0.002, 5, (1, 2), 2, 2)


# ── subjects ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Slice:
    """A part of device memory, as a buffer."""

    base: DeviceBuffer
    offset: int
    nbytes: int

    @property
    def address(self) -> int:
        """Its device address."""
        return self.base.address + self.offset

    def close(self) -> None:
        """The base is closed by its owner."""


class GivenScratch:
    """A TensorRT engine whose contexts use memory that is given to them."""

    def __init__(self, engine: Any, address: int) -> None:
        self._engine, self._address = engine, address

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def create_execution_context(self) -> Any:
        """As the engine's own, without memory of its own."""
        context = self._engine.create_execution_context_without_device_memory()
        if context is not None:
            context.device_memory = self._address
        return context


def on_stream(graph: Graph, stream: Stream) -> Graph:
    """The same graph, launched on another stream than where it was captured; it ends with the first."""
    runtime = load_runtime()
    (executable,) = graph._release.args  # type: ignore[union-attr]  # of what destroys it
    call, success, handle = runtime.cudaGraphLaunch, runtime.cudaError_t.cudaSuccess, stream.handle

    def launch() -> None:
        (status,) = call(executable, handle)
        if status != success:
            raise DeviceError(f"launching a graph: {status.name}", "see whether the GPU is healthy")

    return Graph(launch, lambda: None)


class Subject:
    """A context with its inputs and outputs, replayed as a CUDA graph where there is one."""

    def __init__(
        self,
        device: Device,
        context: Context,
        buffers: Mapping[str, DeviceBuffer],
        stream: Stream,
        *,
        captured: bool = True,
    ) -> None:
        self._device, self._stream, self._context = device, stream, context
        self.addresses = {name: buffer.address for name, buffer in buffers.items()}
        context.bind(buffers)
        context.enqueue(stream)
        stream.synchronize()
        self._graph = None
        if captured:
            with suppress(GraphCaptureError):
                self._graph = device.capture(stream, lambda: context.enqueue(stream))
        self._buffers = buffers
        self._events = [device.event(), device.event()]

    def launched_on(self, stream: Stream) -> Subject:
        """The same graph on another stream; this one closes it."""
        other = copy(self)
        other._stream, other._events = stream, [self._device.event(), self._device.event()]
        if self._graph is not None:
            other._graph = on_stream(self._graph, stream)
        other.launch()
        other.wait()
        return other

    def wait(self) -> None:
        """Until its stream is empty."""
        self._stream.synchronize()

    def launch(self) -> None:
        """One replay."""
        if self._graph is not None:
            self._graph.launch()
        else:
            self._context.bind(self._buffers)
            self._context.enqueue(self._stream)

    def block(self, size: Size) -> dict[str, float]:
        """Three medians, in ms."""
        now, wait = self._device.now, self._stream.synchronize
        self._walls(SETTLE_S, now, wait)
        wall = median(self._walls(size.seconds, now, wait))
        begin, end = self._events
        gpu = []
        for _ in range(size.queries):
            begin.record(self._stream)
            self.launch()
            end.record(self._stream)
            end.wait()
            gpu.append(end.elapsed_ms(begin))
        began = now()
        for _ in range(2 * size.queries):
            self.launch()
        wait()
        queued = (now() - began) * 1e3 / (2 * size.queries)
        return {"wall": wall, "gpu": median(gpu), "queued": queued}

    def _walls(self, seconds: float, now: Callable[[], float], wait: Callable[[], None]) -> list[float]:
        found: list[float] = []
        end = now() + seconds
        while len(found) < 5 or now() < end:
            before = now()
            self.launch()
            wait()
            found.append((now() - before) * 1e3)
        return found

    def close(self) -> None:
        """The graph and events; the rest belongs to the caller."""
        for event in self._events:
            event.close()
        if self._graph is not None:
            self._graph.close()


class Bench:
    """One engine on an open target; makes the parts of subjects, each closed by `resources`."""

    def __init__(self, target: Target, folder: Path, label: str, size: Size) -> None:
        self.target, self.device, self.size = target, target.device, size
        artifact = next(one for one in read_manifest(folder).engines if one.plan.label == label)
        self._inputs = artifact.inputs
        self._content = read_verified(folder / artifact.path, artifact.sha256)
        self.shapes = {name: wanted.opt for name, wanted in artifact.plan.shapes.items()}
        self.random = random.Random(label)
        self._sensor = self.device.clock_sensor()

    def session(self, resources: ExitStack) -> Session:
        """The engine, loaded once more: weights of its own."""
        session = self.target.load(self._content)
        resources.callback(session.close)
        return session

    def context(self, session: Session, resources: ExitStack) -> Context:
        """An execution context with scratch memory of its own."""
        context = session.context(self.shapes)
        resources.callback(context.close)
        return context

    def context_on(self, session: Session, scratch: DeviceBuffer, resources: ExitStack) -> Context:
        """An execution context on given scratch memory."""
        own = session.engine  # type: ignore[attr-defined]  # TensorRT's
        session.engine = GivenScratch(own, scratch.address)  # type: ignore[attr-defined]
        try:
            return self.context(session, resources)
        finally:
            session.engine = own  # type: ignore[attr-defined]

    def scratch(self, session: Session, resources: ExitStack) -> DeviceBuffer:
        """As much as a context of the session needs."""
        buffer = self.device.device_buffer(max(1, session.device_memory_bytes or 1))
        resources.callback(buffer.close)
        return buffer

    def buffers(self, context: Context, resources: ExitStack) -> dict[str, DeviceBuffer]:
        """Inputs and outputs, with random data."""
        buffers = device_buffers(self.device, context.bindings, resources)
        with ExitStack() as brief:
            data = random_batch(self._inputs, self.shapes)
            hosts = host_buffers(self.device, context.bindings, data, brief)
            fill(self.device, context.bindings, buffers, hosts, self.stream(brief))
        return buffers

    def stream(self, resources: ExitStack) -> Stream:
        """A stream."""
        stream = self.device.stream()
        resources.callback(stream.close)
        return stream

    def subject(
        self,
        context: Context,
        buffers: Mapping[str, DeviceBuffer],
        resources: ExitStack,
        stream: Stream | None = None,
        *,
        captured: bool = True,
    ) -> Subject:
        """With a graph of its own, unless none is to be captured, on a stream of its own or a given one."""
        own = self.stream(resources) if stream is None else stream
        subject = Subject(self.device, context, buffers, own, captured=captured)
        resources.callback(subject.close)
        return subject

    def load(self, resources: ExitStack, stream: Stream | None = None, *, captured: bool = True) -> Subject:
        """Everything anew, but for a stream that is given."""
        context = self.context(self.session(resources), resources)
        buffers = self.buffers(context, resources)
        return self.subject(context, buffers, resources, stream, captured=captured)

    def clocks(self) -> dict[str, Any]:
        """The SM clock, power and temperature now."""
        reading = self._sensor.read(0.0)
        return {"sm_mhz": reading.sm_mhz, "power_w": reading.power_w, "celsius": reading.temperature_c}

    def rounds(self, subjects: Sequence[Subject], count: int | None = None) -> dict[str, Any]:
        """Blocks of each subject by figure, [subject][round], in an order that each round draws."""
        found: dict[str, list[list[float]]] = {name: [[] for _ in subjects] for name in FIGURES}
        orders, clocks = [], [self.clocks()]
        with no_garbage_collection():
            for _ in range(self.size.rounds if count is None else count):
                order = self.random.sample(range(len(subjects)), len(subjects))
                orders.append(order)
                for index in order:
                    for name, value in subjects[index].block(self.size).items():
                        found[name][index].append(round(value, 6))
                clocks.append(self.clocks())
        addresses = [subject.addresses for subject in subjects]
        return {**found, "orders": orders, "clocks": clocks, "addresses": addresses}


# ── experiments ─────────────────────────────────────────────────────────────────────────────────────────


def loads(bench: Bench, resources: ExitStack) -> dict[str, Any]:
    """See the module."""
    return bench.rounds([bench.load(resources) for _ in range(bench.size.loads)])


def weights(bench: Bench, resources: ExitStack) -> dict[str, Any]:
    """See the module."""
    sessions = [bench.session(resources) for _ in range(bench.size.subjects)]
    scratch = bench.scratch(sessions[0], resources)
    contexts = [bench.context_on(one, scratch, resources) for one in sessions]
    buffers = bench.buffers(contexts[0], resources)
    return bench.rounds([bench.subject(one, buffers, resources) for one in contexts])


def scratch(bench: Bench, resources: ExitStack) -> dict[str, Any]:
    """See the module."""
    session = bench.session(resources)
    memory = [bench.scratch(session, resources) for _ in range(bench.size.subjects)]
    contexts = [bench.context_on(session, one, resources) for one in memory]
    buffers = bench.buffers(contexts[0], resources)
    found = bench.rounds([bench.subject(one, buffers, resources) for one in contexts])
    return found | {"scratch": [one.address for one in memory], "scratch_bytes": memory[0].nbytes}


def io(bench: Bench, resources: ExitStack) -> dict[str, Any]:
    """See the module."""
    context = bench.context(bench.session(resources), resources)
    sets = [bench.buffers(context, resources) for _ in range(bench.size.subjects)]
    return bench.rounds([bench.subject(context, one, resources) for one in sets])


def graph(bench: Bench, resources: ExitStack) -> dict[str, Any]:
    """See the module."""
    context = bench.context(bench.session(resources), resources)
    buffers = bench.buffers(context, resources)
    return bench.rounds([bench.subject(context, buffers, resources) for _ in range(bench.size.subjects)])


def graphs(bench: Bench, resources: ExitStack) -> dict[str, Any]:
    """See the module."""
    context = bench.context(bench.session(resources), resources)
    buffers, stream = bench.buffers(context, resources), bench.stream(resources)
    count = bench.size.subjects
    return bench.rounds([bench.subject(context, buffers, resources, stream) for _ in range(count)])


def streams(bench: Bench, resources: ExitStack) -> dict[str, Any]:
    """See the module."""
    first = bench.load(resources)
    others = [first.launched_on(bench.stream(resources)) for _ in range(bench.size.subjects - 1)]
    return bench.rounds([first, *others])


def eager(bench: Bench, resources: ExitStack) -> dict[str, Any]:
    """See the module."""
    context = bench.context(bench.session(resources), resources)
    buffers, count = bench.buffers(context, resources), bench.size.subjects
    return bench.rounds([bench.subject(context, buffers, resources, captured=False) for _ in range(count)])


def one_stream(bench: Bench, resources: ExitStack) -> dict[str, Any]:
    """See the module."""
    stream = bench.stream(resources)
    return bench.rounds([bench.load(resources, stream) for _ in range(bench.size.subjects)])


def eager_loads(bench: Bench, resources: ExitStack) -> dict[str, Any]:
    """See the module."""
    return bench.rounds([bench.load(resources, captured=False) for _ in range(bench.size.subjects)])


def context(bench: Bench, resources: ExitStack) -> dict[str, Any]:
    """See the module."""
    session = bench.session(resources)
    memory = bench.scratch(session, resources)
    contexts = [bench.context_on(session, memory, resources) for _ in range(bench.size.subjects)]
    buffers = bench.buffers(contexts[0], resources)
    return bench.rounds([bench.subject(one, buffers, resources) for one in contexts])


def swapped(bench: Bench, resources: ExitStack) -> dict[str, Any]:
    """See the module; `after[i]` ran on the inputs and outputs of `before[i + 1]`."""
    count = bench.size.subjects
    contexts, sets = [], []
    for _ in range(count):
        contexts.append(bench.context(bench.session(resources), resources))
        sets.append(bench.buffers(contexts[-1], resources))
    subjects = [bench.subject(one, sets[index], resources) for index, one in enumerate(contexts)]
    before = bench.rounds(subjects, bench.size.rounds // 2)
    again = [bench.subject(one, sets[(index + 1) % count], resources) for index, one in enumerate(contexts)]
    after = bench.rounds(again, bench.size.rounds // 2)
    restored = bench.rounds(subjects, bench.size.rounds // 2)
    return {"before": before, "after": after, "restored": restored}


def permuted(bench: Bench, resources: ExitStack) -> dict[str, Any]:
    """See the module; `position` is when each subject's part was allocated."""
    count = bench.size.subjects
    drawn = {kind: bench.random.sample(range(count), count) for kind in ("sessions", "contexts", "buffers")}
    sessions = {index: bench.session(resources) for index in drawn["sessions"]}
    contexts = {index: bench.context(sessions[index], resources) for index in drawn["contexts"]}
    sets = {index: bench.buffers(contexts[index], resources) for index in drawn["buffers"]}
    subjects = [bench.subject(contexts[index], sets[index], resources) for index in range(count)]
    position = {kind: [order.index(index) for index in range(count)] for kind, order in drawn.items()}
    return bench.rounds(subjects) | {"position": position}


def reloaded(bench: Bench, resources: ExitStack, *, padded: bool = False) -> dict[str, Any]:
    """See the module; `groups[g]` are the rounds of one load of all subjects."""
    groups = []
    for _ in range(bench.size.reloads):
        with ExitStack() as brief:
            pad = bench.random.randrange(1, 64 * MEBIBYTE) if padded else 0
            if pad:
                brief.callback(bench.device.device_buffer(pad).close)
            began = bench.device.now()
            subjects = [bench.load(brief) for _ in range(4)]
            load_s = (bench.device.now() - began) / len(subjects)
            groups.append({**bench.rounds(subjects, 3), "pad": pad, "load_s": round(load_s, 4)})
    return {"groups": groups}


def offsets(bench: Bench, resources: ExitStack) -> dict[str, Any]:
    """See the module."""
    context = bench.context(bench.session(resources), resources)
    filled, stream = bench.buffers(context, resources), bench.stream(resources)
    room = sum(-(-binding.nbytes // 512) * 512 for binding in context.bindings) + max(OFFSETS)
    stride = -(-room // (2 * MEBIBYTE)) * 2 * MEBIBYTE
    base = bench.device.device_buffer(stride * len(OFFSETS))
    resources.callback(base.close)
    subjects = []
    for number, offset in enumerate(OFFSETS):
        at, buffers = number * stride + offset, {}
        for binding in context.bindings:
            buffers[binding.name] = Slice(base, at, binding.nbytes)
            bench.device.copy_on_device(buffers[binding.name], filled[binding.name], stream)
            at += -(-binding.nbytes // 512) * 512
        stream.synchronize()
        subjects.append(bench.subject(context, buffers, resources))
    return bench.rounds(subjects) | {"offsets": OFFSETS}


def alive(bench: Bench, resources: ExitStack, *, parts: bool = False) -> dict[str, Any]:
    """See the module.

    `alone` are blocks of the first subject before anything else was loaded. Of each condition, `first` are
    its blocks while the others are alive, `new` those of a subject that was loaded after them, and `after`
    the first one's once they are closed.
    """
    stream = bench.stream(resources)
    first = bench.load(resources, stream)
    first.block(bench.size)
    alone = [first.block(bench.size) for _ in range(2 * bench.size.rounds)]
    kinds = PARTS if parts else ("streams", "sessions", "contexts", "ran", "run")
    conditions = [(kind, count) for kind in kinds for count in bench.size.alive]
    found = []
    for kind, count in bench.random.sample(conditions, len(conditions)):
        with ExitStack() as brief:
            others = [_other(bench, kind, brief, stream) for _ in range(count)]
            held = {"first": _blocks(bench, first, others)}
            if kind in ("ran", "run"):
                held["new"] = _blocks(bench, bench.load(brief), others)
        held["after"] = _blocks(bench, first, ())
        found.append({"kind": kind, "count": count, **held})
    return {"alone": alone, "conditions": found, "clocks": [bench.clocks()]}


def _other(bench: Bench, kind: str, resources: ExitStack, stream: Stream) -> Subject | None:
    """One that is alive beside the measured one; the subject if it is to run between blocks."""
    if kind == "streams":
        bench.stream(resources).synchronize()
        return None
    if kind in PARTS:
        on = stream if kind in ("same stream", "eager on it") else None
        subject = bench.load(resources, on, captured="eager" not in kind)
        if kind != "never launched":
            subject.launch()
            subject.wait()
        return None
    if kind in ("ran", "run"):
        subject = bench.load(resources)
        return subject if kind == "run" else None
    session = bench.session(resources)
    if kind == "contexts":
        bench.context(session, resources)
    return None


def _blocks(bench: Bench, subject: Subject, others: Sequence[Subject | None]) -> list[dict[str, float]]:
    """Blocks, each after a block of one of the others that run."""
    running = [other for other in others if other is not None]
    found = []
    for _ in range(3):
        for other in running[:1]:
            other.block(bench.size)
        found.append(subject.block(bench.size))
    return found


def power(bench: Bench, resources: ExitStack) -> dict[str, Any]:
    """See the module; no warm-up precedes a block but its own."""
    subject = bench.load(resources)
    found = []
    for pause_s in (2.0, 0.2, 1.0, 0.0, 2.0, 0.0):
        time.sleep(pause_s)
        blocks = [{**subject.block(bench.size), **bench.clocks()} for _ in range(bench.size.rounds)]
        found.append({"pause_s": pause_s, "blocks": blocks})
    return {"pauses": found}


def one_process(bench: Bench, resources: ExitStack) -> dict[str, Any]:
    """One subject's rounds."""
    subject = bench.load(resources)
    subject.block(bench.size)
    return bench.rounds([subject])


EXPERIMENTS: dict[str, Callable[[Bench, ExitStack], dict[str, Any]]] = {
    "loads": loads,
    "weights": weights,
    "scratch": scratch,
    "io": io,
    "graph": graph,
    "context": context,
    "graphs": graphs,
    "streams": streams,
    "eager": eager,
    "one-stream": one_stream,
    "eager-loads": eager_loads,
    "swapped": swapped,
    "permuted": permuted,
    "reloaded": reloaded,
    "reloaded-padded": lambda bench, resources: reloaded(bench, resources, padded=True),
    "offsets": offsets,
    "alive": alive,
    "alive-parts": lambda bench, resources: alive(bench, resources, parts=True),
    "power": power,
    "processes": one_process,
}
NEEDS_TENSORRT = ("weights", "scratch", "context")
"""They give contexts their scratch memory."""


# ── running ─────────────────────────────────────────────────────────────────────────────────────────────


def take(backend: str, folder: Path, label: str, names: Sequence[str], out: Path, size: Size) -> None:
    """Run experiments in this process, and write each as it ends; the first warms the device up."""
    target = open_target(backend)
    bench = Bench(target, folder, label, size)
    with ExitStack() as brief:
        subject = bench.load(brief)
        if names[0] != "power":
            began = bench.device.now()
            while bench.device.now() - began < (0.5 if target.device.info.kind == "gpu" else 0.0):
                subject.block(size)
    for name in names:
        began = time.monotonic()
        with ExitStack() as resources:
            found = EXPERIMENTS[name.partition(".")[0]](bench, resources)
        found |= {
            "experiment": name,
            "engine": f"{folder.name}-{label}",
            "device": target.device.info.name,
            "backend": str(target.backend),
            "took_s": round(time.monotonic() - began, 2),
        }
        _write(out / f"{folder.name}-{label}-{name}.json", found)
    target.close()


def _write(path: Path, found: Mapping[str, Any]) -> None:
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(found) + "\n", "utf-8")
    beside.replace(path)


def build(work: Path, backend: str) -> Path:
    """models/digits at batches 1 and 8, built once."""
    folder = work / "digits"
    if not (folder / "manifest.json").exists():
        options = ["--tactic-sources", SOURCES] if backend == "tensorrt" else []
        command = [sys.executable, "-m", "trtopt", "build", str(DIGITS), "-o", str(folder)]
        command += ["--batch", "1,8", "--backend", backend, *options]
        subprocess.run(command, check=True, timeout=240)
    return folder


def processes_of(size: Size) -> Iterator[tuple[str, ...]]:
    """The experiments of each process, the most telling first."""
    yield GROUP[:6]
    yield ("alive",)
    yield GROUP[6:11]
    yield ("alive-parts",)
    yield GROUP[11:]
    for number in range(size.processes):
        yield (f"processes.{number}",)
    yield ("power",)


def run(arguments: argparse.Namespace) -> None:
    """All experiments that the budget allows."""
    began = time.monotonic()
    backend = "onnxruntime" if arguments.dry_run else "tensorrt"
    size = SHORT if arguments.dry_run else Size()
    arguments.work.mkdir(parents=True, exist_ok=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    folders = [build(arguments.work, backend), *arguments.engine]
    engines = [(folder, one.plan.label) for folder in folders for one in read_manifest(folder).engines]
    engines.sort(key=lambda engine: (folders.index(engine[0]), engine[1] != "batch8"))
    for names in processes_of(size):
        for folder, label in engines:
            wanted = [
                name
                for name in names
                if not (arguments.out / f"{folder.name}-{label}-{name}.json").exists()
                and not (arguments.dry_run and name in NEEDS_TENSORRT)
                and (not arguments.only or name.partition(".")[0] in arguments.only.split(","))
            ]
            while wanted:
                left = arguments.budget - (time.monotonic() - began)
                if left < 8 and not arguments.dry_run:
                    print(f"budget spent; left: {label} {', '.join(wanted)}, and what comes after")
                    table(arguments.out)
                    return
                _in_process(backend, folder, label, wanted, arguments.out, size, min(left, LIMIT_S))
                undone = [
                    name
                    for name in wanted
                    if not (arguments.out / f"{folder.name}-{label}-{name}.json").exists()
                ]
                if undone and arguments.budget - (time.monotonic() - began) > 8:  # what it died of
                    failed = undone.pop(0)
                    _write(arguments.out / f"{folder.name}-{label}-{failed}.json", {"failed": True})
                elif undone:
                    break
                wanted = undone
    table(arguments.out)


def _in_process(
    backend: str, folder: Path, label: str, names: Sequence[str], out: Path, size: Size, limit_s: float
) -> None:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=take, args=(backend, folder, label, names, out, size))
    began = time.monotonic()
    process.start()
    process.join(max(1.0, limit_s))
    if process.is_alive():
        process.kill()
        process.join()
    took = time.monotonic() - began
    print(f"{label} {', '.join(names)}: {took:.1f} s, exit code {process.exitcode}", flush=True)


# ── the table ───────────────────────────────────────────────────────────────────────────────────────────


def table(out: Path) -> None:
    """Print what the files in OUT say."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(out.glob("*.json")):
        held = json.loads(path.read_text("utf-8"))
        if not held.get("failed"):
            found.setdefault(held["engine"], {})[held["experiment"]] = held
        else:
            print(f"failed: {path.name}")
    for engine, experiments in found.items():
        print(f"\n## {engine}\n")
        print("| experiment | figure | subjects | median, ms | between, % | within, % | F | range, % |")
        print("|---|---|--:|--:|--:|--:|--:|--:|")
        parts = sorted(key for key in experiments if key.startswith("processes."))
        if parts:
            joined = {name: [experiments[key][name][0] for key in parts] for name in FIGURES}
            experiments["processes"] = joined
        for name in (*GROUP, "processes"):
            for title, held in _parts(name, experiments.get(name)):
                for figure in FIGURES:
                    print(f"| {title} | {figure} | {_variances(held[figure])} |")
        for line in _remarks(experiments):
            print(line)


def _parts(name: str, held: dict[str, Any] | None) -> list[tuple[str, dict[str, Any]]]:
    if held is None:
        return []
    if name == "swapped":
        return [(f"{name}, {part}", held[part]) for part in ("before", "after", "restored")]
    if "groups" in held:
        every = {figure: [one for group in held["groups"] for one in group[figure]] for figure in FIGURES}
        by_place = {
            figure: [
                [median(group[figure][place]) for group in held["groups"]]
                for place in range(len(held["groups"][0][figure]))
            ]
            for figure in FIGURES
        }
        return [(f"{name}, every load", every), (f"{name}, by its place in the order", by_place)]
    return [(name, held)]


def _variances(blocks: Sequence[Sequence[float]]) -> str:
    """Between and within subjects, as standard deviations of the logarithm."""
    known = spread(blocks)
    middles = [median(one) for one in blocks]
    figures = [
        str(len(blocks)),
        f"{median(middles):.5f}",
        _percent(known.between),
        _percent(known.within),
        f"{_f(blocks):.1f}",
        f"{(max(middles) / min(middles) - 1) * 100:.2f}",
    ]
    return " | ".join(figures)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.2f}"


def _f(blocks: Sequence[Sequence[float]]) -> float:
    """Mean square between over within."""
    logs = np.log(np.array([list(one) for one in blocks]))
    if len(logs) < 2 or logs.shape[1] < 2:
        return 0.0
    within = float(logs.var(axis=1, ddof=1).mean())
    return float(logs.mean(axis=1).var(ddof=1)) * logs.shape[1] / within if within else 0.0


def _remarks(experiments: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    yield ""
    if "loads" in experiments:
        middles = [median(one) for one in experiments["loads"]["wall"]]
        yield f"loads in the order of loading, wall: {_listed(middles)}; {_relation(middles)} with the order"
    for name in ("graph", "graphs", "streams", "one-stream", "eager-loads"):
        if name in experiments:
            yield f"{name}, queued: {_listed([median(one) for one in experiments[name]['queued']])}"
    if "swapped" in experiments:
        held = experiments["swapped"]
        before, after, restored = (
            [median(one) for one in held[part]["gpu"]] for part in ("before", "after", "restored")
        )
        others = [*before[1:], before[0]]
        yield (
            f"swapped, gpu: correlation of `after` with the same context {_r(before, after)}, with the same "
            f"inputs and outputs {_r(others, after)}; of `restored` with `before` {_r(before, restored)}"
        )
    if "permuted" in experiments:
        held = experiments["permuted"]
        middles = [median(one) for one in held["gpu"]]
        parts = [f"{kind} {_r(position, middles)}" for kind, position in held["position"].items()]
        yield f"permuted, gpu: correlation with the position of {', '.join(parts)}"
    for name in ("reloaded", "reloaded-padded"):
        if name in experiments:
            groups = experiments[name]["groups"]
            places = [tuple(sorted(one.values())) for group in groups for one in group["addresses"]]
            yield (
                f"{name}: {len(set(places))} different sets of I/O addresses in {len(places)} loads; a load "
                f"takes {median(group['load_s'] for group in groups):.3f} s"
            )
    if "offsets" in experiments:
        held = experiments["offsets"]
        pairs = zip(held["offsets"], held["gpu"], strict=True)
        yield "offsets, gpu: " + ", ".join(f"{offset}: {median(one):.5f}" for offset, one in pairs)
    for name in ("alive", "alive-parts"):
        if name in experiments:
            yield f"{name}:"
            yield from _alive_remarks(experiments[name])
    if "power" in experiments:
        for pause in experiments["power"]["pauses"]:
            blocks = [f"{one['wall']:.5f} ({one['sm_mhz']} MHz)" for one in pause["blocks"]]
            yield f"power, after {pause['pause_s']} s: {', '.join(blocks)}"


def _alive_remarks(held: Mapping[str, Any]) -> Iterator[str]:
    for figure in FIGURES:
        base = median(one[figure] for one in held["alone"])
        yield f"alive, {figure}: alone {base:.5f} ms; against that, in %:"
        for one in sorted(held["conditions"], key=lambda one: (one["kind"], one["count"])):
            parts = [
                f"{part} {(median(block[figure] for block in one[part]) / base - 1) * 100:+.2f}"
                for part in ("first", "new", "after")
                if part in one
            ]
            yield f"    {one['count']} × {one['kind']}: {', '.join(parts)}"


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.5f}" for value in values)


def _relation(values: Sequence[float]) -> str:
    return f"correlation {_r(range(len(values)), values)}"


def _r(a: Sequence[float], b: Sequence[float]) -> str:
    if len(set(a)) < 2 or len(set(b)) < 2:
        return "none"
    return f"{correlation(list(map(float, a)), list(b)):+.2f}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run")
    runs.add_argument("--work", type=Path, required=True, help="for built engines")
    runs.add_argument("--out", type=Path, required=True)
    runs.add_argument("--budget", type=float, default=150.0, help="seconds; default 150")
    runs.add_argument("--engine", type=Path, action="append", default=[], help="a build folder")
    runs.add_argument("--only", default="", help="experiments, with commas between")
    runs.add_argument("--dry-run", action="store_true", help="ONNX Runtime, a short pass")
    tables = commands.add_parser("table")
    tables.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.command == "run":
        run(arguments)
    else:
        table(arguments.out)


if __name__ == "__main__":
    main()
