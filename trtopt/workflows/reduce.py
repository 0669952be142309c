"""From a model that fails to a smallest part of it that fails alike, by cutting and delta debugging."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, TypeAlias

import msgspec
import numpy as np
import onnx

from trtopt.builder.shapes import batch_name
from trtopt.data.feeds import Feed, from_data, on_seeded, seeded, source_of, specs_of
from trtopt.data.random_inputs import random_batch
from trtopt.data.readers import Arrays, write_npz
from trtopt.data.source import fingerprint_of
from trtopt.device.backends import choose_for_building, choose_for_running, open_builder
from trtopt.device.ort.reference import CannotRun
from trtopt.errors import (
    BackendMissingError,
    MeasurementError,
    ModelError,
    NoGpuError,
    OutputError,
    TrtoptError,
    UsageError,
)
from trtopt.files.atomic import lock, scratch_folder, write_atomically
from trtopt.files.bounded_reading import read_bounded
from trtopt.files.formats import DAMAGED_ZIP
from trtopt.files.outputs import Kind, check_output, kind_beginning
from trtopt.inspect.fusion import candidates
from trtopt.inspect.graph import read_graph
from trtopt.onnxio import model_file
from trtopt.onnxio.extraction import Ends, constant_tensors, subset_of
from trtopt.onnxio.graph_walk import name_of, names_in
from trtopt.onnxio.model_file import MODEL, ModelFile, array_of, spooled
from trtopt.onnxio.model_info import read_onnx
from trtopt.onnxio.prepare import prepare
from trtopt.onnxio.shape_inference import inferred, types_of
from trtopt.precision.bounds import ACCURATE
from trtopt.precision.observe import shards_of
from trtopt.precision.running import part_of
from trtopt.precision.search import Spent, minimal, short_start
from trtopt.records import ReducedNode, ReduceReport, Symptom, TensorSpec, Unfused
from trtopt.records.precision import Violation
from trtopt.requests.measure import ProfileRequest
from trtopt.requests.models import CONDITIONS, ReduceRequest
from trtopt.requests.recipe import make_recipe
from trtopt.version import __version__
from trtopt.workflows.bench.resolve_engines import engines_at
from trtopt.workflows.build.build import build_recipe
from trtopt.workflows.listener import SILENT
from trtopt.workflows.precision.checker import Checker, run_over
from trtopt.workflows.profile.profile import profile
from trtopt.workflows.provenance import command_line, now

_HEADER = b'{"schema":"trtopt.reduce-journal/2"}\n'
_WRITTEN_BY = b"written by trtopt reduce"
_CANNOT_JUDGE, _NOT_RUN, _BY_SIGNAL = 125, (126, 127), 128
"""What a command's exit codes mean, as for `git bisect run`, and what a shell adds to a signal's number."""
_LAST_WORDS_BYTES = 4096
_SECONDS = 0.5
"""For which engines are measured."""
Judge: TypeAlias = "Callable[[Part], tuple[Symptom, ...]]"


def _has_comment(path: Path) -> bool:
    with suppress(*DAMAGED_ZIP), zipfile.ZipFile(path) as archive:
        return archive.comment == _WRITTEN_BY
    return False


INPUTS = Kind("inputs of a reduced model", _has_comment)
JOURNAL = kind_beginning("the journal of a reduction", _HEADER)


@dataclass(frozen=True)
class Part:
    """A model to judge in a folder of its own, the inputs to run it on, and the sizes of its open axes."""

    model: Path
    data: Path
    sizes: dict[str, object]
    folder: Path


def reduce(request: ReduceRequest) -> ReduceReport:
    """Find the smallest part of a model that still fails as the whole does.

    Returns:
        The nodes that are left and the failure that they show; the model and its inputs are in files.

    Raises:
        ModelError: the model does not fail.
        MeasurementError: the failure comes and goes.

    Example:
        >>> report = trtopt.reduce("model.onnx", "part.onnx", condition="! grep -q Gemm {model}")
        >>> [node.op for node in report.nodes]
        ['Gemm']
    """
    began = time.perf_counter()
    source, out = Path(request.model), Path(request.output)
    inputs, journal = out.with_suffix(".npz"), out.with_name(f"{out.name}.journal")
    judge, backend = _judge_for(request)
    if inputs == out:
        raise UsageError(f"-o {out}: is the name for the inputs", f"name it {out.with_suffix('.onnx')}")
    for path, kind in ((out, MODEL), (inputs, INPUTS), (journal, JOURNAL)):
        check_output(path, kind)
    artifact, model = read_onnx(source), prepare(model_file.load(source))
    _check_fusion(request.condition, model)
    read = [one for one in (request.data, request.profile) if one is not None] + _files_of(request.condition)
    options = (request.condition, request.bounds.given, request.timeout)
    terms = repr((__version__, backend, artifact.sha256, [*map(fingerprint_of, read)], options))
    with scratch_folder() as scratch, lock(journal):
        done = Journal(journal, terms)
        request.listener.phase(source.name, "recording the values of its tensors")
        values, notes = _record(model, request.data, scratch)
        trials = Trials(model, values, judge, scratch, done, request)
        try:
            found = trials.reduce()
        except (UsageError, ModelError, MeasurementError):  # run again it would read the same
            journal.unlink(missing_ok=True)
            raise
        part = trials.part(found.kept, scratch, fixed=found.fixed)
        assert part is not None
        model_file.save(model_file.load(part.model), out, beside=(inputs, part.data.read_bytes()))
        if found.minimal:
            journal.unlink(missing_ok=True)
    nodes = [model.proto.graph.node[place] for place in found.kept]
    return ReduceReport(
        created=now(),
        argv=command_line(),
        model=str(source),
        model_sha256=artifact.sha256,
        out=str(out),
        data=str(inputs),
        condition=request.condition,
        backend=backend,
        symptom=found.symptom,
        others=found.others,
        nodes_before=len(model.proto.graph.node),
        nodes=tuple(ReducedNode(name=node.name, op=node.op_type) for node in nodes),
        fixed_shapes=found.fixed and trials.is_open,
        minimal=found.minimal,
        steps=trials.steps,
        resumed=trials.resumed,
        notes=tuple(notes),
        seconds=round(time.perf_counter() - began, 3),
    )


# ── values of tensors ───────────────────────────────────────────────────────────────────────────────────

_MAPPED_BYTES = 1 << 20
"""Arrays from this size on lie in files."""
_NO_ARRAYS = {
    number
    for name, number in onnx.TensorProto.DataType.items()
    if name.startswith(("FLOAT4", "FLOAT8", "INT4", "UINT4"))
}
"""Types whose values ONNX Runtime gives no one."""


def _record(model: ModelFile, data: str | Path | None, folder: Path) -> tuple[Arrays, list[str]]:
    """The values of every tensor for one batch of inputs, and notes.

    Behind the first node that ONNX Runtime cannot run they are random, where shapes are known.
    """
    nodes, types = model.proto.graph.node, types_of(model.proto)

    def run(feed: Arrays, count: int = len(nodes)) -> Arrays:
        made_so_far = (name for node in nodes[:count] for name in node.output if name)
        names = [name for name in made_so_far if types.get(name) not in _NO_ARRAYS]
        made: Arrays = {}
        for shard in shards_of(model, source_of((Feed("", feed),)), names) if names else ():
            for name, array in part_of(model, shard).run(feed).items():
                if not isinstance(array, np.ndarray):
                    continue  # a sequence can become no input
                is_large = array.nbytes >= _MAPPED_BYTES and array.dtype.kind != "O"
                made[name] = array_of(spooled(array, name, folder), folder) if is_large else array
        return feed | made

    feed = from_data(data, model.proto).values if data is not None else None
    try:
        if feed is not None:
            return run(feed), []
        return on_seeded(model.proto, lambda feeds: run(feeds[0].values)), []
    except ModelError as error:
        reason = error.summary
    feed = seeded(model.proto)[0].values if feed is None else feed
    known, refused = feed, len(nodes)
    runs = 0
    while refused - runs > 1:
        middle = (runs + refused) // 2
        try:
            known, runs = run(feed, middle), middle
        except CannotRun:
            refused = middle
    graph = read_graph(model.proto, {name: array.shape for name, array in feed.items()})
    unknown = [
        TensorSpec(name=name, dtype=graph.dtypes[name], shape=graph.shapes[name])
        for node in graph.nodes
        for name in node.outputs
        if name in graph.shapes and name not in known
        if graph.dtypes.get(name, "unknown") not in ("unknown", "object")
    ]
    guessed = random_batch(unknown, graph.shapes)
    return known | guessed, [f"values behind {name_of(nodes[runs])!r} are random: {reason}"]


def _lengths(model: onnx.ModelProto, values: Arrays) -> dict[str, int]:
    """The named axes of the model's inputs, with their lengths."""
    return {
        axis: values[spec.name].shape[place]
        for spec in specs_of(model)
        for place, axis in enumerate(spec.shape)
        if isinstance(axis, str) and axis != "?"
    }


