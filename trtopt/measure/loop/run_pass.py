"""What a pass runs on: an engine's inference streams under a contract's terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

from trtopt.device.api import Device, Session
from trtopt.measure.contracts import one_in_flight, with_terms
from trtopt.measure.loop.buffers import Inputs
from trtopt.measure.loop.inference_stream import InferenceStream
from trtopt.records import Contract, EngineRef, Shape


@dataclass(frozen=True)
class Subject:
    """What is measured: an engine at one batch size, on this input data."""

    engine: EngineRef
    batch: int
    shapes: Mapping[str, Shape]
    data: Inputs


Mode = Literal["latency", "throughput"]


def terms_of(mode: Mode, contract: Contract) -> Contract:
    """The contract's terms in a mode."""
    return one_in_flight(contract) if mode == "latency" else contract


def _notes_on(device: Device, inference_stream: InferenceStream) -> list[str]:
    """What the streams do otherwise than the contract's words would have it."""
    notes = []
    if sized := inference_stream.sized_outputs:
        shapes = ", ".join(f"{name} {list(output.shape)}" for name, output in sized.items())
        notes.append(
            f"outputs whose size depends on the data, here: {shapes}; their memory grew "
            f"{inference_stream.output_growths} times"
        )
    if device.info.kind == "cpu" and inference_stream.contract.transfers:
        notes.append(
            "on the CPU the host thread itself copies and computes: a query's copies overlap nothing"
        )
    return notes


def open_inference_streams(
    device: Device,
    session: Session,
    subject: Subject,
    contract: Contract,
    as_run: Callable[[Contract], Contract],
    resources: ExitStack,
) -> tuple[list[InferenceStream], Contract, list[str]]:
    """One per stream, all without a CUDA graph if one refuses it; the contract that is kept, and notes.

    `as_run` gives a contract's terms in this pass; last, for `with_terms` would name them all.
    """
    inference_streams = _inference_streams(device, session, subject, as_run(contract), resources)
    refused = next((one.graph_refused for one in inference_streams if one.graph_refused), None)
    notes = []
    if refused is not None:
        resources.close()  # all streams run on the same terms, or the result has none
        contract = with_terms(contract, {"graph": False})
        inference_streams = _inference_streams(device, session, subject, as_run(contract), resources)
        notes.append(f"measured without a CUDA graph: {refused}")
    return inference_streams, contract, notes + _notes_on(device, inference_streams[0])


def _inference_streams(
    device: Device, session: Session, subject: Subject, terms: Contract, resources: ExitStack
) -> list[InferenceStream]:
    inference_streams = []
    for _ in range(terms.streams):
        inference_streams.append(InferenceStream(device, session, subject.shapes, subject.data, terms))
        resources.callback(inference_streams[-1].close)
    return inference_streams
