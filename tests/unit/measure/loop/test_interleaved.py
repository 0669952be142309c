"""Subjects in turns on the scripted device: times are virtual, so every figure is known."""

import hashlib
from itertools import repeat
from pathlib import Path

import msgspec
import pytest

from tests.support import examples
from tests.support.scripted_device.device import Script, ScriptedDevice, ScriptedTarget
from tests.support.scripted_runs import calls_of, terms
from trtopt.errors import ArtifactError, DeviceError, DeviceMemoryError
from trtopt.measure.analysis.gap_ledger import evaluate_gap, gap_variants
from trtopt.measure.engine import LoadedEngine
from trtopt.measure.loop.interleaved import (
    BLOCK_QUERIES,
    SWITCH_QUERIES,
    InterleaveJob,
    Variant,
    interleave,
    is_reload_due,
    latency_blocks,
    notes_of,
    valid_rounds,
)
from trtopt.measure.statistics.comparison import MIN_LOADS, Verdict, compare, in_turns
from trtopt.records import DeviceInfo, InterleavedRun

ENGINE = b"an engine"
SCRIPTED = DeviceInfo(kind="scripted", name="scripted device")
PAIR = (
    Variant(name="A", engine=0, contract=terms("trtexec-11")),
    Variant(name="B", engine=1, contract=terms("trtexec-11")),
)


def job_in(folder: Path, variants: tuple[Variant, ...] = PAIR, rounds: int = 10) -> InterleaveJob:
    path = folder / "batch8.engine"
    path.write_bytes(ENGINE)
    plan = msgspec.structs.replace(examples.plan(), backend=ScriptedTarget.backend)
    artifact = msgspec.structs.replace(
        examples.engine(), plan=plan, sha256=hashlib.sha256(ENGINE).hexdigest(), device=SCRIPTED
    )
    engine = LoadedEngine(path=str(path), artifact=artifact, batch=8, shapes={"x": (8, 4)})
    return InterleaveJob(
        label="batch8",
        engines=(engine,) * (1 + max(variant.engine for variant in variants)),
        variants=variants,
        rounds=rounds,
        purpose="comparison",
        data=None,
        warmup_s=0.0,
        block_s=0.0,
    )


def play(device: ScriptedDevice, job: InterleaveJob) -> InterleavedRun:
    return interleave(
        ScriptedTarget(device), job, examples.report().environment, lambda phase, fraction: None
    )


def test_every_subject_has_a_block_a_round_and_its_queries_after_a_switch_are_no_samples(
    tmp_path: Path,
) -> None:
    device = ScriptedDevice(Script())
    run = play(device, job_in(tmp_path, rounds=3))
    assert [turns.name for turns in run.turns] == ["A", "B"]
    for turns in run.turns:
        assert [len(block.latency_ms) for block in turns.blocks] == [BLOCK_QUERIES] * 3
        settled, *switches = turns.warmups
        assert len(settled.latency_ms) >= 20
        assert len(switches) == 3 + 2  # and after each load but the first
        assert all(len(switch.latency_ms) >= SWITCH_QUERIES for switch in switches)
    assert len(run.clocks) == 2 * 3 + 1
    assert device.open == 0


def test_the_same_engine_twice_is_two_sessions_that_share_nothing(tmp_path: Path) -> None:
    device = ScriptedDevice(Script())
    run = play(device, job_in(tmp_path, rounds=1))
    assert [one.round for one in run.loadings] == [0]
    assert device.calls.count("load") == 2
    assert device.calls.count("context") == 2


def test_subjects_are_loaded_again_in_random_orders_and_their_reverses(tmp_path: Path) -> None:
    """Virtual loads take no time but their warm-up's: there is time for one in every round or two."""
    device = ScriptedDevice(Script(compute_ms=repeat(100.0)))
    job = msgspec.structs.replace(job_in(tmp_path, rounds=20), seed=1)
    run = play(device, job)
    assert len(run.loadings) >= 10
    assert device.calls.count("load") == 2 * len(run.loadings)
    orders = [one.order for one in run.loadings]
    assert all(sorted(order) == [0, 1] for order in orders)
    assert [order[::-1] for order in orders[::2]][: len(orders[1::2])] == orders[1::2]
    assert len(set(orders[::2])) == 2
    loads = valid_rounds(run).loads
    assert [loads.index(number) for number in range(len(run.loadings))] == [one.round for one in run.loadings]
    assert [load for load in loads if load == 0] != list(loads)


