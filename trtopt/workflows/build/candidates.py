"""Candidate graphs of one model: each in a precision, in its own folder, with its accuracy."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from trtopt.data import SampleSource, open_data
from trtopt.data.feeds import seeded_source, specs_of
from trtopt.files.atomic import scratch_beside
from trtopt.onnxio import model_file, prepare
from trtopt.onnxio.model_file import ModelFile
from trtopt.onnxio.model_info import read_onnx
from trtopt.precision.bounds import Bounds, violations
from trtopt.precision.calibration.table import AUTO, table_beside
from trtopt.precision.casting.activations import gelus_between_products
from trtopt.precision.placement import attention
from trtopt.precision.placement.view import View
from trtopt.precision.reference_runs import at_most, compared, open_model
from trtopt.records import Backend, Candidate, EngineArtifact, OnnxArtifact, from_json
from trtopt.records.checking import OutputDifference
from trtopt.records.forms import PLAIN
from trtopt.records.quantisation import QuantizeReport
from trtopt.records.typed_io import TypedTensor, has_int8
from trtopt.rewrite.typed_io.int8 import move_quantisation, quantise_ends
from trtopt.workflows.build.apply_precision import (
    QUANTISED,
    QUANTISED_FILE,
    Precision,
    apply_cast,
    apply_quantisation,
)
from trtopt.workflows.precision.quantize import Request

_COMPARED = 64
"""How many samples a candidate's outputs are compared on."""

AS_GIVEN: Precision = "fp32"


@dataclass(frozen=True)
class Entry:
    """A candidate with its graph, its folder and the engines that have been built of it, by label.

    `plainer` is the one of the same precision that errs less by default, if this is not it. `table` has the
    ranges of a quantised one; `has_half_gelus`: what surrounds its Q/DQ was cast to FP16 where that pays.
    """

    candidate: Candidate
    onnx: OnnxArtifact
    folder: Path
    request: Request | None
    engines: dict[str, EngineArtifact]
    plainer: str | None = None
    table: Path | None = None
    has_half_gelus: bool = False

    @property
    def name(self) -> str:
        """The candidate's."""
        return self.candidate.name

    @property
    def is_quantised(self) -> bool:
        """Whether it has Q/DQ."""
        return self.candidate.precision in QUANTISED

    @property
    def broken(self) -> tuple[str, ...]:
        """The bounds that it misses, as text."""
        return tuple(one.text for one in self.candidate.violations)


