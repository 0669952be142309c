"""A chain of engines as one: each segment runs once or several times, on slices of the batch.

The segments run one after the other on one stream, so that a CUDA graph captures all of them. A slice is an
address within the whole tensor: nothing is copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trtopt.device.api import (
    Binding,
    Context,
    Device,
    DeviceBuffer,
    Event,
    Inputs,
    Session,
    SizedOutput,
    Stream,
)
from trtopt.device.building import joined_layers, name_in_segment
from trtopt.errors import IncompatibleEngineError, UsageError
from trtopt.files.chain_file import Chain, unpack_chain
from trtopt.onnxio.element_types import numpy_dtype
from trtopt.records import LayerPass, LayerTime, Segment, Shape, ShapeRange


def load_chain(content: bytes, device: Device, load: Callable[[bytes], Session]) -> Session:
    """The session of a chain's file; `load` makes that of one engine."""
    chain, engines = unpack_chain(content)
    with ExitStack() as opened:
        sessions = []
        for engine in engines:
            session = load(engine)
            opened.callback(session.close)
            sessions.append(session)
        return ChainSession(chain, tuple(sessions), device, opened.pop_all())


@dataclass(frozen=True)
class _Slice:
    """The part of a buffer that one run of a segment reads or writes."""

    address: int
    nbytes: int

    def close(self) -> None:
        """Nothing: the memory is another's."""


class ChainSession:
    """See `device.api.Session`."""

    def __init__(
        self, chain: Chain, sessions: tuple[Session, ...], device: Device, resources: ExitStack
    ) -> None:
        self.inputs, self.outputs = chain.inputs, chain.outputs
        self._chain, self._sessions, self._device, self._resources = chain, sessions, device, resources
        fixed = {spec.name: _shape(spec.shape) for spec in chain.inputs}
        self._fixed = fixed
        self.profiles: tuple[Mapping[str, ShapeRange], ...] = (
            {name: ShapeRange(min=shape, opt=shape, max=shape) for name, shape in fixed.items()},
        )

    @property
    def device_memory_bytes(self) -> int | None:
        """What the segments' contexts need together, and what lies between the segments."""
        needed = [session.device_memory_bytes for session in self._sessions]
        if None in needed:
            return None
        outputs = {spec.name for spec in self.outputs}
        between = sum(
            segment.repeats * math.prod(_shape(spec.shape)) * numpy_dtype(spec.dtype).itemsize
            for segment in self._chain.segments
            for spec in segment.outputs
            if spec.name not in outputs
        )
        return sum(one or 0 for one in needed) + between

    def context(self, shapes: Mapping[str, Shape]) -> Context:
        """A context of each segment, and memory for what lies between them."""
        for name, shape in self._fixed.items():
            if tuple(shapes[name]) != shape:
                raise UsageError(
                    f"input {name!r}: shape {tuple(shapes[name])} is not the chain's ({shape})",
                    "choose that batch or shape, or build an engine for this one",
                )
        return ChainContext(self._chain, self._sessions, self._device)

    def layer_pass(self, shapes: Mapping[str, Shape], data: Inputs, runs: int) -> LayerPass | None:
        """Each segment's, on the first slice of what those before it make; times are of all its runs."""
        values = dict(data)
        first = self._pass_of(0, values, runs)
        if first is None:
            return None
        values |= self._made_of(data)
        others = [self._pass_of(index, values, runs) for index in range(1, len(self._sessions))]
        passes = [one for one in (first, *others) if one is not None]
        layers = (
            LayerTime(name=name_in_segment(one.name, number), ms=[ms * segment.repeats for ms in one.ms])
            for number, (segment, found) in enumerate(zip(self._chain.segments, passes, strict=True), 1)
            for one in found.layers
        )
        return LayerPass(
            runs=runs, layers=tuple(layers), inspector=joined_layers([one.inspector for one in passes])
        )

    def _pass_of(self, index: int, values: Inputs, runs: int) -> LayerPass | None:
        segment = self._chain.segments[index]
        data = {spec.name: values[spec.name][: segment.batch] for spec in segment.inputs}
        return self._sessions[index].layer_pass(_shapes(segment), data, runs)

    def _made_of(self, data: Inputs) -> dict[str, NDArray[np.generic]]:
        """What the segments make of `data`, for a backend without vectorised formats."""
        device = self._device
        with ExitStack() as resources:
            context = ChainContext(self._chain, self._sessions, device)
            resources.callback(context.close)
            stream = device.stream()
            resources.callback(stream.close)
            buffers: dict[str, DeviceBuffer] = {}
            for one in context.bindings:
                buffers[one.name] = device.device_buffer(one.nbytes)
                resources.callback(buffers[one.name].close)
                if one.is_input:
                    array = np.ascontiguousarray(data[one.name], one.dtype)
                    host = device.pinned_buffer(one.nbytes)
                    resources.callback(host.close)
                    host.array[: array.nbytes] = array.reshape(-1).view(np.uint8)
                    device.copy_to_device(buffers[one.name], host, stream)
            context.bind(buffers)
            context.enqueue(stream)
            found = {}
            outputs = [(one, buffers[one.name]) for one in context.bindings if not one.is_input]
            for one, buffer in (*context.between, *outputs):
                host = device.pinned_buffer(one.nbytes)
                resources.callback(host.close)
                device.copy_to_host(host, buffer, stream)
                stream.synchronize()
                found[one.name] = host.array.copy().view(one.dtype).reshape(one.shape)
            return found

    def close(self) -> None:
        """Give the engines back; contexts must be closed before."""
        self._resources.close()