def test_slow_queries_get_fewer_rounds_but_the_least(tmp_path: Path) -> None:
    """A turn of 8 queries of a second takes 8 s, where one may take 2 s on average."""
    job = msgspec.structs.replace(job_in(tmp_path, rounds=40), block_s=1.0, least_rounds=5)
    slow = play(ScriptedDevice(Script(compute_ms=repeat(1000.0))), job)
    assert [len(turns.blocks) for turns in slow.turns] == [9, 9]
    assert len(slow.order) == 18
    assert len(slow.loadings) >= MIN_LOADS
    slower = play(ScriptedDevice(Script(compute_ms=repeat(5000.0))), job)
    assert [len(turns.blocks) for turns in slower.turns] == [5, 5]
    quick = play(ScriptedDevice(Script(compute_ms=repeat(10.0))), job)
    assert [len(turns.blocks) for turns in quick.turns] == [40, 40]


def test_which_of_two_was_loaded_first_is_known_of_every_round(tmp_path: Path) -> None:
    run = play(ScriptedDevice(Script(compute_ms=repeat(100.0))), job_in(tmp_path, rounds=20))
    rounds = valid_rounds(run)
    orders = [run.loadings[load].order for load in rounds.loads]
    assert rounds.is_reversed() == [order == (1, 0) for order in orders]
    assert valid_rounds(msgspec.structs.replace(run, loadings=())).is_reversed() is None


def test_a_job_may_keep_its_first_load(tmp_path: Path) -> None:
    job = msgspec.structs.replace(job_in(tmp_path), reloads=False)
    device = ScriptedDevice(Script())
    run = play(device, job)
    assert (len(run.loadings), device.calls.count("load")) == (1, 2)
    a, b = map(latency_blocks, valid_rounds(run).turns)
    assert compare(a, b, loads=valid_rounds(run).loads).verdict is Verdict.UNDECIDED


def test_loading_takes_no_more_than_its_share_but_for_the_loads_that_are_needed() -> None:
    """Rounds of 0.3 s: loads of 0.1 s fit in each, of 0.3 s in every second, of 9 s in four of twenty."""
    assert [_loads(seconds) for seconds in (0.0, 0.1, 0.3, 9.0)] == [20, 20, 10, 4]


def _loads(seconds: float, rounds: int = 20) -> int:
    again: list[float] = []
    for number in range(rounds):
        if is_reload_due(number, rounds, again, 0.3 * number):
            again.append(seconds)
    return 1 + len(again)


def test_in_every_round_each_has_a_turn_and_each_round_has_its_reverse() -> None:
    order = in_turns(3, 8, seed=1)
    rounds = [order[start : start + 3] for start in range(0, 24, 3)]
    assert all(sorted(one) == [0, 1, 2] for one in rounds)
    assert sorted(rounds) == sorted(one[::-1] for one in rounds)
    assert len(in_turns(3, 3, seed=1)) == 9


def test_the_order_of_turns_is_what_was_run_and_is_in_the_record_with_its_seed(tmp_path: Path) -> None:
    """The device gets slower query by query: the blocks' own latencies tell who came when."""
    slowing = Script(compute_ms=(1.01**number for number in range(10_000)))
    job = msgspec.structs.replace(job_in(tmp_path, rounds=6), seed=3)
    run = play(ScriptedDevice(slowing), job)
    assert (run.seed, run.order) == (3, in_turns(2, 6, 3))
    blocks = [(min(ms), index) for index, turns in enumerate(run.turns) for ms in latency_blocks(turns)]
    assert tuple(index for _, index in sorted(blocks)) == run.order


def test_every_job_has_an_order_of_its_own(tmp_path: Path) -> None:
    assert job_in(tmp_path).seed != job_in(tmp_path).seed


def test_a_drifting_machine_does_not_make_equal_sides_differ(tmp_path: Path) -> None:
    """Each query takes 0.02 % longer than the one before it: 20 % from the first block to the last."""
    drifting = Script(compute_ms=(1.0002**number for number in range(100_000)))
    a, b = play(ScriptedDevice(drifting), job_in(tmp_path, rounds=20)).turns
    blocks = latency_blocks(a), latency_blocks(b)
    first, last = (pick(side[at][0] for side in blocks) for pick, at in ((min, 0), (max, -1)))
    assert last > 1.19 * first  # whichever side is first or last in the drawn order
    assert compare(*blocks).verdict in (Verdict.SAME, Verdict.UNDECIDED)


