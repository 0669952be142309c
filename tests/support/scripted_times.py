"""Times from a script in place of a worker's; all else of a job's surroundings is real."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from trtopt.device.ort.runtime import OnnxRuntimeTarget
from trtopt.measure.engine import BenchJob, BenchResult
from trtopt.measure.loop.interleaved import InterleaveJob
from trtopt.records import (
    BenchPoint,
    EngineRef,
    InterleavedRun,
    Job,
    LayerPass,
    LayerTime,
    Loading,
    Measurement,
    Samples,
    TurnSamples,
)
from trtopt.workers.jobs import environment_of

LayerScript = Callable[[str, int, onnx.NodeProto], float]
"""Candidate, batch and node of its graph → milliseconds."""


class ScriptedTimes:
    """Stands for `run_jobs_of` where jobs measure. `latency_ms` is by candidate and batch size."""

    def __init__(self, latency_ms: Mapping[tuple[str, int], float], layer_ms: LayerScript) -> None:
        self._latency_ms, self._layer_ms = latency_ms, layer_ms
        self._target = OnnxRuntimeTarget()
        self.in_turns: list[tuple[int, tuple[str, ...]]] = []
        """Batch size and candidates of every run in turns."""

    def __call__(self, _executor: object, jobs: Sequence[Job[Any]], **_: object) -> Iterator[tuple[int, Any]]:
        """Answer each job at once."""
        for index, job in enumerate(jobs):
            if isinstance(job, InterleaveJob):
                yield index, self._run(job)
            else:
                assert isinstance(job, BenchJob)
                yield index, BenchResult(point=self._point(job), environment=environment_of(self._target))

    def _run(self, job: InterleaveJob) -> InterleavedRun:
        names = tuple(variant.name for variant in job.variants)
        batch = job.engines[-1].batch
        self.in_turns.append((batch, names))
        sensor = self._target.device.clock_sensor()
        return InterleavedRun(
            purpose=job.purpose,
            batch=batch,
            environment=environment_of(self._target),
            turns=tuple(
                TurnSamples(
                    name=variant.name,
                    engine=_ref(job.engines[variant.engine].path),
                    contract=variant.contract,
                    mode="latency",
                    blocks=tuple(
                        _samples(self._latency_ms[variant.name, batch] * (1 + 0.001 * (-1) ** number))
                        for number in range(20)
                    ),
                    warmups=(),
                )
                for variant in job.variants
            ),
            clocks=tuple(sensor.read(float(turn)) for turn in range(20 * len(names) + 1)),
            clock_reference=sensor.reference,
            loadings=tuple(
                Loading(round=number, order=tuple(range(len(names))), took_s=0.0, clock=sensor.read(0.0))
                for number in range(20)
            ),
        )

    def _point(self, job: BenchJob) -> BenchPoint:
        folder, batch = Path(job.engine.path).parent, job.engine.batch
        graph = next(folder.glob("model.*.onnx"), folder.parents[1] / "model.onnx")  # as it was given
        layers = tuple(
            LayerTime(name=node.name, ms=[self._layer_ms(folder.name, batch, node)])
            for node in onnx.load(str(graph), load_external_data=False).graph.node
        )
        latency = Measurement(
            mode="latency",
            contract=job.contract,
            engine=_ref(job.engine.path),
            batch=batch,
            shapes=job.engine.shapes,
            samples=_samples(1.0),
            staged=_samples(1.0),
            warmups=_samples(1.0),
            stop_reason="scripted",
        )
        return BenchPoint(batch=batch, latency=latency, layers=LayerPass(runs=1, layers=layers))


def _ref(path: str) -> EngineRef:
    return EngineRef(path=path, sha256="0" * 64, label=Path(path).stem)


def _samples(ms: float) -> Samples:
    return Samples(
        start_ms=[0.0] * 5,
        end_ms=[ms] * 5,
        enqueue_ms=[0.0] * 5,
        gpu_compute_ms=[ms] * 5,
        h2d_ms=[],
        d2h_ms=[],
        inference_stream=[0] * 5,
    )
