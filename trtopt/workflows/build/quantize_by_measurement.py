"""Quantising where it pays: a graph for each batch size, as it measured best on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trtopt.device.backends import choose_for_building, open_builder, places_to_build
from trtopt.errors import UsageError
from trtopt.executors.local import LocalExecutor
from trtopt.files.atomic import scratch_folder
from trtopt.files.outputs import check_output, write_output
from trtopt.onnxio import model_file
from trtopt.onnxio.model_file import MODEL
from trtopt.onnxio.model_info import read_onnx
from trtopt.precision.bounds import Bounds
from trtopt.precision.calibrate import TABLE, table_beside
from trtopt.recipe import make_recipe
from trtopt.records import BatchVerdict, OnnxArtifact, PrecisionVerdict
from trtopt.requests.models import QuantizeOptions
from trtopt.targets import target_of
from trtopt.workflows.build.build import obstacle, terms_for
from trtopt.workflows.build.graph import keep_model
from trtopt.workflows.build.precision_selection import select_precision
from trtopt.workflows.listener import SILENT, Listener
from trtopt.workflows.workbench import Workbench, make_plans


@dataclass(frozen=True)
class WherePaying:
    """The verdict, and the files that were written with the batch sizes that each is for."""

    verdict: PrecisionVerdict
    written: dict[Path, tuple[int, ...]]


def quantize_where_it_pays(
    model: str | Path,
    out: str | Path,
    request: QuantizeOptions,
    *,
    batch: Sequence[int] | None = None,
    profile: str | None = None,
    backend: str = "auto",
    listener: Listener = SILENT,
) -> WherePaying:
    """Quantise `model`, measure it against FP16 at every batch size, and write the graphs that did best.

    `out` is written if one graph did best everywhere; otherwise each has its first batch size in its name,
    as in `out.batch8.onnx`. Where quantising does not pay, that is the FP16 graph.

    Args:
        model: the float ONNX file.
        out: where to write.
        request: the quantisation options; no `target` is that of the installed TensorRT.
        batch: the batch sizes [default: the recipe's].
        profile: a recipe to build with, by name or file.
        backend: what to build and run with.
        listener: receives progress and notes.
    """
    source, target = Path(model), Path(out)
    recipe = make_recipe(profile, {"batch": batch, "precision": request.precision, "backend": backend})
    onnx = read_onnx(source)
    builder = open_builder(choose_for_building(recipe.backend).name)
    here = target_of(builder.backend).name
    if request.target not in (None, here):
        raise UsageError(
            f"--target {request.target}: --verdict measures with {builder.backend}, which reads {here}",
            "omit --target, or measure where that TensorRT is installed",
        )
    if problem := obstacle(onnx, recipe, builder.backend):
        raise UsageError(
            f"--verdict: nothing can be measured here: {problem}",
            "run it on the machine with the GPU, or omit --verdict",
        )
    for place in (target, *(_of_batch(target, size) for size in recipe.batch or ())):
        check_output(place, MODEL)
        check_output(table_beside(place), TABLE)
    with scratch_folder() as folder:
        kept = keep_model(onnx, source, folder, recipe, builder.backend, listener, request.io_request)
        plans = make_plans(kept.onnx, recipe, builder.backend)
        terms = terms_for(
            replace(request, target=here, io=None, normalize=None, preprocess=None),
            Bounds(),
            builder.device.name,
        )
        workbench = Workbench(
            builder=builder,
            executor=LocalExecutor(places_to_build(builder.backend.name, recipe.jobs)),
            listener=listener,
            limit_s=recipe.build_timeout,
        ).with_cache_in(folder)
        found = select_precision(kept.onnx, plans, folder, workbench, terms, kept.io)
        for tensor in found.io:
            listener.note(str(tensor))
        assert found.verdict is not None
        written = _write(found.graphs, found.verdict, folder, target)
    return WherePaying(found.verdict, written)


def _write(
    graphs: Sequence[OnnxArtifact], verdict: PrecisionVerdict, folder: Path, target: Path
) -> dict[Path, tuple[int, ...]]:
    """Each graph, with its calibration table, and the batch sizes that it is for."""
    hashes = {one.name: one.onnx_sha256 for one in verdict.candidates}
    written: dict[Path, tuple[int, ...]] = {}
    for graph in graphs:
        own: list[BatchVerdict] = [one for one in verdict.batches if hashes[one.chosen] == graph.sha256]
        sizes = tuple(one.batch for one in own)
        place = target if len(graphs) == 1 else _of_batch(target, sizes[0])
        source = folder / graph.path
        model_file.save(model_file.load(source), place)
        if (table := table_beside(source)).is_file():
            write_output(table_beside(place), table.read_bytes(), TABLE)
        written[place] = sizes
    return written


def _of_batch(target: Path, size: int) -> Path:
    """Where the graph of a batch size goes, if there are several."""
    return target.with_name(f"{target.stem}.batch{size}{target.suffix}")