class Candidates:
    """Makes them from one model, whose outputs are cached.

    What keeps one from being made is raised as `apply_precision` and `exchange_int8` raise it.
    """

    def __init__(
        self,
        base: OnnxArtifact,
        folder: Path,
        backend: Backend,
        request: Request,
        bounds: Bounds,
        io: tuple[TypedTensor, ...] = (),
    ):
        self._base, self._folder, self._backend = base, folder, backend
        self.io = io
        """The typed tensors; those of INT8 get the scale of what is quantised first, and all take it."""
        self._exchanges_int8 = has_int8(io)
        self._request, self._bounds = request, bounds
        model = model_file.load(Path(base.path))
        model = replace(model, proto=prepare.prepare(model.proto)[0])
        self._specs, self._reference = specs_of(model.proto), open_model(model)
        self._source: SampleSource = (
            open_data(request.calib) if request.calib is not None else seeded_source(model)
        )

    def make(self, precision: Precision) -> Entry:
        """The model in a precision; `fp32` is the unchanged model."""
        folder = self._folder / precision
        folder.mkdir()
        if precision == AS_GIVEN:
            return self._entry(precision, precision, self._base, folder, None)
        if precision == "fp16" or precision == "bf16":  # spelled out for the type checker
            onnx = apply_cast(self._base, precision, self._request.calib, self._backend, folder).onnx
            return self._entry(precision, precision, onnx, folder, None)
        forms = self._request.forms if precision == "int8" else PLAIN
        request = replace(self._request, precision=precision, forms=forms)
        onnx = apply_quantisation(self._base, request, folder=folder).onnx
        made = self._entry(precision, precision, onnx, folder, request)
        return replace(made, table=_table_of(onnx))

    def reduced(self, entry: Entry, left: Sequence[str], number: int) -> Entry:
        """A quantised candidate with some nodes left in float, on the ranges that are there already."""
        assert entry.request is not None
        excluded = (*entry.request.exclude, *map(glob.escape, left))
        return self._varied(entry, f"part{number}", replace(entry.request, exclude=excluded), tuple(left))

    def with_attention(self, entry: Entry) -> Entry | None:
        """An INT8 candidate with attentions' products quantised, too; None if it leaves none in float."""
        assert entry.request is not None
        report = from_json((entry.folder / QUANTISED_FILE).read_bytes(), QuantizeReport)
        left = {one.node for one in report.decisions if one.rule == attention.RULE and one.node != one.op}
        found = attention.find(View(model_file.load(Path(entry.onnx.path)).proto))
        products = [node.name for one in found for node in (one.first, one.second) if node.name in left]
        if not products:
            return None
        included = (*entry.request.include, *map(glob.escape, products))
        wider = self._varied(entry, "attention", replace(entry.request, include=included))
        return replace(wider, plainer=entry.name)

    def with_half_gelus(self, entry: Entry) -> Entry | None:
        """A quantised candidate with the GELUs between its products in FP16; None if it has none."""
        assert entry.request is not None
        graph = model_file.load(Path(entry.onnx.path)).proto.graph
        names, constants = {node.name for node in graph.node}, {item.name for item in graph.initializer}
        if not gelus_between_products(graph.node, names, constants):
            return None
        made = self._varied(replace(entry, has_half_gelus=True), "half", entry.request)
        return replace(made, plainer=entry.name)

    def _varied(self, entry: Entry, what: str, request: Request, left: tuple[str, ...] = ()) -> Entry:
        """Another one by another request, on the ranges that are there already."""
        name = f"{entry.name}.{what}"
        folder = self._folder / name
        folder.mkdir()
        if entry.table is not None and entry.table.is_file() and request.calib is not None:
            request = replace(request, table=entry.table, smoothquant=AUTO)  # it lists what is smoothed
        onnx = quantised = apply_quantisation(self._base, request, name, folder).onnx
        if entry.has_half_gelus:
            onnx = apply_cast(quantised, "fp16", request.calib, self._backend, folder).onnx
            onnx = msgspec.structs.replace(onnx, parent=self._base.sha256)
        made = self._entry(name, entry.candidate.precision, onnx, folder, request, left)
        table, plainer = _table_of(quantised), entry.plainer
        return replace(made, table=table, plainer=plainer, has_half_gelus=entry.has_half_gelus)

    def _entry(
        self,
        name: str,
        precision: str,
        onnx: OnnxArtifact,
        folder: Path,
        request: Request | None,
        left: tuple[str, ...] = (),
    ) -> Entry:
        model = model_file.load(Path(onnx.path))
        if self._exchanges_int8:
            model = quantise_ends(model, self.io)
            moved = move_quantisation(model, self.io)
            self.io = moved.tensors
        differences = () if precision == AS_GIVEN else self._differences(model)
        if self._exchanges_int8:
            onnx = self._saved(moved.model, folder, onnx, name)
        candidate = Candidate(
            name=name,
            precision=precision,
            onnx_sha256=onnx.sha256,
            differences=differences,
            violations=violations(differences, self._bounds) if differences else (),
            left=left,
        )
        return Entry(candidate, onnx, folder, request, {})

    def _saved(self, model: ModelFile, folder: Path, before: OnnxArtifact, name: str) -> OnnxArtifact:
        """A candidate that exchanges INT8, in place of the one that it was made of."""
        source = Path(before.path)
        place = folder / (source.name if source.parent == folder else f"{source.stem}.{name}{source.suffix}")
        with scratch_beside(place) as scratch:
            model_file.save(model, scratch / place.name)
            for file in scratch.iterdir():
                file.replace(folder / file.name)
        return msgspec.structs.replace(read_onnx(place), parent=self._base.sha256)

    def _differences(self, model: ModelFile) -> tuple[OutputDifference, ...]:
        feeds = at_most(self._source.batches(self._specs, 8), _COMPARED, self._specs)
        pairs = ((feed, self._reference.run(feed)) for feed in feeds)
        return compared(pairs, model)


def _table_of(quantised: OnnxArtifact) -> Path:
    """Where quantising left its ranges, if it had any."""
    return table_beside(Path(quantised.path))


def moved(entry: Entry, labels: Sequence[str], folder: Path) -> tuple[OnnxArtifact, list[EngineArtifact]]:
    """Bring a candidate's graph, its traces and the engines of these labels into the build folder.

    If another candidate has left a trace there, the candidate's name goes into the file's name.
    """
    engines = [entry.engines[label] for label in labels]
    kept = {name for one in engines for name in one.files}
    built = {name for one in entry.engines.values() for name in one.files}
    for file in sorted(entry.folder.iterdir()):
        if file.name in built - kept:
            continue
        place = folder / file.name
        if place.exists():
            place = folder / f"{file.stem}.{entry.name}{file.suffix}"
        file.rename(place)
    onnx = msgspec.structs.replace(entry.onnx, path=Path(entry.onnx.path).name)
    return onnx, engines
