"""Runs of one inference brought together: launch n of each run is the same launch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from trtopt.records import KernelActivity, KernelLaunch

_NS = 1e-6


def merge_runs(runs: Sequence[Sequence[KernelActivity]]) -> tuple[tuple[KernelLaunch, ...], int]:
    """The launches of the runs with the commonest sequence of names, and how many runs differ from it.

    A run's launches are put in the order of their starts; a run without any counts as different.
    """
    ordered = [sorted(run, key=lambda one: (one.start_ns, one.end_ns, one.graph_node)) for run in runs]
    sequences = [tuple((one.kind, one.name, one.grid) for one in run) for run in ordered]
    counts = Counter(sequence for sequence in sequences if sequence)
    if not counts:
        return (), len(runs)
    common = counts.most_common(1)[0][0]
    same = [run for run, sequence in zip(ordered, sequences, strict=True) if sequence == common]
    return tuple(_launch(one, same) for one in range(len(common))), len(runs) - len(same)


def _launch(index: int, runs: Sequence[Sequence[KernelActivity]]) -> KernelLaunch:
    first = runs[0][index]
    return KernelLaunch(
        kind=first.kind,
        name=first.name,
        start_ms=[(run[index].start_ns - run[0].start_ns) * _NS for run in runs],
        ms=[(run[index].end_ns - run[index].start_ns) * _NS for run in runs],
        stream=first.stream,
        grid=first.grid,
        block=first.block,
        registers=first.registers,
        shared_bytes=first.shared_bytes,
        nbytes=first.nbytes,
    )