def _ends(model: onnx.ModelProto, values: Arrays, *, fixed: bool) -> Ends:
    """What tensors become where a part begins: constants if no input changes them, else inputs.

    Not `fixed`, axes keep the names that the model's inputs give them.
    """
    constants = constant_tensors(model.graph, fixed_shapes=fixed)
    lengths = {} if fixed else _lengths(model, values)
    graph = inferred(model).graph if lengths else onnx.GraphProto()
    declared = {item.name: item.type.tensor_type.shape.dim for item in (*graph.input, *graph.value_info)}
    ends: dict[str, onnx.ValueInfoProto | onnx.TensorProto] = {}
    for name, array in values.items():
        if name in constants:
            ends[name] = onnx.numpy_helper.from_array(np.asarray(array), name)
            continue
        axes = [axis.dim_param for axis in declared.get(name, ())]
        axes = axes if len(axes) == array.ndim else [""] * array.ndim
        shape = [
            axis if lengths.get(axis) == length else length
            for axis, length in zip(axes, array.shape, strict=True)
        ]
        dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        ends[name] = onnx.helper.make_tensor_value_info(name, dtype, shape)
    return ends


# ── the search ──────────────────────────────────────────────────────────────────────────────────────────


class Journal:
    """What each model that was tried has shown, in a file that a killed run leaves behind for the next.

    Steps of other models, conditions or options are there under other keys.
    """

    def __init__(self, path: Path, terms: str) -> None:
        self._path, self._terms = path, terms
        self.found: dict[str, tuple[Symptom, ...]] = {}
        if path.exists():
            steps = read_bounded(path).removeprefix(_HEADER)
            with suppress(ValueError, RecursionError, msgspec.ValidationError):  # edited: all are run again
                self.found = msgspec.convert(json.loads(steps), dict[str, tuple[Symptom, ...]])

    def key(self, *subject: object) -> str:
        """The key of a step."""
        return hashlib.sha256(f"{self._terms} {subject!r}".encode()).hexdigest()[:32]

    def add(self, key: str, symptoms: tuple[Symptom, ...]) -> None:
        """Note what a step found, on the disk."""
        self.found[key] = symptoms
        steps = json.dumps(msgspec.to_builtins(self.found))  # escapes what is no text
        write_atomically(self._path, _HEADER + steps.encode())


