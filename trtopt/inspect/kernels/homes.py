"""Which layer a launch belongs to, by order and time.

Both the profiler's layers and the launches are in the order in which they ran. The launches are cut into
consecutive stretches, one for each layer, so that the stretches' times differ least from the layers' in all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher

import numpy as np

from trtopt.records import (
    Confidence,
    KernelActivity,
    KernelLaunch,
    LaunchCall,
    NvtxRange,
    ProfiledLayer,
    TracedRun,
)

Home = tuple[int, Confidence]
"""The index of a launch's layer, -1 for none, and how well that is known."""

_FIT_SHARE = 0.25
_FIT_MS = 0.005
"""A stretch fits its layer within a quarter of its time, or the microseconds of a profiler's events."""


def assign_layers(launch_ms: Sequence[float], layer_ms: Sequence[float]) -> list[Home]:
    """For each launch the index of its layer, and how well that is known.

    Layers without time get no launch. With one layer nothing else is possible; otherwise launches of a
    stretch that does not fit its layer are `unknown`.
    """
    timed = [index for index, ms in enumerate(layer_ms) if ms > 0]
    if not timed:
        return [(-1, "unknown")] * len(launch_ms)
    if len(timed) == 1:
        return [(timed[0], "certain")] * len(launch_ms)
    ends = _cut(np.asarray(launch_ms, float), np.asarray([layer_ms[index] for index in timed], float))
    found: list[Home] = []
    begin = 0
    for index, end in zip(timed, ends, strict=True):
        error = abs(sum(launch_ms[begin:end]) - layer_ms[index])
        fits = error <= max(_FIT_MS, _FIT_SHARE * layer_ms[index])
        found += [(index, "likely" if fits else "unknown")] * (end - begin)
        begin = end
    return found


def _cut(launches: np.ndarray, layers: np.ndarray) -> list[int]:
    """The end of each layer's stretch: dynamic programming over (layer, launches so far)."""
    reached = np.concatenate([[0.0], np.cumsum(launches)])
    size = len(reached)
    never = np.triu(np.ones((size, size), bool), 1)  # a stretch does not end before it begins
    best = np.full(size, np.inf)
    best[0] = 0.0
    choices = []
    for ms in layers:
        cost = best[None, :] + np.abs(reached[:, None] - reached[None, :] - ms)
        cost[never] = np.inf
        np.fill_diagonal(cost, cost.diagonal() + ms)  # a layer that took time rather has a launch
        choices.append(cost.argmin(axis=1))
        best = cost.min(axis=1)
    ends = [size - 1]
    for choice in reversed(choices[1:]):
        ends.append(int(choice[ends[-1]]))
    return ends[::-1]


# Which layer a launch belongs to, by the NVTX range that TensorRT opened around its call.
#
# In plain runs TensorRT opens a range for each layer while it enqueues it. The call that launched a kernel
# has the kernel's correlation id, and lies inside the range of its layer. Launches of a CUDA graph have no
# such calls: they are matched with those of the plain runs by order and name.


_DOMAIN = "TensorRT"
_NOWHERE: Home = (-1, "unknown")


def assign_by_ranges(
    launches: Sequence[KernelLaunch],
    runs: Sequence[TracedRun],
    layers: Sequence[ProfiledLayer],
    by_order: Sequence[Home],
) -> tuple[list[Home], list[str]]:
    """For each launch the index of its layer and how well that is known, and notes on what stayed open.

    `runs` are plain, with calls and ranges. Where they name no layer, that of `by_order` stands if it lies
    between the layers of the launches before and after.
    """
    names = [_key(one) for one in launches]
    ordered = [sorted(run.activities, key=lambda one: (one.start_ns, one.end_ns)) for run in runs]
    matches = [_matched(names, [_key(one) for one in run]) for run in ordered]
    is_same = [len(pairs) == len(names) == len(run) for pairs, run in zip(matches, ordered, strict=True)]
    found: list[set[Home]] = [set() for _ in launches]
    for run, activities, pairs, same in zip(runs, ordered, matches, is_same, strict=True):
        if any(is_same) and not same:
            continue
        homes = _homes(run, activities, layers)
        for launch, activity in pairs.items():
            index, confidence = homes[activity]
            found[launch].add((index, confidence if same or index < 0 else "likely"))
    agreed = [_agreed(homes) for homes in found]
    if all(index < 0 for index, _ in agreed):
        return list(by_order), ["layers by order and time: TensorRT's NVTX ranges name none of them"]
    unmatched = sorted(set(range(len(names))) - {launch for pairs in matches for launch in pairs})
    note = "plain runs, in which NVTX ranges name the layers, launch other kernels: matched by order and name"
    if unmatched:
        note += f", but for {len(unmatched)} of {len(launches)}, such as {launches[unmatched[0]].name}"
    return _filled(agreed, by_order), [] if any(is_same) else [note]


