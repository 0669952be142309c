"""The commands that create what a folder lacks, and the most worthwhile of them: none is refused there."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
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
from trtopt.records import BenchPoint, Collected, EngineProfile, Trust
from trtopt.report.html.answer import Deployment, model_file, ran_on_stand_in, rate_of
from trtopt.report.html.page import Step
from trtopt.report.kernels import hides_its_time

_SHOWN = 3
_WORTH = 0.03
"""A share of the time below which a step is not worth naming."""

_RISING = 1.1
"""How much more throughput the largest batch size has than the one before, where a larger one is worth it."""

_CPU = "onnxruntime"
_OWN_OPTIONS = ("-o", "--output", "--batch", "--json")
"""Those of a build that the next one must not repeat; each has a value."""

_OF_HINTS = {
    UNSTABLE: (1.5, ""),
    ENQUEUE_BOUND: (0.5, "--graph"),
    COPY_BOUND: (0.5, "--contract serving"),
    STREAMS_GAIN_NOTHING: (0.1, ""),
    CLOCKS_BELOW: (0.1, ""),
}
"""What heeding each is worth, and the options of `bench` that do it."""

_Candidate = tuple[float, Step]
"""A step, and about the share of the time that it may save; above 1, other figures depend on it."""


@dataclass(frozen=True)
class Commands:
    """Commands for a folder, as a shell takes them."""

    collected: Collected

    @property
    def folder(self) -> str:
        """The folder as the user named it."""
        return shlex.quote(self.collected.folder)

    @property
    def model(self) -> str:
        """The user's model; a placeholder where no command names it."""
        return shlex.quote(model_file(self.collected) or "MODEL.onnx")

    @property
    def source(self) -> str:
        """What is measured: the build folder, or the model where there is none."""
        return self.model if self.collected.manifest is None else self.folder

    @property
    def has_fixed_batch(self) -> bool:
        """Whether the folder's model builds for no other batch size."""
        manifest = self.collected.manifest
        return manifest is not None and manifest.onnx.fixed_batch is not None

    @property
    def is_on_cpu(self) -> bool:
        """Whether what is measured here runs on ONNX Runtime."""
        reports = self.collected.reports.values()
        names = [one.environment.backend.name for one in reports if one.environment]
        if self.collected.manifest is not None:
            names.append(self.collected.manifest.engines[0].plan.backend.name)
        return _CPU in names

    def into(self, file: str) -> str:
        """The option that writes a file of that name into the folder."""
        return f"--json {shlex.quote(f'{self.collected.folder}/{file}')}"

    def bench(self, file: str = "result.json", options: str = "") -> str:
        """A measurement into a file of the folder."""
        return " ".join(filter(None, ("trtopt bench", self.source, options, self.into(file))))

    def profile(self, *options: str) -> str:
        """A profile into the folder."""
        return " ".join(filter(None, ("trtopt profile", self.source, *options, "-o", self.folder)))

    def beside(self, what: str) -> str:
        """A folder next to this one, called after it."""
        folder = PurePath(self.collected.folder)
        parent = folder.parent if folder.name == self.collected.name else folder / ".."
        return shlex.quote(str(parent / f"{self.collected.name}-{what}"))

    def build_of(self, batches: str) -> str:
        """The folder's own build for other batch sizes."""
        argv = self.collected.manifest.argv if self.collected.manifest is not None else ()
        kept: list[str] = []
        words = iter(argv[2:] if argv[1:2] == ("build",) and "--locked" not in argv else ())
        for word in words:
            if word in _OWN_OPTIONS:
                next(words, None)
            elif word != "--force" and not word.startswith(tuple(f"{name}=" for name in _OWN_OPTIONS)):
                kept.append(word)
        is_on_host = self.is_on_cpu and not ran_on_stand_in(self.collected)
        own = shlex.join(kept) or self.model + (" --backend onnxruntime" if is_on_host else "")
        return f"trtopt build {own} -o {self.beside('batches')} --batch {batches}"


def next_steps(collected: Collected, deployed: Deployment | None, engine: EngineProfile | None) -> list[Step]:
    """At most three, by worth. `engine` is the profile that goes with the deployed point."""
    commands = Commands(collected)
    candidates = [*_measuring(commands, deployed)]
    if deployed is not None:
        candidates += [*_of_hints(commands, deployed), _of_batches(commands, deployed)]
    if engine is not None and engine.sum_ms and not commands.is_on_cpu:
        candidates += _of_layers(commands, engine)
    candidates.sort(key=lambda one: -one[0])
    return [step for worth, step in candidates[:_SHOWN] if worth >= _WORTH]


