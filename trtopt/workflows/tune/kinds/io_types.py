"""Types and formats of inputs and outputs, where the engine converts or copies them."""

from __future__ import annotations

from collections.abc import Iterator

from trtopt.inspect.graph import QUANTISE
from trtopt.inspect.join import bits
from trtopt.records import ProfiledLayer, TensorSpec
from trtopt.records.tensors import IMAGE_RANK, TYPES, VECTORS
from trtopt.targets import ONNXRUNTIME, target_of
from trtopt.workflows.tune.kinds.kind import Change, Kind, Situation
from trtopt.workflows.tune.prediction import Prior

_SHORT = {name: short for short, name in TYPES.items()}
_WORDS = {
    "Two wide channel": "chw2",
    "Four wide channel": "chw4",
    "Sixteen wide channel": "chw16",
    "Thirty-two wide channel": "chw32",
    "channel % 8 == 0": "hwc8",
    "channel % 16 == 0": "hwc16",
    "Channel major": "nhwc",
}
"""How an inspector describes the formats, the first that fits."""
_REMOVED = 0.8
"""How much of a conversion is saved where its layer is no longer needed; moving what is left takes time."""
_LEAST_SHARE = 0.002
"""Of the time; less is lost in noise."""


def _changes(situation: Situation) -> Iterator[Change]:
    evidence, recipe = situation.evidence, situation.recipe
    exchanged = [(one, True) for one in situation.inputs] + [(one, False) for one in situation.outputs]
    for spec, is_input in exchanged:
        if spec.dtype not in ("float32", "float16") or spec.name in recipe.io:
            continue
        reformats = [layer for layer in evidence.layers if layer.is_reformat]
        converting = [layer for layer in reformats if _touches(layer, spec, is_input)]
        converted = evidence.share_of(converting)
        copied = situation.copied.get(spec.name, 0.0)
        if max(converted, copied) < _LEAST_SHARE:
            continue
        for dtype, layout in _formats(situation, spec, converting, is_input):
            narrower = 1 - bits(dtype) / bits(spec.dtype)
            gain = converted * _REMOVED + copied * narrower
            text = _SHORT[dtype] + (f":{layout}" if layout else "")
            named = any(layout in (_layout(layer, is_input), "") for layer in converting)
            yield Change(
                "io-types",
                f"io {spec.name}={text}",
                recipe={"io": {**recipe.io, spec.name: text}, **_precision_for(situation, dtype)},
                prior=Prior(gain, 0.5 if named else 0.25, loss=0.03, risk=0.2),
                evidence=f"converting {spec.name} takes {converted:.1%} of the layers' time, "
                f"copying {copied:.1%} of a query",
            )


def _touches(layer: ProfiledLayer, spec: TensorSpec, is_input: bool) -> bool:
    return any(tensor.name == spec.name for tensor in (layer.inputs if is_input else layer.outputs))


def _layout(layer: ProfiledLayer, is_input: bool) -> str:
    """The layout on the engine's side of a conversion; empty where the inspector does not say."""
    inner = layer.outputs if is_input else layer.inputs
    text = inner[0].format if inner else ""
    return next((layout for words, layout in _WORDS.items() if words in text), "")


def _formats(
    situation: Situation, spec: TensorSpec, converting: list[ProfiledLayer], is_input: bool
) -> Iterator[tuple[str, str]]:
    """Types and layouts to try: what the conversion makes, else the types of the graph, with each layout."""
    target = target_of(situation.backend)
    can_vectorise = situation.backend.name != ONNXRUNTIME and len(spec.shape) == IMAGE_RANK
    dtypes = ["float16"]
    if is_input and _is_quantised_first(situation, spec.name) and _is_kept_quantised(situation):
        dtypes.insert(0, "int8")
    layouts = {_layout(layer, is_input) for layer in converting}
    for dtype in dtypes:
        if dtype not in target.io_formats:
            continue
        if dtype != spec.dtype:
            yield dtype, ""
        if not can_vectorise:
            continue
        known = target.io_formats[dtype]
        if situation.data is None:  # samples keep their layout
            known = (*known, "nhwc")
        wanted = layouts - {""} or set(known) & VECTORS.keys()
        yield from ((dtype, layout) for layout in known if layout in wanted)


def _is_quantised_first(situation: Situation, name: str) -> bool:
    readers = situation.evidence.graph.consumers.get(name, ())
    return bool(readers) and all(reader.op == QUANTISE for reader in readers)


def _is_kept_quantised(situation: Situation) -> bool:
    """Whether the same Q/DQ come out if the graph is made again without selecting among precisions."""
    return situation.selected in (None, "int8")


def _precision_for(situation: Situation, dtype: str) -> dict[str, object]:
    """INT8 values are exchanged with one graph: there is no float one to select from."""
    if dtype != "int8" or situation.selected is None:
        return {}
    return {"precision": situation.selected, "verdict": False}


KIND = Kind("io-types", Prior(0.02, 0.3), 1.2, _changes)
