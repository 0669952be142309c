"""The samples of a tuning run: a user's function is called once, within a limit of time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from trtopt.data import names_function, open_data
from trtopt.data.copied import SamplesJob
from trtopt.data.npz import write_npz
from trtopt.data.packing import quantised
from trtopt.executors.api import run_jobs_of
from trtopt.executors.local import THIS_HOST
from trtopt.files.atomic import scratch_beside, scratch_folder
from trtopt.records import Manifest, OnnxArtifact, TensorSpec
from trtopt.workflows.listener import Listener

_BATCH = 32


@dataclass(frozen=True)
class Samples:
    """Files to read, None for random input; what the user calls them; and the seconds that a copy took."""

    data: str | None
    name: str | None
    seconds: float = 0.0

    @property
    def share(self) -> str:
        """What a copy added to the baseline's time, for a message on that; empty without one."""
        return f", {self.seconds:.0f} s of them to read {self.name}" if self.seconds else ""


def write_quantised(
    data: str, inputs: Sequence[TensorSpec], scales: Mapping[str, float], folder: Path
) -> None:
    """The samples as INT8 inputs take them, a file per batch: clipped as QuantizeLinear does.

    `inputs` are those of the model, with the types that the samples have; `scales` are by input.
    """
    for number, batch in enumerate(open_data(data).batches(inputs, _BATCH)):
        levels = {name: quantised(name, batch[name], scale, saturate=True) for name, scale in scales.items()}
        write_npz(folder / f"{number:06}.npz", batch | levels)


@contextmanager
def samples_of(
    data: str | Path | None, onnx: OnnxArtifact, folder: Path, limit_s: float, listener: Listener
) -> Iterator[Samples]:
    """The samples that `data` names; those of a function as files beside `folder` until the block ends."""
    if data is None or not names_function(str(data)):
        yield Samples(None if data is None else str(data), None if data is None else str(data))
        return
    name, began_s = str(data), time.monotonic()
    with scratch_beside(folder) as scratch:
        copied = scratch / Path(name).name
        copied.mkdir()
        job = SamplesJob(data=name, inputs=onnx.inputs, folder=str(copied))
        listener.plans([f"samples of {name}"])
        for _ in run_jobs_of(THIS_HOST, [job], limit_s=limit_s, on_progress=listener.progress):
            pass
        yield Samples(str(copied), name, time.monotonic() - began_s)


@contextmanager
def samples_for(build: Manifest, data: str | None) -> Iterator[str | None]:
    """The user's samples as the build takes them: floats become the values of INT8 inputs."""
    typed = {one.name: one for one in build.io if one.role == "input"}
    scales = {name: one.scale for name, one in typed.items() if one.scale is not None}
    if data is None or not scales:
        yield data
        return
    given = [
        structs.replace(spec, dtype=typed[spec.name].model_dtype) if spec.name in scales else spec
        for spec in build.onnx.inputs
    ]
    with scratch_folder() as scratch:
        write_quantised(data, given, scales, scratch)
        yield str(scratch)