def test_latency_and_throughput_of_a_gap_are_known_exactly(tmp_path: Path) -> None:
    """Enqueueing takes 0.2 ms, computing 1 ms, a copy 0.1 ms each way; queued, only the GPU's time counts."""
    start, end = terms("trtexec-10"), terms("trtexec-11")
    device = ScriptedDevice(Script(enqueue_ms=repeat(0.2), compute_ms=repeat(1.0), h2d_ms=0.1, d2h_ms=0.1))
    job = job_in(tmp_path, gap_variants(start, end), rounds=3)
    gap = evaluate_gap(8, start, end, valid_rounds(play(device, job)))
    assert device.open == 0
    assert gap.latency.start_ms == pytest.approx(1.3)
    assert gap.latency.end_ms == pytest.approx(1.2)
    by_term = {entry.term: entry.explained_us for entry in gap.latency.entries}
    assert by_term == pytest.approx({"graph": 0.0, "transfers": -100.0, "sync": 0.0}, abs=1e-3)
    assert gap.latency.unexplained_us == pytest.approx(0.0, abs=1e-3)


def failing(folder: Path) -> list[tuple[str, int]]:
    calls = calls_of(lambda device: play(device, job_in(folder, rounds=1)))
    return sorted({(name, 1) for name, _ in calls} | set(calls[-40:]) | set(calls[:60]))


def test_whatever_call_fails_everything_is_released(tmp_path: Path) -> None:
    job = job_in(tmp_path, rounds=1)
    cases = failing(tmp_path)
    assert len(cases) > 50
    for call in cases:
        device = ScriptedDevice(Script(fail_at=call))
        with pytest.raises(DeviceError, match="scripted failure"):
            play(device, job)
        assert (device.open, device.used) == (0, 0), call


def test_a_device_that_falls_away_leaves_full_rounds_marked_and_without_a_verdict(tmp_path: Path) -> None:
    """The very last query fails: one subject has had its tenth turn, the other has not."""
    job = job_in(tmp_path, rounds=10)
    whole = ScriptedDevice(Script(compute_ms=repeat(1.0)))
    play(whole, job)
    last = ("launch", whole.calls.count("launch"))
    device = ScriptedDevice(Script(compute_ms=repeat(1.0), fail_at=last))
    run = play(device, job)
    assert (device.open, device.used) == (0, 0)
    assert run.failure == "scripted failure of launch"
    assert sorted(len(turns.blocks) for turns in run.turns) == [9, 10]
    assert len(run.clocks) == 2 * 10
    evaluated = valid_rounds(run)
    a, b = map(latency_blocks, evaluated.turns)
    assert (len(a), len(b)) == (9, 9)
    slower = [[2 * latency for latency in block] for block in b]
    assert compare(a, slower).verdict is Verdict.SLOWER
    found = compare(a, slower, failures=evaluated.failures)
    assert found.verdict is Verdict.UNDECIDED
    assert [reason.text for reason in found.reasons] == [
        "the device failed in the middle: scripted failure of launch"
    ]
    assert "nothing came after" in notes_of([run])[0]


def test_running_out_of_memory_says_how_many_share_it(tmp_path: Path) -> None:
    with pytest.raises(DeviceMemoryError, match="2 subjects that take turns") as caught:
        play(ScriptedDevice(Script(memory_bytes=250)), job_in(tmp_path))
    assert "--builds" in caught.value.remedy


def test_a_changed_engine_is_not_loaded(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    (tmp_path / "batch8.engine").write_bytes(b"another engine")
    with pytest.raises(ArtifactError, match="was not loaded"):
        play(ScriptedDevice(Script()), job)


def test_an_engine_without_graphs_runs_without_and_reports_it(tmp_path: Path) -> None:
    run = play(ScriptedDevice(Script(graphs=False)), job_in(tmp_path, rounds=1))
    assert {turns.contract.name for turns in run.turns} == {"trtexec-11+no-graph"}
    assert all("measured without a CUDA graph" in turns.notes[0] for turns in run.turns)
