"""Subjects that take turns in worker processes: what every comparison on this machine shares."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from trtopt.builder.shapes import shapes_at
from trtopt.data import open_data
from trtopt.data.fit import sample_axes
from trtopt.errors import DataError, OutputError, UsageError
from trtopt.executors.api import THIS_HOST, Executor, run_jobs_of
from trtopt.files.atomic import write_atomically
from trtopt.files.bounded_reading import read_bounded
from trtopt.measure.analysis.outcomes import Work
from trtopt.measure.contracts import THRESHOLD, WARMUP_S, with_terms
from trtopt.measure.engine import LoadedEngine
from trtopt.measure.loop.interleaved import InterleaveJob, ValidRounds, Variant, latency_blocks
from trtopt.measure.statistics.comparison import RUN_BLOCKS, Block, Comparison, Noise, compare
from trtopt.recipe import ANY_SIZES, Recipe
from trtopt.records import (
    ComparisonVerdict,
    Contract,
    DeviceInfo,
    EngineArtifact,
    InterleavedRun,
    MeasuredRunSpread,
    Purpose,
    Shape,
    TensorSpec,
    read_versioned,
    to_json,
)
from trtopt.workflows.cache_folder import store_folder
from trtopt.workflows.listener import Listener
from trtopt.workflows.provenance import now

ROUNDS = RUN_BLOCKS
"""Turns of each subject in one process."""

SHORT_TURN_S = 0.03
"""So short that most rounds lie within one spell of whatever else the machine does."""


@dataclass(frozen=True)
class Setting:
    """How to measure: `duration` is seconds of sampling for each subject, over all of its turns.

    `timeout` is seconds that a batch size may take, all turns of one process.
    """

    contract: Contract
    duration: float
    data: str | None
    timeout: float | None = None


def engine_at(
    folder: Path, inputs: Sequence[TensorSpec], engine: EngineArtifact, size: int, sizes: Recipe = ANY_SIZES
) -> LoadedEngine:
    """An engine of a folder at one batch size, for a worker to load; `inputs` are its model's."""
    return LoadedEngine(
        path=str((folder / engine.path).absolute()),
        artifact=engine,
        batch=size,
        shapes=shapes_at(inputs, engine.plan, size, sizes),
        sample_axes=sample_axes(inputs),
    )


def fitting_data(
    data: str | Path | None,
    inputs: Sequence[TensorSpec],
    shapes: Iterable[Mapping[str, Shape]],
    note: Callable[[str], None],
) -> str | None:
    """The user's samples, if they have all of these shapes; else None, with a note: random input is run."""
    if data is None:
        return None
    try:
        for wanted in shapes:
            open_data(data).first_batch(inputs, wanted)
    except DataError as error:
        note(f"times are taken on random input: {error.problem}")
        return None
    return str(data)


def work_of(source_sha256: str, engines: Mapping[int, LoadedEngine]) -> Work:
    """Engines by batch size."""
    return Work(
        source=source_sha256,
        shapes={size: engine.shapes for size, engine in engines.items()},
        outputs={size: [spec.name for spec in engine.artifact.outputs] for size, engine in engines.items()},
    )


def with_streams(contract: Contract, streams: int) -> Contract:
    """The terms with so many streams."""
    return with_terms(contract, {"streams": streams}) if streams > 1 else contract


def short_turns(duration: float) -> int:
    """The turns of each subject, where nothing needs them longer."""
    return max(ROUNDS, round(duration / SHORT_TURN_S))


def heat(
    label: str,
    engines: Sequence[LoadedEngine],
    names: Sequence[str],
    purpose: Purpose,
    setting: Setting,
    rounds: int = ROUNDS,
) -> InterleaveJob:
    """Turns in one process, of every engine under its name on the setting's terms."""
    alike = (Variant(name=name, engine=index, contract=setting.contract) for index, name in enumerate(names))
    return InterleaveJob(
        label=label,
        engines=tuple(engines),
        variants=tuple(alike),
        rounds=rounds,
        least_rounds=ROUNDS,
        purpose=purpose,
        data=setting.data,
        warmup_s=WARMUP_S,
        block_s=setting.duration / rounds,
    )


