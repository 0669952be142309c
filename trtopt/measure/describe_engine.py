"""An engine's own description of its inputs and outputs, for external engines without a manifest."""

from __future__ import annotations

from pathlib import Path

from trtopt.device.api import Target
from trtopt.device.memory_check import require_memory
from trtopt.files.manifests import read_verified
from trtopt.records import Backend, DeviceInfo, Job, Record, ShapeRange, TensorSpec


class Described(Record, frozen=True, kw_only=True):
    """A describe job's result, and what it was loaded by; `profiles` as `device.api.Session` has them."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    profiles: tuple[dict[str, ShapeRange], ...]
    backend: Backend
    device: DeviceInfo


class DescribeJob(Job[Described], frozen=True, kw_only=True, tag="describe"):
    """A worker's job: describe an engine. The file is loaded only if its hash is `sha256`."""

    path: str
    sha256: str
    backend: str


def describe(target: Target, job: DescribeJob) -> Described:
    """Load the engine and read its inputs, outputs and profiles."""
    content = read_verified(Path(job.path), job.sha256, "command line")
    require_memory(
        job.path,
        {"engine": len(content)},
        target.device.device_memory(),
        "free the device, or use a smaller one",
    )
    session = target.load(content)
    try:
        return Described(
            inputs=session.inputs,
            outputs=session.outputs,
            profiles=tuple(map(dict, session.profiles)),
            backend=target.backend,
            device=target.device.info,
        )
    finally:
        session.close()