def _measuring(commands: Commands, deployed: Deployment | None) -> Iterator[_Candidate]:
    """To have figures, and to believe them."""
    collected = commands.collected
    if deployed is None:
        why = "There is no result file of `trtopt bench` here."
        yield (9, Step("Measure it", why, commands.bench()))
        return
    if ran_on_stand_in(collected):
        built = collected.manifest.engines[0].plan.backend.name if collected.manifest is not None else ""
        why = f"The engines are built for {built}; the figures here are the model's on the CPU."
        what = "Measure the engines on a machine with a GPU"
        yield (8, Step(what, why, commands.bench(deployed.file)))
    elif distrusted := [
        point
        for point in deployed.points
        if trust_of(point, on_host=is_on_host(deployed.report)) is Trust.NONE
    ]:
        sizes = ", ".join(str(point.batch) for point in distrusted)
        why = f"The figures of batch {sizes} are not trustworthy."
        # On the same terms into the same file: in another one, they would stay on the page.
        file = next(file for file, report in collected.results.items() if distrusted[0] in report.points)
        again = commands.bench(file, f"--contract {shlex.quote(distrusted[0].latency.contract.name)}")
        yield (7, Step("Measure again when nothing disturbs the machine", why, again))
    if not collected.profiles:
        yield (2, Step("Profile it", "Where the time goes is unknown.", commands.profile()))


def _of_hints(commands: Commands, deployed: Deployment) -> Iterator[_Candidate]:
    """The hints about the deployed point, with their remedies."""
    point = deployed.point
    for hint in hints_of(point, on_host=is_on_host(deployed.report)):
        worth, options = _OF_HINTS[hint.short]
        does_it = bool(options) and options in hint.remedy
        if does_it and hint.short == ENQUEUE_BOUND and _refuses_graph(point):
            continue
        why = f"At batch {point.batch}, {hint.text.partition(': ')[2]}."
        file = f"{options.split()[-1].removeprefix('--')}.json" if does_it else ""
        command = commands.bench(file, options) if does_it else ""
        yield (worth, Step(f"{hint.remedy[0].upper()}{hint.remedy[1:]}", why, command))


def _refuses_graph(point: BenchPoint) -> bool:
    return any("without a CUDA graph" in note for note in point.latency.notes)


def _of_batches(commands: Commands, deployed: Deployment) -> _Candidate:
    """A larger batch size where throughput still rises, several where there is one."""
    largest = deployed.points[-1].batch
    if commands.has_fixed_batch:
        why = f"The model fixes batch {largest}: how throughput grows is unknown."
        name = PurePath(model_file(commands.collected) or "MODEL.onnx").stem
        dynamic = shlex.quote(f"{name}-dynamic.onnx")
        opening = f"trtopt rewrite {commands.model} --dynamic-batch -o {dynamic}"
        return (0.3, Step("Open the batch axis", why, opening))
    if len(deployed.points) == 1:
        why = f"Only batch {largest} is measured: how throughput grows is unknown."
        return (0.3, Step("Measure several batch sizes", why, commands.build_of("1,8,32")))
    before, last = deployed.points[-2:]
    gain = (rate_of(last) or 0.0) / (rate_of(before) or 1.0)
    why = f"Throughput still rises: {gain:.2f} times from batch {before.batch} to {largest}."
    larger = commands.build_of(f"{largest},{largest * 2},{largest * 4}")
    worth = min(gain - 1, 1.0) if gain >= _RISING else 0.0
    return (worth, Step("Try larger batch sizes", why, larger))


def _of_layers(commands: Commands, engine: EngineProfile) -> Iterator[_Candidate]:
    """What the profile says that another graph, another type or another look may change."""
    at, lint = f"At batch {engine.batch}, ", f"trtopt lint {commands.model}"
    reformats = [layer.ms for layer in engine.layers if layer.is_reformat and layer.ms]
    share = sum(reformats) / engine.sum_ms
    why = f"{at}{len(reformats)} reformats take {share:.0%} of the time."
    yield (share, Step("Avoid conversions of layout or type", why, lint))
    if engine.unfused:
        ms = {name: one.ms for one in engine.unfused for name in one.nodes[:1]}
        first = max(engine.unfused, key=lambda one: one.ms)
        why = f"{at}{len(engine.unfused)} candidates did not fuse, first {first.fusion}: {first.detail}."
        yield (min(sum(ms.values()) / engine.sum_ms, 1.0) / 2, Step("Make the graph fuse", why, lint))
    full = (engine.receipt.time_ran or {}).get("float32", 0.0)
    manifest = commands.collected.manifest
    if full >= 0.5 and (manifest is None or manifest.verdict is None):
        why = f"{at}{full:.0%} of the time is spent in FP32."
        half = f"trtopt build {commands.model} -o {commands.beside('fp16')} --precision fp16"
        yield (full / 2, Step("Build it in FP16", why, half))
    if engine.kernels is None and hides_its_time(engine):
        hidden = engine.coverage.time_opaque
        why = f"{at}{hidden:.0%} of the time lies in layers that hide their nodes."
        yield (hidden / 4, Step("Record the kernels", why, commands.profile("--kernels")))