@dataclass(frozen=True)
class Found:
    """The places of the nodes that are left, and how they fail."""

    kept: tuple[int, ...]
    fixed: bool
    symptom: Symptom
    others: tuple[Symptom, ...]
    minimal: bool


@dataclass
class Trials:
    """Parts of a model, each judged once.

    `steps` counts them, `resumed` those that the journal had; `is_open`: an input leaves an axis open.
    """

    model: ModelFile
    values: Arrays
    judge: Judge
    scratch: Path
    journal: Journal
    request: ReduceRequest
    steps: int = 0
    resumed: int = 0

    def __post_init__(self) -> None:
        graph = self.model.proto.graph
        self._whole = tuple(range(len(graph.node)))
        self._names = names_in(graph) | {name_of(node) for node in graph.node}
        self.is_open = bool(_lengths(self.model.proto, self.values))
        self._ends_of: dict[bool, Ends] = {}
        self._seen: set[str] = set()

    def reduce(self) -> Found:
        """A part of which no node can be left out, or the smallest that was found in all steps."""
        self.request.listener.plans(["reduce"])
        seen = self.symptoms(self._whole, fixed=not self.is_open)
        if not seen:
            raise ModelError(
                "the model does not fail like that, so there is nothing to reduce",
                "try it on the data that it fails on (--data), the backend (--backend), or another --while",
            )
        again = {one.look for one in self.symptoms(self._whole, fixed=not self.is_open, turn=1)}
        symptom = next((one for one in seen if one.look in again), None)
        if symptom is None:
            raise _comes_and_goes(seen[0])
        self._kept, self._symptom = self._whole, symptom
        self._failing = [(self._whole, not self.is_open)]
        self._fixed = True  # open axes are kept open only where the failure needs them
        try:
            self._fixed = not self.is_open or self._holds(self._whole)
            self._narrow()
            is_minimal = True
        except Spent:
            is_minimal = False
        others = tuple(one for one in seen if one.look != symptom.look and one.detail != symptom.detail)
        for kept, fixed in sorted(self._failing, key=lambda one: len(one[0])):
            shown = self.symptoms(kept, fixed=fixed, turn=2)  # what was measured may not fail each time
            if found := next((one for one in shown if one.look == symptom.look), None):
                is_smallest = len(kept) == len(self._kept)
                return Found(kept, fixed, found, others, is_minimal and is_smallest)
        raise _comes_and_goes(seen[0])

    def _narrow(self) -> None:
        named = {word.strip(".:") for word in _WORD.findall(self._symptom.detail)}
        nodes = self.model.proto.graph.node
        hinted = [place for place in self._whole if name_of(nodes[place]) in named]
        if not (hinted and self._holds(hinted)):
            first = short_start(self._whole, self._holds)
            short_start(first[::-1], self._holds)
        minimal(self._kept, self._holds)

    def _holds(self, kept: Sequence[int]) -> bool:
        """Whether these nodes fail as the whole model does."""
        if not kept:
            return False
        if all(one.look != self._symptom.look for one in self.symptoms(kept, fixed=self._fixed)):
            return False
        if len(kept) <= len(self._kept):
            self._kept = tuple(sorted(kept))
        self._failing.append((tuple(sorted(kept)), self._fixed))
        return True

    def symptoms(self, kept: Collection[int], *, fixed: bool, turn: int = 0) -> tuple[Symptom, ...]:
        """How a part fails; each `turn` is a run of its own."""
        key = self.journal.key(sorted(kept), fixed, turn)
        found = self.journal.found.get(key)
        if found is not None and key in self._seen:
            return found
        if self.steps >= self.request.max_steps and not turn:
            raise Spent
        self.steps += 1
        text = f"step {self.steps}: {len(kept)} of {len(self._whole)} nodes"
        self.request.listener.progress(0, text, None)
        self._seen.add(key)
        if found is not None:
            self.resumed += 1
        else:
            with tempfile.TemporaryDirectory(dir=self.scratch) as name:
                part = self.part(kept, Path(name), fixed=fixed)
                is_whole = len(kept) == len(self._whole)
                found = self._look_at(part, is_whole=is_whole) if part is not None else ()
            self.journal.add(key, found)
        return found

    def _look_at(self, part: Part, *, is_whole: bool) -> tuple[Symptom, ...]:
        try:
            found = self.judge(part)
        except (OutputError, BackendMissingError, NoGpuError):
            raise
        except TrtoptError as error:
            if is_whole and (isinstance(error, UsageError) or self.request.condition != "fails"):
                raise
            text = f"{type(error).__name__}: {error.summary}"
            found = (Symptom(kind="error", signature=text, detail=text),)
        return tuple(
            msgspec.structs.replace(
                one, signature=self._stem(one.signature, part), detail=_shown(one.detail, part)
            )
            for one in found
        )

    def _stem(self, text: str, part: Part) -> str:
        """A message without the model's names, without numbers and paths: what two failures share."""
        words = _WORD.sub(
            lambda word: "NAME" if word[0].strip(".:") in self._names else word[0], _shown(text, part)
        )
        return _NUMBERS.sub("#", words)

    def part(self, kept: Collection[int], folder: Path, *, fixed: bool) -> Part | None:
        """The model of these nodes with its inputs in `folder`; None where it cannot begin where they do."""
        if fixed not in self._ends_of:
            self._ends_of[fixed] = _ends(self.model.proto, self.values, fixed=fixed)
        proto = subset_of(self.model.proto, kept, self._ends_of[fixed])
        if proto is None:
            return None
        part = Part(folder / "model.onnx", folder / "inputs.npz", _sizes(proto, self.values), folder)
        model_file.save(replace(self.model, proto=proto), part.model)
        write_npz(part.data, {one.name: self.values[one.name] for one in proto.graph.input}, _WRITTEN_BY)
        return part


