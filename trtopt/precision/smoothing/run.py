"""Smoothing a model before it is quantised: by what its channels take on, or by a calibration table."""

from __future__ import annotations

from collections.abc import Mapping

from trtopt.data import SampleSource
from trtopt.errors import ArtifactError
from trtopt.onnxio.model_file import ModelFile
from trtopt.precision.calibration.collect import PerChannel
from trtopt.precision.observe import observe
from trtopt.precision.placement.place import place
from trtopt.precision.placement.plan import PlacementOptions
from trtopt.precision.placement.view import View
from trtopt.precision.smoothing.factors import Factors, by_alpha, by_error
from trtopt.precision.smoothing.places import find
from trtopt.precision.smoothing.write import by_row, smooth


def smooth_by_data(
    model: ModelFile, source: SampleSource, options: PlacementOptions, alpha: float | None
) -> tuple[dict[str, Factors], list[str]]:
    """Smooth in place what is to be quantised; the factors by tensor, and what to say.

    With `alpha`: SmoothQuant behind normalisations. Without: behind these and GELU or SiLU, wherever that is
    expected to halve the error of the layers behind at least.

    Raises:
        DataError, ModelError: see `observe`.
    """
    view = View(model.proto)
    places, declined = find(view)
    quantised = {weight.node for weight in place(view, options).weights}
    places = [
        item
        for item in places
        if (item.is_norm or alpha is None) and quantised & {reader.node.name for reader in item.readers}
    ]
    seen = PerChannel()
    if places:
        observe(model, source, [item.tensor for item in places], seen.visit)
    factors: dict[str, Factors] = {}
    left: dict[str, float] = {}
    for item in places:
        weights = [by_row(model, reader) for reader in item.readers]
        if alpha is not None:
            factors[item.tensor] = by_alpha(seen.values(item.tensor), weights, alpha)
        elif found := by_error(seen.values(item.tensor), weights):
            factors[item.tensor], left[item.tensor] = found
    smooth(model, [item for item in places if item.tensor in factors], factors)
    return factors, _notes_on(factors, left) if alpha is None else _notes_on_alpha(factors, declined, alpha)


def smooth_by_table(model: ModelFile, factors: Mapping[str, Factors], table: str) -> None:
    """Smooth in place by a table's factors.

    Raises:
        ArtifactError: the model has no such place.
    """
    places = {item.tensor: item for item in find(View(model.proto))[0]}
    for tensor, row in factors.items():
        if tensor not in places or not all(0 <= channel < places[tensor].readers[0].k for channel in row):
            raise ArtifactError(
                f"{table}: channels of {tensor!r} are divided in it, which this model cannot do",
                "the table was made for another model: calibrate again with --data DATA",
            )
    smooth(model, [item for tensor, item in places.items() if tensor in factors], factors)


def _notes_on(factors: Mapping[str, Factors], left: Mapping[str, float]) -> list[str]:
    if not factors:
        return []
    most = max(factors, key=lambda name: max(factors[name].values()))
    return [
        f"outlier channels are divided and their weights multiplied at {len(factors)} tensors, by "
        f"{max(factors[most].values()):.1f} at most, in {most!r}: the error of the layers behind is expected "
        f"to fall to {min(left.values()):.0%} to {max(left.values()):.0%} (--smoothquant off leaves them)"
    ]


def _notes_on_alpha(factors: Mapping[str, Factors], declined: list[str], alpha: float) -> list[str]:
    notes = [f"SmoothQuant left {reason}" for reason in declined]
    if not factors:
        return [*notes, "SmoothQuant found no place where it is exact"]
    return [*notes, f"SmoothQuant with alpha {alpha} at {len(factors)} normalisations"]
