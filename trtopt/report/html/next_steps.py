"""The most worthwhile next steps: each rests on measured figures, and none is refused by the backend."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import PurePath

from trtopt.measure.analysis.findings import (
    CLOCKS_BELOW,
    COPY_BOUND,
    ENQUEUE_BOUND,
    STREAMS_GAIN_NOTHING,
    UNSTABLE,
    hints_of,
    is_on_host,
    trust_of,
)
from trtopt.measure.statistics.summaries import summarise
from trtopt.records import BenchPoint, Collected, EngineProfile, Trust
from trtopt.report.html.deployment import Deployment, model_file, ran_on_stand_in, rate_of
from trtopt.report.html.page import Step
from trtopt.report.kernels import hides_its_time
from trtopt.report.names import nodes_text

_SHOWN = 3
_WORTH = 0.03
"""A share of the time below which a step is not worth naming."""

_RISING = 1.1
"""How much more throughput the largest batch size has than the one before, where a larger one is worth it."""

_CPU = "onnxruntime"

_Candidate = tuple[float, Step]
"""A step, and about the share of the time that it may save; above 1, other figures depend on it."""

_OWN_OPTIONS = ("-o", "--output", "--batch", "--json")
"""Those of a build that the next one must not repeat; each has a value."""


def next_steps(collected: Collected, deployed: Deployment | None, engine: EngineProfile | None) -> list[Step]:
    """At most three, by worth. `engine` is the profile that goes with the deployed point."""
    candidates = [
        *_measuring(collected, deployed),
        *_of_hints(collected, deployed),
        *(_of_batches(collected, deployed) if deployed is not None else ()),
        *(_of_layers(collected, engine) if engine is not None else ()),
    ]
    candidates.sort(key=lambda one: -one[0])
    return [step for _, step in candidates[:_SHOWN]]


def _folder(collected: Collected) -> str:
    return shlex.quote(collected.folder)


def source_of(collected: Collected) -> str:
    """What commands measure: the build folder, or the model where there is none."""
    return model_of(collected) if collected.manifest is None else _folder(collected)


def model_of(collected: Collected) -> str:
    """The user's model for a shell; a placeholder where no command names it."""
    return shlex.quote(model_file(collected) or "MODEL.onnx")


def into(collected: Collected, file: str) -> str:
    """The flag that writes a file of that name into the folder."""
    return f"--json {shlex.quote(f'{collected.folder}/{file}')}"


def fixes_batch(collected: Collected) -> bool:
    """Whether the folder's model has a fixed batch size: it builds for no other."""
    return collected.manifest is not None and collected.manifest.onnx.fixed_batch is not None


def _beside(collected: Collected, what: str) -> str:
    """A folder next to this one, called after it, for a shell."""
    folder = PurePath(collected.folder)
    parent = folder.parent if folder.name == collected.name else folder / ".."
    return shlex.quote(str(parent / f"{collected.name}-{what}"))


def _is_cpu(collected: Collected) -> bool:
    """Whether what is measured here runs on ONNX Runtime."""
    names = [one.environment.backend.name for one in collected.reports.values() if one.environment]
    if collected.manifest is not None:
        names.append(collected.manifest.engines[0].plan.backend.name)
    return _CPU in names


# ── to have figures, and to believe them ────────────────────────────────────────────────────────────────


def _measuring(collected: Collected, deployed: Deployment | None) -> Iterator[_Candidate]:
    source = source_of(collected)
    if deployed is None:
        bench = f"trtopt bench {source} {into(collected, 'result.json')}"
        yield (9, Step("Measure it", "There is no result file of `trtopt bench` here.", bench))
    elif ran_on_stand_in(collected):
        built = collected.manifest.engines[0].plan.backend.name if collected.manifest is not None else ""
        why = f"The engines are built for {built}; the figures here are the model's on the CPU."
        bench = f"trtopt bench {source} {into(collected, deployed.file)}"
        yield (8, Step("Measure the engines on a machine with a GPU", why, bench))
    elif distrusted := [
        point
        for point in deployed.points
        if trust_of(point, on_host=is_on_host(deployed.report)) is Trust.NONE
    ]:
        sizes = ", ".join(str(point.batch) for point in distrusted)
        why = f"The figures of batch {sizes} are not trustworthy."
        bench = f"trtopt bench {source} {_in_place_of(collected, distrusted[0])}"
        yield (7, Step("Measure again when nothing disturbs the machine", why, bench))
    if deployed is not None and not collected.profiles:
        command = f"trtopt profile {source} -o {_folder(collected)}"
        yield (2, Step("Profile it", "Where the time goes is unknown.", command))