_WORD = re.compile(r"""[^\s'"`,;()\[\]{}=]+""")
_NUMBERS = re.compile(r"\b(?:0x[0-9a-fA-F]+|\d+(?:\.\d+)*(?:e[+-]?\d+)?)(?:[\s,x×]+\d+)*")


def _comes_and_goes(symptom: Symptom) -> MeasurementError:
    return MeasurementError(
        f"the failure comes and goes: {symptom.detail}", "find what makes it fail every time first"
    )


def _shown(text: str, part: Part) -> str:
    return text.replace(str(part.model), "the model").replace(str(part.folder), "the folder")


def _sizes(model: onnx.ModelProto, values: Arrays) -> dict[str, object]:
    """The options of a build for the lengths of a model's inputs."""
    specs, lengths = specs_of(model), _lengths(model, values)
    first = next((values[spec.name].shape[0] for spec in specs if spec.shape), None)
    is_open = [spec for spec in specs if spec.shape and isinstance(spec.shape[0], str)]
    batch = values[is_open[0].name].shape[0] if is_open else first
    own = batch_name(specs)
    later = {str(axis) for spec in specs for axis in spec.shape[1:]} & lengths.keys()
    axes = {name: (lengths[name],) for name in later if name != own}
    return {"batch": None if batch is None else (batch,), "axes": axes or None}


