"""What a worker holds: a stream of its own and the engines it has prepared, within a bound of memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from trtopt.device.api import Device
from trtopt.errors import DataError, DeviceMemoryError
from trtopt.serving.engine_catalogue import Catalogue, EngineChoice, Key, Part
from trtopt.serving.prepared_engine import Prepared
from trtopt.serving.row_copying import Copier, Cut, assign_rows, own_rows

Outputs = dict[str, NDArray[np.generic]]


class Worker:
    """Runs rows on the engines that suit them, in one thread at a time.

    Contexts, buffers and graphs are made when they are first needed, and the least recently used give way
    when the next would take more than `bound_bytes` of the device. The counts may be read by any thread.
    """

    def __init__(
        self, device: Device, catalogue: Catalogue, copier: Copier, *, bound_bytes: int, graphs: bool
    ) -> None:
        self._device, self._catalogue, self._copier = device, catalogue, copier
        self._bound_bytes, self._graphs = bound_bytes, graphs
        self._prepared: OrderedDict[tuple[int, int, Key], Prepared] = OrderedDict()
        self._stream = device.stream()
        self.prepared = self.graphs = self.evicted = self.nbytes = 0
        self.graph_refused: str | None = None
        self.sized_names: frozenset[str] = frozenset()

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
        if self._ready((choice.engines[pieces[0].offer], pieces[0].batch, key)).sized_names:
            return [self._run_alone(part, choice) for part in parts]
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

    def _run_alone(self, part: Part, choice: EngineChoice) -> Outputs:
        """A part by itself: outputs of data-dependent size can be neither divided nor cleared of padding."""
        piece = choice.selector.exact(part.rows)
        if piece is None:
            raise DataError(
                f"{part.rows} rows fit no engine exactly, and outputs whose size depends on the data can "
                "neither be divided nor cleared of padding",
                "send as many rows as an engine takes, or build an engine for this batch size",
            )
        name = (choice.engines[piece.offer], piece.batch, part.key)
        outputs = self._run_on(name, [part], [Cut(0, 0, part.rows, 0)])
        return {output: array.copy() for output, array in outputs.items()}

    def _ready(self, name: tuple[int, int, Key]) -> Prepared:
        prepared = self._prepared.get(name)
        if prepared is None:
            prepared = self._prepare(name)
        self._prepared.move_to_end(name)
        return prepared

    def _run_on(self, name: tuple[int, int, Key], parts: Sequence[Part], cuts: Sequence[Cut]) -> Outputs:
        prepared = self._ready(name)
        had = prepared.graphs
        outputs = prepared.run(parts, cuts)
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
        self.sized_names = made.sized_names
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
            self._copier,
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
