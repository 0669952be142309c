import msgspec
from hypothesis import given, strategies as st

from trtopt.inspect.profile import timeline
from trtopt.records import AllocationEvent, MemoryPass, MemoryTimeline
from trtopt.report.profile import memory_lines

MIB = 1 << 20


def passed(*calls: tuple[str, str, int, int], driver: int | None = None, activations: int = 64) -> MemoryPass:
    """Calls as (phase, kind, size, address), a millisecond apart."""
    events = tuple(
        AllocationEvent(at_ms=float(n), kind=kind, size_bytes=size, address=address, phase=phase)  # type: ignore[arg-type]
        for n, (phase, kind, size, address) in enumerate(calls)
    )
    return MemoryPass(
        events=events, buffers_bytes=16, engine_device_bytes=activations, driver_used_bytes=driver
    )


LIFE = (
    ("load", "allocate", 100, 1),
    ("load", "allocate", 500, 2),
    ("load", "deallocate", 500, 2),
    ("context and buffers", "allocate", 64, 3),
    ("run", "allocate", 300, 4),
    ("run", "deallocate", 300, 4),
    ("run", "allocate", 200, 4),
    ("run", "deallocate", 200, 4),
    ("unload", "deallocate", 64, 3),
    ("unload", "deallocate", 100, 1),
)


def test_the_peak_has_its_phase_its_time_and_what_was_live() -> None:
    found = timeline(passed(*LIFE))
    assert (found.peak_bytes, found.peak_phase) == (600, "load")
    assert found.at_peak_bytes == {"weights": 600}
    assert (found.leaked_bytes, found.failed_bytes) == ((), ())
    assert found.live_bytes == [100, 600, 100, 164, 464, 164, 364, 164, 100, 0]
    assert found.at_ms == [float(n) for n in range(10)]


def test_every_phase_has_its_own_peak_over_what_earlier_ones_left() -> None:
    found = timeline(passed(*LIFE)).peak_by_phase
    assert found == {"load": 600, "context and buffers": 164, "run": 464, "unload": 164}


def test_live_allocations_are_labelled_by_phase_and_size() -> None:
    found = timeline(passed(LIFE[0], LIFE[3], LIFE[4]))
    assert [*found.at_peak_bytes.items()] == [("scratch", 300), ("weights", 100), ("activations", 64)]


def test_what_the_driver_sees_beyond_is_the_remainder() -> None:
    assert timeline(passed(*LIFE, driver=1000)).remainder_bytes == 1000 - 164 - 16
    assert timeline(passed(*LIFE)).remainder_bytes is None


def test_what_was_never_released_is_a_leak() -> None:
    found = timeline(passed(*LIFE[:-1]))
    assert found.leaked_bytes == (100,)


def test_an_allocator_out_of_memory_leaves_the_timeline_up_to_there() -> None:
    found = timeline(passed(LIFE[0], ("context and buffers", "allocate", 10**12, 0)))
    assert (found.peak_bytes, found.failed_bytes) == (100, (10**12,))
    assert found.peak_by_phase["context and buffers"] == 100


def test_reallocations_and_strange_addresses_change_nothing() -> None:
    odd = ("run", "reallocate", 999, 0), ("run", "deallocate", 999, 77), ("run", "deallocate", 1, 0)
    assert timeline(passed(LIFE[0], *odd)).peak_bytes == 100


def test_no_events_are_an_empty_timeline() -> None:
    found = timeline(passed())
    assert (found.peak_bytes, found.peak_phase, found.peak_by_phase) == (0, "", {})
    assert memory_lines(found)[0].startswith("memory: TensorRT's allocations peak at 0.00 MiB in none")


def test_a_timeline_is_reported_with_what_went_wrong() -> None:
    calls = [(phase, kind, size * MIB, address) for phase, kind, size, address in LIFE[:-1]]
    made: MemoryTimeline = timeline(
        passed(*calls, ("unload", "allocate", MIB, 0), driver=200 * MIB, activations=64 * MIB)
    )
    text = "\n".join(memory_lines(made))
    assert "peak at 600.00 MiB in load (weights 600.00 MiB)" in text
    assert "context and buffers 164.00 MiB, run 464.00 MiB" in text
    assert (
        "the driver reports 200.00 MiB: weights 100.00 MiB, activations 64.00 MiB, "
        "inputs and outputs 0.00 MiB, and 36.00 MiB (18.0%) outside TensorRT's allocator"
    ) in text
    assert "no memory for 1 allocations, first 1.00 MiB" in text
    assert "never freed: 1 allocations, 100.00 MiB" in text


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5), st.integers(0, 1000)), max_size=40))
def test_the_peak_is_the_largest_of_all_phases_and_what_is_live_adds_up(
    steps: list[tuple[bool, int, int]],
) -> None:
    live: dict[int, int] = {}
    calls, peak = [], 0
    for is_new, address, size in steps:
        if is_new and address not in live:
            live[address] = size
            calls.append(("run", "allocate", size, address))
        elif not is_new and address in live:
            calls.append(("run", "deallocate", live.pop(address), address))
        peak = max(peak, sum(live.values()))
    found = timeline(passed(*calls))
    assert found.peak_bytes == peak == sum(found.at_peak_bytes.values())
    assert sum(found.leaked_bytes) == sum(live.values())
    assert max(found.peak_by_phase.values(), default=0) == peak


def test_contexts_made_to_be_measured_raise_neither_the_peak_nor_what_is_held() -> None:
    more = ("more contexts", "allocate", 9000, 7), ("more contexts", "deallocate", 9000, 7)
    found = timeline(passed(*LIFE[:-2], *more, *LIFE[-2:], driver=1000))
    assert (found.peak_bytes, found.peak_phase) == (600, "load")
    assert found.peak_by_phase["more contexts"] == 9164
    assert found.held_bytes == {"weights": 100, "activations": 64, "inputs and outputs": 16}
    assert found.remainder_bytes == 1000 - 180


def test_contexts_host_memory_and_an_early_end_are_reported() -> None:
    made = msgspec.structs.replace(
        passed(*LIFE),
        context_bytes=(MIB, 2 * MIB),
        engine_file_bytes=3 * MIB,
        host_bytes=4 * MIB,
        failure="out of memory",
    )
    text = "\n".join(memory_lines(timeline(made)))
    assert "each further execution context: 1.00 MiB, 2.00 MiB" in text
    assert "engine file 3.00 MiB; host memory grew by 4.00 MiB" in text
    assert "ended early: out of memory" in text