# ── conditions ──────────────────────────────────────────────────────────────────────────────────────────


def _judge_for(request: ReduceRequest) -> tuple[Judge, str | None]:
    """What shows whether a model fails as requested, and what it builds with."""
    text = request.condition
    if "{model}" in text:
        reason = "has no effect, because a command judges"
        if request.backend != "auto" or request.profile is not None:
            flag = "--backend" if request.profile is None else "--recipe"
            raise UsageError(f"{flag}: {reason}", "write it into the command")
        _check_bounds(request, "a command judges")
        return partial(_run_command, text, request.timeout), None
    kind, _, value = text.partition(":")
    if not re.fullmatch(r"fails|wrong|unfused(:.+)?|slower:(?=.*[1-9])\d*\.?\d+", text):
        raise UsageError(
            f"--while {text!r}: no such condition",
            f"choose among {', '.join(CONDITIONS)}, or give a command that reads the file {{model}}: "
            "--while 'python check.py {model}'",
        )
    if kind != "wrong":
        _check_bounds(request, f"{kind} compares no outputs")
    chosen = (choose_for_building if kind == "fails" else choose_for_running)(request.backend)
    builder = open_builder(chosen.name)
    runs = choose_for_running(None, chosen.name).name == chosen.name
    bounds = request.bounds if request.bounds.any else ACCURATE
    make_recipe(request.profile, {})  # a mistake in it is found before any work

    def judge(part: Part) -> tuple[Symptom, ...]:
        own = {"rewrite": "none", "backend": chosen.name, "build_timeout": request.timeout}
        recipe = make_recipe(request.profile, {**own, **part.sizes})
        folder = part.folder / "engines"
        manifest = build_recipe(part.model, folder, recipe)
        if not manifest.onnx.inputs:  # there is nothing to run it on
            return ()
        engine, *_ = engines_at(folder, manifest.onnx.inputs, manifest.engines)
        if kind == "wrong":
            checker = Checker(read_onnx(part.model), None, bounds)
            checked = checker.engine(engine, part.data, SILENT, request.timeout)
            return tuple(map(_wrong, checked.violations))
        if kind == "fails":
            if runs:
                inputs = manifest.onnx.inputs
                run_over(engine, inputs, part.data, part.folder, limit_s=request.timeout)
            return ()
        found = profile(
            ProfileRequest(folder, data=part.data, duration=_SECONDS, timeout=request.timeout)
        ).engines[0]
        if kind == "slower":
            latency = found.latency_ms or found.sum_ms
            symptom = Symptom(kind="slow", signature="", detail=f"{latency:.3f} ms")
            return (symptom,) if latency > float(value) else ()
        return tuple(_unfused(one) for one in found.unfused if value in ("", one.fusion))

    return judge, str(builder.backend)