def _in_place_of(collected: Collected, point: BenchPoint) -> str:
    """The flags that measure on a point's terms into its file: in another one, it would stay on the page."""
    file = next(
        file for file, report in collected.results.items() if any(one is point for one in report.points)
    )
    return f"--contract {shlex.quote(point.latency.contract.name)} {into(collected, file)}"


# ── from the measurement ────────────────────────────────────────────────────────────────────────────────


def _of_hints(collected: Collected, deployed: Deployment | None) -> Iterator[_Candidate]:
    """Hints about the deployed point."""
    if deployed is None:
        return
    on_host = is_on_host(deployed.report)
    source = source_of(collected)
    for hint in hints_of(deployed.point, on_host=on_host):
        text = hint.text.partition(": ")[2]
        why = f"At batch {deployed.point.batch}, {text}."
        if hint.short == ENQUEUE_BOUND and _may_graph(deployed.point):
            command = f"trtopt bench {source} --graph {into(collected, 'graph.json')}"
            yield (_host_share(deployed.point), Step("Launch it as a CUDA graph", why, command))
        elif hint.short == COPY_BOUND and deployed.point.latency.contract.queue_ahead == 0:
            command = f"trtopt bench {source} --contract serving {into(collected, 'serving.json')}"
            yield (0.5, Step("Overlap copies with computing", why, command))
        elif hint.short == UNSTABLE:
            yield (1.5, Step(f"{hint.remedy[0].upper()}{hint.remedy[1:]}", why))
        elif hint.short in (STREAMS_GAIN_NOTHING, CLOCKS_BELOW):
            yield (0.1, Step(f"{hint.remedy[0].upper()}{hint.remedy[1:]}", why))


def _may_graph(point: BenchPoint) -> bool:
    """Whether a CUDA graph is neither in use nor known to be impossible for this engine."""
    refused = any("without a CUDA graph" in note for note in point.latency.notes)
    return not refused and not point.latency.contract.graph


def _host_share(point: BenchPoint) -> float:
    """The share of a query's time in which the GPU may have waited for the host."""
    samples, stages = point.latency.samples, point.latency.stages
    if not stages.gpu_compute_ms:
        return _WORTH
    latency, compute = summarise(samples.latency_ms).median, summarise(stages.gpu_compute_ms).median
    return max(1 - compute / latency, _WORTH) if latency else _WORTH


def _of_batches(collected: Collected, deployed: Deployment) -> Iterator[_Candidate]:
    """A larger batch size where throughput still rises, several where there is one."""
    largest = deployed.points[-1].batch
    if fixes_batch(collected):
        why = f"The model fixes batch {largest}: how throughput grows is unknown."
        yield (0.3, Step("Open the batch axis", why, _opening(collected)))
        return
    if len(deployed.points) == 1:
        batches, what = "1,8,32", "Measure several batch sizes"
        worth, why = 0.3, f"Only batch {largest} is measured: how throughput grows is unknown."
    else:
        before, last = deployed.points[-2:]
        gain = (rate_of(last) or 0.0) / (rate_of(before) or 1.0)
        if gain < _RISING:
            return
        batches = f"{largest},{largest * 2},{largest * 4}"
        what, worth = "Try larger batch sizes", min(gain - 1, 1.0)
        why = f"Throughput still rises: {gain:.2f} times from batch {before.batch} to {largest}."
    command = f"trtopt build {_build_words(collected)} -o {_beside(collected, 'batches')} --batch {batches}"
    yield (worth, Step(what, why, command))


def _build_words(collected: Collected) -> str:
    """The model and the options of the folder's own build, but for its output and its batch sizes."""
    argv = collected.manifest.argv if collected.manifest is not None else ()
    kept: list[str] = []
    words = iter(argv[2:] if argv[1:2] == ("build",) and "--locked" not in argv else ())
    for word in words:
        if word in _OWN_OPTIONS:
            next(words, None)
        elif word != "--force" and not word.startswith(tuple(f"{name}=" for name in _OWN_OPTIONS)):
            kept.append(word)
    if kept:
        return shlex.join(kept)
    is_on_host = _is_cpu(collected) and not ran_on_stand_in(collected)
    return model_of(collected) + (" --backend onnxruntime" if is_on_host else "")