def race(
    heats: Sequence[InterleaveJob],
    listener: Listener,
    limit_s: float | None = None,
    executor: Executor = THIS_HOST,
) -> list[InterleavedRun]:
    """One heat after the other on each host, in a process of its own; none after one whose device failed.

    A heat that takes longer than `limit_s` seconds has failed.
    """
    backends = {str(engine.artifact.plan.backend) for one in heats for engine in one.engines}
    if len(backends) > 1:
        raise UsageError(
            f"engines of {' and '.join(sorted(backends))} cannot be interleaved in one process",
            "measure each with `trtopt bench --json FILE` and compare the result files; `trtopt check` "
            "compares the results of each with the model's",
        )
    listener.plans([one.label for one in heats])
    runs: dict[int, InterleavedRun] = {}
    with closing(run_jobs_of(executor, heats, limit_s=limit_s, on_progress=listener.progress)) as results:
        for index, run in results:
            runs[index] = run
            if run.failure is not None:
                break
    return [runs[index] for index in sorted(runs)]


def compare_turns(
    rounds: ValidRounds,
    subject: int = 1,
    *,
    threshold: float = THRESHOLD,
    noise: Noise | None = None,
    failures: Sequence[str] = (),
    blocks: Sequence[Sequence[Block]] | None = None,
    what: str = "latency",
) -> Comparison:
    """A subject against the first one, by what is kept of their turns; `blocks` are others than latencies."""
    a, b = blocks or (latency_blocks(rounds.turns[0]), latency_blocks(rounds.turns[subject]))
    return compare(
        a,
        b,
        threshold=threshold,
        noise=noise,
        interfered=rounds.interfered,
        failures=(*rounds.failures, *failures),
        loads=rounds.loads,
        is_reversed=rounds.is_reversed(subject),
        what=what,
    )


def terms_shown(runs: Sequence[InterleavedRun]) -> str:
    """The device and contract of the runs, which may differ from the requested ones."""
    environment = runs[0].environment
    contracts = dict.fromkeys(turns.contract.name for run in runs for turns in run.turns)
    return f"{environment.device.name} with {environment.backend}, contract {' and '.join(contracts)}"


def verdict_record(batch: int | None, comparison: Comparison) -> ComparisonVerdict:
    """A verdict as it goes into files."""
    ratio = comparison.ratio
    return ComparisonVerdict(
        batch=batch,
        verdict=comparison.verdict.value,
        ratio=ratio.value if ratio is not None else None,
        low=ratio.low if ratio is not None else None,
        high=ratio.high if ratio is not None else None,
        reasons=tuple(reason.text for reason in comparison.reasons),
    )


_NAME_DIGITS = 16


def keep_run_spread(device: DeviceInfo, deviation: float, runs: int) -> str:
    """Keep it for a device, in place of an earlier one; a note on what was kept."""
    kept = MeasuredRunSpread(created=now(), device=device, deviation=deviation, runs=runs)
    found = f"{runs} runs of A on {device.name} differ by {deviation:.2%} (standard deviation)"
    try:
        write_atomically(_file_of(device), to_json(kept))
    except OutputError as error:
        return f"{found}; not kept for comparisons of result files and for tuning: {error.problem}"
    return f"{found}; kept for comparisons of result files and for tuning"


def measured_run_spread(device: DeviceInfo) -> MeasuredRunSpread | None:
    """What was kept for a device; None where nothing was, or it cannot be read."""
    try:
        kept = read_versioned(read_bounded(_file_of(device)), MeasuredRunSpread)
    except (OSError, ValueError):
        return None
    return kept if kept.deviation >= 0 and kept.runs > 1 else None


def _file_of(device: DeviceInfo) -> Path:
    """By the device's own number; processors have none, and are known by their names."""
    name = device.uuid or device.name
    return store_folder() / "run-spread" / f"{hashlib.sha256(name.encode()).hexdigest()[:_NAME_DIGITS]}.json"
