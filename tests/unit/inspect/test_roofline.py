import msgspec
import pytest
from hypothesis import given, strategies as st

from tests.support.inspected import profiled
from trtopt.inspect.peaks import peaks_of
from trtopt.inspect.roofline import floor_of, furthest_above, total, with_floors
from trtopt.records import DevicePeaks, LayerCost, Peak, ProfiledLayer

PEAKS = DevicePeaks(
    device="a device",
    bandwidth=Peak(value=1e9, source="here"),
    flops={"float32": Peak(value=1e10, source="here"), "float16": Peak(value=4e10, source="here")},
)


def costing(name: str, flops: int, moved: int, ms: float | None = 1.0, **rest: object) -> ProfiledLayer:
    return profiled(name, ms=ms, cost=LayerCost(flops=flops, bytes_moved=moved), **rest)


@pytest.mark.parametrize(
    ("flops", "moved", "dtype", "floor_ms", "bound"),
    [
        (20_000_000, 1_000_000, "float32", 2.0, "compute"),
        (20_000_000, 1_000_000, "float16", 1.0, "memory"),
        (80_000_000, 1_000_000, "float16", 2.0, "compute"),
        (80_000_000, 1_000_000, "int8", 2.0, "compute"),  # no rate for it: the fastest
        (0, 3_000_000, "float32", 3.0, "memory"),
    ],
)
def test_the_floor_is_the_longer_of_computing_and_moving(
    flops: int, moved: int, dtype: str, floor_ms: float, bound: str
) -> None:
    found = floor_of(LayerCost(flops=flops, bytes_moved=moved), dtype, PEAKS)
    assert (found.floor_ms, found.bound) == (pytest.approx(floor_ms), bound)


def test_a_device_that_is_not_in_the_table_gives_no_floor() -> None:
    cost = LayerCost(flops=1, bytes_moved=1)
    assert peaks_of("a device") is None
    assert floor_of(cost, "float32", None) == cost
    layers = with_floors([costing("1", 1, 1)], None)
    assert furthest_above(layers) == ()
    assert total(layers).floor_ms is None


def test_where_no_rate_could_be_measured_the_bandwidth_alone_gives_the_floor() -> None:
    bare = msgspec.structs.replace(PEAKS, flops={})
    found = floor_of(LayerCost(flops=80_000_000, bytes_moved=1_000_000), "float32", bare)
    assert (found.floor_ms, found.bound) == (pytest.approx(1.0), "memory")


def test_a_layer_is_costed_in_the_type_that_it_ran_in_and_else_in_the_one_requested() -> None:
    ran = costing("1", 80_000_000, 0, dtype="float32", requested_dtype="float16")
    hidden = costing("2", 80_000_000, 0, dtype="", requested_dtype="float16")
    floors = [layer.cost.floor_ms for layer in with_floors([ran, hidden], PEAKS) if layer.cost]
    assert floors == [pytest.approx(8.0), pytest.approx(2.0)]


def test_the_layers_furthest_above_their_floor_come_first_and_reformats_count_whole() -> None:
    layers = with_floors(
        [
            costing("at its floor", 0, 1_000_000, 1.0),
            costing("long but near", 0, 9_000_000, 10.0),
            costing("short but far", 0, 1_000_000, 4.0),
            profiled("reformat", ms=2.0, is_reformat=True),
            profiled("no cost", ms=50.0),
            costing("below its floor", 0, 5_000_000, 1.0),
            costing("never timed", 0, 5_000_000, None),
        ],
        PEAKS,
    )
    assert furthest_above(layers) == ("short but far", "reformat", "long but near")
    assert furthest_above(layers, count=1) == ("short but far",)


def test_the_whole_models_floor_and_how_much_of_the_time_it_speaks_of() -> None:
    layers = with_floors(
        [
            costing("1", 10, 1_000_000, 4.0),
            costing("2", 5, 2_000_000, 3.0),
            profiled("reformat", ms=1.0, is_reformat=True),
            profiled("no cost", ms=2.0),
        ],
        PEAKS,
    )
    found = total(layers)
    assert (found.flops, found.bytes_moved, found.measured_ms) == (15, 3_000_000, 10.0)
    assert found.floor_ms == pytest.approx(3.0)
    assert found.costed_share == pytest.approx(0.8)


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.sampled_from(["float32", "float16", "", "int4"]))
def test_a_floor_is_below_neither_of_its_parts(flops: int, moved: int, dtype: str) -> None:
    floor_ms = floor_of(LayerCost(flops=flops, bytes_moved=moved), dtype, PEAKS).floor_ms
    assert floor_ms is not None
    assert floor_ms >= moved / 1e9 * 1e3 * (1 - 1e-12)
    assert floor_ms >= flops / 4e10 * 1e3 * (1 - 1e-12)