def _check_bounds(request: ReduceRequest, reason: str) -> None:
    if request.bounds.any:
        flag = next(iter(request.bounds.given)).replace("_", "-")
        raise UsageError(f"--{flag}: has no effect, because {reason}", "omit it, or give --while wrong")


def _check_fusion(condition: str, model: ModelFile) -> None:
    """Refuse to look for a fusion that no nodes of the model could have."""
    kind, _, wanted = condition.partition(":")
    if kind != "unfused" or not wanted:
        return
    known = {one.fusion for one in candidates(read_graph(model.proto, {}))}
    if wanted not in known:
        raise UsageError(
            f"--while {condition}: the model has no place for such a fusion",
            f"it has places for {', '.join(sorted(known)) or 'none that is known: give another --while'}",
        )


def _wrong(violation: Violation) -> Symptom:
    is_finite = violation.measure not in ("NaN or infinite values", "finite values")
    return Symptom(
        kind="wrong output",
        signature="values" if is_finite else "NaN or infinite values",
        detail=violation.text,
    )


def _unfused(one: Unfused) -> Symptom:
    detail = f"{', '.join(one.nodes)} did not become one layer ({one.fusion}): {one.reason}, {one.detail}"
    return Symptom(kind="unfused", signature=f"{one.fusion}: {one.reason}", detail=detail)


def _files_of(command: str) -> list[str | Path]:
    """The files that a command names, such as its script: changed, it may find otherwise."""
    with suppress(ValueError):  # quotes that only a shell understands
        return [word for word in shlex.split(command) if Path(word).is_file()]
    return []


def _run_command(text: str, limit_s: float, part: Part) -> tuple[Symptom, ...]:
    """Run the user's command on a part, in a process group of its own: its exit code says whether it fails.

    The first symptom holds its last words too; where these change from run to run the second is left.
    """
    paths = {"{model}": part.model, "{data}": part.data}
    line = re.sub(r"\{(?:model|data)\}", lambda one: shlex.quote(str(paths[one[0]])), text)
    plain = str(part.model)
    if re.search("['\"]", text) and shlex.quote(plain) != plain:  # quotes within quotes end them
        problem = f"{tempfile.gettempdir()}: has characters that the quotes in --while cannot hold"
        raise UsageError(problem, "set TMPDIR to another folder")
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            ["sh", "-c", line],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=said,
            start_new_session=True,
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return (Symptom(kind="hang", signature="", detail=f"not done after {limit_s:g} s"),)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it started, too
            process.wait()
        words = _last_line(said) or _last_line(printed)
    if status in (0, _CANNOT_JUDGE):
        return ()
    if status in _NOT_RUN:
        raise UsageError(f"the command cannot be run: {words or text}", "run it on the model yourself")
    number = status - _BY_SIGNAL if status > 0 else -status
    how = f"signal {number}" if 0 < number < signal.NSIG else f"exit {status}"
    texts = [f"{how}: {words}", how] if words else [how]
    return tuple(Symptom(kind="exit code", signature=one, detail=texts[0]) for one in texts)


def _last_line(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_WORDS_BYTES))
    return file.read().decode(errors="replace").strip().rpartition("\n")[2]