def _shape(axes: Sequence[int | str]) -> Shape:
    """The shape of a tensor whose axes a chain knows all."""
    if not all(isinstance(axis, int) for axis in axes):
        raise IncompatibleEngineError("the chain's header leaves an axis open", "build it again")
    return tuple(int(axis) for axis in axes)


def _shapes(segment: Segment) -> dict[str, Shape]:
    return {spec.name: _shape(spec.shape) for spec in segment.inputs}


@dataclass(frozen=True)
class _Part:
    """A segment's context, how often it runs, and what it reads and writes in one run."""

    context: Context
    repeats: int
    bindings: tuple[Binding, ...]


class ChainContext:
    """See `device.api.Context`."""

    output_growths = 0

    def __init__(self, chain: Chain, sessions: Sequence[Session], device: Device) -> None:
        self._resources = ExitStack()
        try:
            self._parts = [
                self._opened(segment, session)
                for segment, session in zip(chain.segments, sessions, strict=True)
            ]
            whole = _whole(self._parts)
            inputs, outputs = ([spec.name for spec in specs] for specs in (chain.inputs, chain.outputs))
            self.bindings = (
                *(replace(whole[name], is_input=True) for name in inputs),
                *(replace(whole[name], is_input=False) for name in outputs),
            )
            self.between = [
                (one, self._buffer(device, one))
                for name, one in whole.items()
                if name not in (*inputs, *outputs)
            ]
        except BaseException:
            self.close()
            raise
        self._last_reader = max(
            index
            for index, part in enumerate(self._parts)
            if any(one.is_input and one.name in inputs for one in part.bindings)
        )
        self._slices: list[list[dict[str, DeviceBuffer]]] = []
        self._consumed: Event | None = None

    def _opened(self, segment: Segment, session: Session) -> _Part:
        context = session.context(_shapes(segment))
        self._resources.callback(context.close)
        return _Part(context, segment.repeats, context.bindings)

    def _buffer(self, device: Device, binding: Binding) -> DeviceBuffer:
        buffer = device.device_buffer(binding.nbytes)
        self._resources.callback(buffer.close)
        return buffer

    def bind(self, buffers: Mapping[str, DeviceBuffer], consumed: Event | None = None) -> None:
        """Use these buffers from the next enqueue on; `consumed` is recorded behind the last reader."""
        memory = {one.name: buffer for one, buffer in self.between} | dict(buffers)
        self._consumed = consumed
        self._slices = [
            [
                {
                    one.name: _Slice(memory[one.name].address + turn * one.nbytes, one.nbytes)
                    for one in part.bindings
                }
                for turn in range(part.repeats)
            ]
            for part in self._parts
        ]
        for part, turns in zip(self._parts, self._slices, strict=True):
            if part.repeats == 1:
                part.context.bind(turns[0])

    def enqueue(self, stream: Stream) -> None:
        """Enqueue every segment as often as it runs."""
        for index, (part, turns) in enumerate(zip(self._parts, self._slices, strict=True)):
            for slices in turns:
                if part.repeats > 1:
                    part.context.bind(slices)
                part.context.enqueue(stream)
            if self._consumed is not None and index == self._last_reader:
                self._consumed.record(stream)

    def bare_enqueue(self, stream: Stream) -> Callable[[], object]:
        """All of them: a loop over a chain does no less."""
        return lambda: self.enqueue(stream)

    def sized_outputs(self) -> Mapping[str, SizedOutput]:
        """There are none: such models are not built as chains."""
        return {}

    def report_layers(self, report: Callable[[str, float], None], *, on_request: bool = False) -> None:
        """Layers named by segment. On request only a segment's last run is known: its times count for all."""
        for number, part in enumerate(self._parts, 1):
            times = part.repeats if on_request else 1
            part.context.report_layers(_in_segment(report, number, times), on_request=on_request)

    def request_layers(self) -> bool:
        """Report the layers of every segment."""
        reported = [part.context.request_layers() for part in self._parts]
        return all(reported)

    def emit_ranges(self) -> None:
        """Of all segments; they do not name the segment."""
        for part in self._parts:
            part.context.emit_ranges()

    def inspect(self) -> str | None:
        """The layers of all segments."""
        return joined_layers([part.context.inspect() for part in self._parts])

    def close(self) -> None:
        """Give it back."""
        self._resources.close()


def _in_segment(
    report: Callable[[str, float], None], number: int, times: int
) -> Callable[[str, float], None]:
    return lambda name, ms: report(name_in_segment(name, number), ms * times)


def _whole(parts: Sequence[_Part]) -> dict[str, Binding]:
    """Every tensor that segments exchange with one another or with the caller, at the whole batch."""
    found: dict[str, Binding] = {}
    for part in parts:
        for one in part.bindings:
            whole = replace(one, shape=(one.shape[0] * part.repeats, *one.shape[1:]))
            other = found.setdefault(one.name, whole)
            if (other.dtype, other.shape, other.layout) != (whole.dtype, whole.shape, whole.layout):
                raise IncompatibleEngineError(
                    f"{one.name!r} is {_said(other)} in one engine and {_said(whole)} in another",
                    "build it again with another --split",
                )
    return found


def _said(binding: Binding) -> str:
    return f"{binding.dtype.name} {list(binding.shape)} in {binding.layout}"
