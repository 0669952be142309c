"""What a sweep measures: every combination, the shared terms, and contradictions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import msgspec

from trtopt.builder.shapes import by_own_names
from trtopt.builder_settings import SWEPT
from trtopt.data import open_data
from trtopt.data.source import fingerprint_of
from trtopt.errors import UsageError
from trtopt.measure.analysis.sweep_points import NEIGHBOURS, with_neighbours
from trtopt.measure.contracts import DEFAULT, changed, contract_named
from trtopt.recipe import GRAPH_PRECISIONS, MAX_AXIS, Recipe, batch_sizes, io_request, measured_on
from trtopt.records import SweepSetting, SweepTerms
from trtopt.requests.sweep import SweepRequest
from trtopt.workflows.build.graph import QUANTISED, request_for, with_typed_io
from trtopt.workflows.race import with_streams
from trtopt.workflows.sweep.builds import Swept
from trtopt.workflows.sweep.folder import is_sweep
from trtopt.workflows.workbench import make_plans

DEFAULT_BATCHES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class SweepPlan:
    """What is to be measured: every combination, and on each curve of batch sizes more if it is refined."""

    precisions: tuple[str | None, ...]
    axes: tuple[dict[str, int], ...]
    streams: tuple[int, ...]
    batches: tuple[int, ...]
    is_adaptive: bool

    @property
    def engines(self) -> int:
        """How many are known before anything is measured; streams share them."""
        return len(self.precisions) * len(self.axes) * len(self.batches)

    def curves(self) -> Iterator[SweepSetting]:
        """The first setting of each curve; streams last, for they share engines."""
        for precision, axes, streams in product(self.precisions, self.axes, self.streams):
            yield SweepSetting(precision=precision, batch=self.batches[0], streams=streams, axes=axes)

    def settings(self) -> Iterator[SweepSetting]:
        """All that is known before anything is measured."""
        for curve in self.curves():
            yield from (msgspec.structs.replace(curve, batch=batch) for batch in self.batches)


def plan_of(swept: Swept, request: SweepRequest) -> SweepPlan:
    """All that is to be measured."""
    recipe = swept.recipe
    fixed = swept.onnx.fixed_batch
    axes, streams = request.axes or {}, batch_sizes(request.streams) or ()
    batches = (
        batch_sizes(request.batch) or recipe.batch or ((fixed,) if fixed is not None else DEFAULT_BATCHES)
    )
    for name, sizes in {"batch": batches, "streams": streams, **axes}.items():
        if not sizes or not all(1 <= size <= MAX_AXIS for size in sizes):
            raise UsageError(
                f"{name} = {list(sizes)}: sizes are whole numbers from 1 to {MAX_AXIS}", "give at least one"
            )
    for kind in request.neighbours:
        if kind not in NEIGHBOURS:
            raise UsageError(f"--neighbours {kind}: no such kind", f"choose among {', '.join(NEIGHBOURS)}")
    if request.adaptive and len(set(batches)) < 2:
        raise UsageError(
            f"--adaptive refines between batch sizes, and there is only {batches[0]}",
            "give the smallest and the largest with --batch, or omit --adaptive",
        )
    lengths = [
        [(name, size) for size in with_neighbours(sizes, request.neighbours)]
        for name, sizes in by_own_names(swept.onnx.inputs, axes).items()
    ]
    return SweepPlan(
        precisions=tuple(dict.fromkeys(request.precisions or (recipe.precision,))),
        axes=tuple(dict(chosen) for chosen in product(*lengths)),
        streams=tuple(sorted(set(streams))),
        batches=with_neighbours(batches, request.neighbours),
        is_adaptive=request.adaptive,
    )


def terms_of(swept: Swept, request: SweepRequest) -> SweepTerms:
    """What all points share."""
    if "streams" in (request.terms or {}):
        raise UsageError("terms: streams are swept", "give them as `streams`, not among the terms")
    if not 0 < request.duration <= 86400 or not 0 <= request.warmup <= 3600:
        raise UsageError(
            f"--duration {request.duration:g} --warmup {request.warmup:g}: out of range",
            "give a duration above 0 s, at most a day, and a warm-up of 0 s to 3600 s",
        )
    if request.data is not None:
        open_data(request.data)
    recipe = swept.recipe
    data = measured_on(recipe, request.data, lambda text: None)
    kept = {
        "shapes": recipe.shapes,
        **({"axes": recipe.axes} if recipe.axes else {}),  # sweeps of earlier versions have none
        **({} if io_request(recipe).is_empty else {"io": io_request(recipe)}),
        "rewrite": recipe.rewrite,
        **({"add_rule": recipe.add_rule} if recipe.add_rule else {}),
        **({"forms": recipe.forms} if recipe.forms else {}),
        **({"exclude": recipe.exclude} if recipe.exclude else {}),
        "calib": recipe.calib and fingerprint_of(recipe.calib),
        **{setting.name: getattr(recipe, setting.name) for setting in SWEPT},
        "plugins": [fingerprint_of(path) for path in recipe.plugins],  # what they are, not where
    }
    return SweepTerms(
        model_sha256=swept.onnx.sha256,
        backend=swept.builder.backend,
        device=swept.builder.device,
        contract=changed(contract_named(request.contract or DEFAULT), request.terms or {}),
        recipe=msgspec.json.encode(kept, order="deterministic").decode(),
        warmup_s=request.warmup,
        duration_s=request.duration,
        data=None if data is None else fingerprint_of(data),
    )


def check(plan: SweepPlan, swept: Swept, terms: SweepTerms) -> None:
    """Validate all options before anything is built."""
    recipe, backend = swept.recipe, swept.builder.backend
    _check_recipe(recipe)
    for precision in plan.precisions:
        if precision is not None and precision not in GRAPH_PRECISIONS:
            remedy = f"choose among {', '.join(GRAPH_PRECISIONS)}; the sweep itself finds the best"
            raise UsageError(f"--precision {precision}: cannot be swept", remedy)
        if precision in QUANTISED:
            request_for(swept.onnx, str(precision), recipe.calib, backend)
    has_begun = is_sweep(swept.folder)  # goes on with the data that it has, needed or not
    is_needless = terms.data is None and all(swept.calib_for(one) is None for one in plan.precisions)
    if recipe.calib is not None and is_needless and not has_begun:
        raise UsageError(
            "--data: nothing here needs data", "add --precision fp16, bf16, int8 or fp8, or omit it"
        )
    for streams in plan.streams:
        with_streams(terms.contract, streams)
    for setting in plan.settings():
        recipe = swept.recipe_for(setting)
        make_plans(with_typed_io(swept.onnx, io_request(recipe), backend), recipe, backend)


def _check_recipe(recipe: Recipe) -> None:
    if recipe.dynamic:
        raise UsageError(
            "--dynamic: a sweep builds an engine for each batch size", "omit it, or use `trtopt build`"
        )
    if recipe.compute_capability:
        raise UsageError("--compute-capability: engines for other GPUs cannot be measured here", "omit it")
    if recipe.bounds:
        raise UsageError("bounds: a sweep does not evaluate accuracy", "see `trtopt check`")