def _key(one: KernelActivity | KernelLaunch) -> tuple[str, str]:
    return one.kind, one.name


def _matched(ours: Sequence[object], theirs: Sequence[object]) -> dict[int, int]:
    """Places of equal items in both, in order."""
    blocks = SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
    return {block.a + step: block.b + step for block in blocks for step in range(block.size)}


def _agreed(homes: set[Home]) -> Home:
    """What all runs say; unknown where they differ."""
    indices = {index for index, _ in homes}
    if len(indices) != 1:
        return _NOWHERE
    (index,) = indices
    return (index, "certain" if homes == {(index, "certain")} else "likely") if index >= 0 else _NOWHERE


def _homes(
    run: TracedRun, activities: Sequence[KernelActivity], layers: Sequence[ProfiledLayer]
) -> list[Home]:
    """The layer of each activity of a run."""
    counts = Counter(layer.name for layer in layers)
    places = {layer.name: index for index, layer in enumerate(layers) if counts[layer.name] == 1}
    own = [one for one in run.ranges if one.domain.startswith(_DOMAIN) and one.name in places]
    ranges = sorted(own, key=lambda one: one.start_ns)
    calls = {one.correlation_id: one for one in run.calls}
    timed = [one for one in ranges if layers[places[one.name]].ms]
    return [
        _by_call(calls[one.correlation_id], ranges, places)
        if one.correlation_id in calls
        else _by_time(one, run.calls, timed, places)
        for one in activities
    ]


def _by_call(call: LaunchCall, ranges: Sequence[NvtxRange], places: Mapping[str, int]) -> Home:
    """The innermost range around the call."""
    for one in reversed(ranges):
        is_around = one.start_ns <= call.start_ns and call.end_ns <= one.end_ns
        if is_around and one.thread in (None, call.thread):
            return places[one.name], "certain"
    return _NOWHERE


def _by_time(
    one: KernelActivity, calls: Sequence[LaunchCall], ranges: Sequence[NvtxRange], places: Mapping[str, int]
) -> Home:
    """The only range that was open when it can have been launched: ids of calls ascend."""
    before = [call.end_ns for call in calls if call.correlation_id < one.correlation_id]
    after = [call.start_ns for call in calls if call.correlation_id > one.correlation_id]
    earliest, latest = max(before, default=0), min([one.start_ns, *after])
    possible = {places[each.name] for each in ranges if each.start_ns <= latest and each.end_ns >= earliest}
    return (possible.pop(), "likely") if len(possible) == 1 else _NOWHERE


def _filled(homes: Sequence[Home], by_order: Sequence[Home]) -> list[Home]:
    """Launches that no range names a layer for get that of both neighbours, or one by order between them."""
    filled: list[Home] = list(homes)
    for place, (index, _) in enumerate(homes):
        if index >= 0:
            continue
        before = next((home for home, _ in reversed(homes[:place]) if home >= 0), None)
        after = next((home for home, _ in homes[place:] if home >= 0), None)
        low, high = (-1 if before is None else before), (float("inf") if after is None else after)
        if low == high:
            filled[place] = low, "likely"
        else:
            filled[place] = by_order[place] if low <= by_order[place][0] <= high else _NOWHERE
    return filled