def _opening(collected: Collected) -> str:
    """The command that writes the model with a dynamic batch axis."""
    name = PurePath(model_file(collected) or "MODEL.onnx").stem
    return f"trtopt rewrite {model_of(collected)} --dynamic-batch -o {shlex.quote(f'{name}-dynamic.onnx')}"


# ── from the profile ────────────────────────────────────────────────────────────────────────────────────


def _of_layers(collected: Collected, engine: EngineProfile) -> Iterator[_Candidate]:
    if not engine.sum_ms:
        return
    at = f"At batch {engine.batch}, "
    on_gpu = not _is_cpu(collected)
    reformats = [layer for layer in engine.layers if layer.is_reformat and layer.ms]
    share = _share(engine, sum(layer.ms or 0.0 for layer in reformats))
    if share >= _WORTH and on_gpu:
        why = f"{at}{len(reformats)} reformats take {share:.0%} of the time."
        yield (share, Step("Avoid conversions of layout or type", why, f"trtopt lint {model_of(collected)}"))
    if engine.unfused and on_gpu:
        ms = {name: one.ms for one in engine.unfused for name in one.nodes[:1]}
        share = min(_share(engine, sum(ms.values())), 1.0)
        first = max(engine.unfused, key=lambda one: one.ms)
        why = f"{at}{len(engine.unfused)} candidates did not fuse, first {first.fusion}: {first.detail}."
        if share >= _WORTH:
            yield (share / 2, Step("Make the graph fuse", why, f"trtopt lint {model_of(collected)}"))
    wider = [one for one in engine.receipt.fallbacks if one.share_of_time]
    share = sum(one.share_of_time or 0.0 for one in wider)
    if share >= _WORTH:
        why = f"{at}{len(wider)} layers with {share:.0%} of the time ran wider than requested."
        yield (share / 2, Step("See which layers ran in a wider type: Precision receipt", why))
    full = (engine.receipt.time_ran or {}).get("float32", 0.0)
    selected = collected.manifest is not None and collected.manifest.verdict is not None
    if full >= 0.5 and on_gpu and not selected:
        why = f"{at}{full:.0%} of the time is spent in FP32."
        command = f"trtopt build {model_of(collected)} -o {_beside(collected, 'fp16')} --precision fp16"
        yield (full / 2, Step("Build it in FP16", why, command))
    yield from _inside(collected, engine, at) if hides_its_time(engine) and on_gpu else _furthest(engine, at)


def _share(engine: EngineProfile, ms: float) -> float:
    return ms / engine.sum_ms


def _inside(collected: Collected, engine: EngineProfile, at: str) -> Iterator[_Candidate]:
    """What takes the most time inside layers that hide their nodes; that it is unknown, without kernels."""
    hidden = engine.coverage.time_opaque
    if engine.kernels is None:
        why = f"{at}{hidden:.0%} of the time lies in layers that hide their nodes."
        command = f"trtopt profile {source_of(collected)} --kernels -o {_folder(collected)}"
        yield (hidden / 4, Step("Record the kernels", why, command))
        return
    first = next((group for group in engine.kernels.by_block if group.confidence != "unknown"), None)
    if first is not None:
        rate = f", at {first.peak_share:.0%} of the device's peak" if first.peak_share is not None else ""
        why = f"{at}its kernels take {first.ms:.4f} ms, {first.share:.0%} of all kernels' time{rate}."
        yield (first.share / 4, Step(f"Look at {first.key}", why))


def _furthest(engine: EngineProfile, at: str) -> Iterator[_Candidate]:
    """The layer with the most time above its floor, or else the slowest."""
    layers = {layer.name: layer for layer in engine.layers}
    named = [layers[name] for name in engine.furthest if name in layers]
    if named:
        layer = named[0]
        floor = layer.cost.floor_ms if layer.cost is not None and not layer.is_reformat else None
        above = (layer.ms or 0.0) - (floor or 0.0)
        why = f"{at}it is {above:.4f} ms above its floor: {_share(engine, above):.0%} of the time."
        yield (_share(engine, above) / 4, Step(f"Look at {nodes_text(layer)}", why))
        return
    layer = max(engine.layers, key=lambda one: one.ms or 0.0)
    share = _share(engine, layer.ms or 0.0)
    why = f"{at}it takes {layer.ms or 0.0:.4f} ms, {share:.0%} of the time, the most of all layers."
    yield (share / 4, Step(f"Look at {nodes_text(layer)}", why))
