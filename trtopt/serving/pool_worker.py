"""What a worker holds: a stream of its own and the engines it has prepared, within a bound of memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trtopt.device.api import Device
from trtopt.errors import DeviceMemoryError
from trtopt.serving.engine_catalogue import Catalogue, Key, Part
from trtopt.serving.prepared_engine import Prepared

Outputs = dict[str, NDArray[np.generic]]


_KNOWN = 256
"""Most batches are of single rows, and of few sizes."""


class Cut(NamedTuple):
    """Rows `start` to `stop` of a part are rows `at` and on of a batch."""

    part: int
    start: int
    stop: int
    at: int


@lru_cache(_KNOWN)
def assign_rows(
    rows_of_parts: tuple[int, ...], rows_of_batches: tuple[int, ...]
) -> tuple[tuple[Cut, ...], ...]:
    """Deal the parts' rows out to the batches, in order; there are as many rows in all of either."""
    dealt: list[tuple[Cut, ...]] = []
    part = start = 0
    for rows in rows_of_batches:
        cuts: list[Cut] = []
        at = 0
        while at < rows:
            taken = min(rows - at, rows_of_parts[part] - start)
            cuts.append(Cut(part, start, start + taken, at))
            at += taken
            start += taken
            if start == rows_of_parts[part]:
                part, start = part + 1, 0
        dealt.append(tuple(cuts))
    return tuple(dealt)


SHARED_BYTES = 1 << 20
"""What an answer may keep in memory of others that are gone: 128 rows of 4 KB take 30 µs so, else 420."""


def own_rows(batch: NDArray[np.generic], spans: Sequence[tuple[int, int]]) -> list[NDArray[np.generic]]:
    """Rows from the first to the last, exclusively, of each span, in memory of their own.

    Those of a small batch share a copy of it, which lives as long as one of them does.
    """
    if len(spans) > 1 and batch.nbytes <= SHARED_BYTES:
        batch = batch.copy()
        return [batch[start:stop] for start, stop in spans]
    return [batch[start:stop].copy() for start, stop in spans]


class Worker:
    """Runs rows on the engines that suit them, in one thread at a time.

    Contexts, buffers and graphs are made when they are first needed, and the least recently used give way
    when the next would take more than `bound_bytes` of the device. The counts may be read by any thread.
    """

    def __init__(self, device: Device, catalogue: Catalogue, *, bound_bytes: int, graphs: bool) -> None:
        self._device, self._catalogue = device, catalogue
        self._bound_bytes, self._graphs = bound_bytes, graphs
        self._prepared: OrderedDict[tuple[int, int, Key], Prepared] = OrderedDict()
        self._stream = device.stream()
        self.prepared = self.graphs = self.evicted = self.nbytes = 0
        self.graph_refused: str | None = None

    def run(self, parts: Sequence[Part]) -> list[Outputs]:
        """Run parts of one key; what exceeds the largest engine runs one batch after the other.

        Returns:
            For each part its outputs as [rows, …], in memory that no other run writes to; parts share up to
            1 MiB of it.
        """
        key = parts[0].key
        choice = self._catalogue.choice(key)
        rows = tuple([part.rows for part in parts])
        pieces = choice.selector.pieces(sum(rows))
        dealt = assign_rows(rows, tuple([piece.rows for piece in pieces]))
        taken: list[list[Outputs]] = []
        for piece, cuts in zip(pieces, dealt, strict=True):
            outputs_of_all = self._run_on((choice.engines[piece.offer], piece.batch, key), parts, cuts)
            taken.append(_taken_apart(outputs_of_all, cuts))
        if len(taken) == 1:
            return taken[0]
        received: list[list[Outputs]] = [[] for _ in parts]
        for cuts, outputs_of_cuts in zip(dealt, taken, strict=True):
            for cut, outputs in zip(cuts, outputs_of_cuts, strict=True):
                received[cut.part].append(outputs)
        return [_joined(pieces_of_part) for pieces_of_part in received]

    def _ready(self, name: tuple[int, int, Key]) -> Prepared:
        prepared = self._prepared.get(name)
        if prepared is None:
            prepared = self._prepare(name)
        self._prepared.move_to_end(name)
        return prepared

    def _run_on(self, name: tuple[int, int, Key], parts: Sequence[Part], cuts: Sequence[Cut]) -> Outputs:
        prepared = self._ready(name)
        had = prepared.graphs
        rows = {
            name: [parts[cut.part].tensors[name][cut.start : cut.stop] for cut in cuts]
            for name in parts[0].tensors
        }
        outputs = prepared.run(rows)
        self.graphs += prepared.graphs - had
        self.graph_refused = prepared.graph_refused or self.graph_refused
        return outputs

    def _prepare(self, name: tuple[int, int, Key]) -> Prepared:
        """Other programs use the device, too: without memory left, all but this one gives way."""
        try:
            made = self._make(name)
        except DeviceMemoryError:
            if not self._prepared:
                raise
            self._make_room(self._bound_bytes)
            made = self._make(name)
        self._prepared[name] = made
        self.prepared += 1
        self.nbytes += made.nbytes
        return made

    def _make(self, name: tuple[int, int, Key]) -> Prepared:
        engine, batch, key = name
        return Prepared(
            self._device,
            self._stream,
            self._catalogue.engines[engine].session,
            self._catalogue.shapes(key, batch),
            graphs=self._graphs,
            make_room=self._make_room,
        )

    def _make_room(self, nbytes: int) -> None:
        while self._prepared and self.nbytes + nbytes > self._bound_bytes:
            _, oldest = self._prepared.popitem(last=False)
            self.prepared -= 1
            self.graphs -= oldest.graphs
            self.nbytes -= oldest.nbytes
            self.evicted += 1
            oldest.close()

    def close(self) -> None:
        """Give everything back, whatever of it fails."""
        with ExitStack() as resources:
            resources.callback(self._stream.close)
            for prepared in self._prepared.values():
                resources.callback(prepared.close)
            self._prepared = OrderedDict()


def _taken_apart(outputs: Outputs, cuts: Sequence[Cut]) -> list[Outputs]:
    """What belongs to each of the cuts, in memory that no other run writes to."""
    spans = [(cut.at, cut.at + cut.stop - cut.start) for cut in cuts]
    owned = [own_rows(output, spans) for output in outputs.values()]
    return [dict(zip(outputs, rows, strict=True)) for rows in zip(*owned, strict=True)]


def _joined(pieces: list[Outputs]) -> Outputs:
    if len(pieces) == 1:
        return pieces[0]
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
