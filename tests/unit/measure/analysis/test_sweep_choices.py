import csv
import io

from tests.support import examples
from tests.support.sweeps import point, report_of, spread
from trtopt.measure.analysis.sweep_choices import choices_of, is_decided_busy
from trtopt.measure.analysis.sweep_table import COLUMNS, csv_of
from trtopt.records import PointMemory, PointPower


def test_the_front_knee_and_bests_are_those_of_p99_and_throughput() -> None:
    points = [point(1, 1.0, 100.0), point(2, 1.2, 190.0), point(4, 3.0, 180.0), point(8, 4.0, 200.0)]
    (choices,) = choices_of(report_of(*points))
    assert choices.front == (points[0], points[1], points[3])
    assert choices.knee == points[1]
    assert choices.bests == ((1.0, points[0]), (2.0, points[1]), (5.0, points[3]))


def test_points_at_other_lengths_are_other_work() -> None:
    short = [point(1, 1.0, 100.0, axes={"seq": 8}), point(2, 2.0, 90.0, axes={"seq": 8})]
    long = [point(1, 10.0, 10.0, axes={"seq": 64})]
    first, second = choices_of(report_of(*short, *long))
    assert (first.axes, first.front) == ({"seq": 8}, (short[0],))
    assert (second.axes, second.front) == ({"seq": 64}, tuple(long))


def test_precisions_and_batch_sizes_compete_on_one_front() -> None:
    slow, fast = point(8, 2.0, 100.0), point(8, 1.0, 200.0, precision="int8")
    (choices,) = choices_of(report_of(slow, fast))
    assert choices.front == (fast,)


def test_several_streams_are_evaluated_by_latency_under_full_load() -> None:
    one = point(1, 1.0, 100.0, busy_latency=spread(2.0))
    two = point(1, 1.0, 150.0, busy_latency=spread(4.0), streams=2)
    assert is_decided_busy(report_of(one, two))
    (choices,) = choices_of(report_of(one, two))
    assert choices.costs_ms == (2.0, 4.0)
    assert choices.front == (one, two)
    assert not is_decided_busy(report_of(one))


def test_too_few_queries_for_a_p99_are_evaluated_by_the_slowest() -> None:
    few = point(1, None, 100.0, latency=spread(None, 7.0))
    (choices,) = choices_of(report_of(few))
    assert choices.costs_ms == (7.0,)


def test_points_without_figures_take_no_part() -> None:
    failed = point(4, 1.0, 1000.0, failure="out of memory")
    unrated = point(2, 1.0, None)
    assert choices_of(report_of(failed, unrated)) == ()
    (choices,) = choices_of(report_of(failed, unrated, point(1, 2.0, 10.0)))
    assert [one.setting.batch for one in choices.points] == [1]


def test_what_is_not_trustworthy_is_recommended_only_where_nothing_is() -> None:
    doubtful = point(8, 1.0, 900.0, untrustworthy=("the clock fell",))
    (choices,) = choices_of(report_of(point(1, 2.0, 100.0), doubtful))
    assert [one.setting.batch for one in choices.points] == [1, 8]
    assert [one.setting.batch for one in choices.front] == [1]
    assert [best.setting.batch for _, best in choices.bests] == [1]
    (alone,) = choices_of(report_of(doubtful))
    assert alone.front == (doubtful,)


def test_a_latency_of_zero_is_none() -> None:
    assert choices_of(report_of(point(1, 0.0, 100.0))) == ()


# ── the table of figures ────────────────────────────────────────────────────────────────────────────────


def rows_of(text: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text.decode())))


def test_a_row_holds_all_figures_of_a_point_and_nothing_for_what_is_unknown() -> None:
    (row,) = rows_of(csv_of(examples.sweep()))
    assert tuple(row) == COLUMNS
    whole = {
        name: row[name] for name in ("label", "precision", "batch", "streams", "axes", "samples_per_joule")
    }
    assert whole == {
        "label": "fp16 batch8 seq=4 streams2",
        "precision": "fp16",
        "batch": "8",
        "streams": "2",
        "axes": "seq=4",
        "samples_per_joule": "32.0",
    }
    assert all(row.values())
    (bare,) = rows_of(csv_of(report_of(point(1, None, None, latency=None, busy_latency=None, failure="x"))))
    known = {name for name, value in bare.items() if value}
    assert known == {"label", "precision", "batch", "streams", "queries", "failure"}


def test_failures_of_several_lines_stay_one_row() -> None:
    told = 'first, "second"\nthird'
    (row,) = rows_of(csv_of(report_of(point(1, 1.0, 1.0, failure=told))))
    assert row["failure"] == told


def test_memory_and_power_are_distinguished_by_their_columns() -> None:
    memory = PointMemory(peak_bytes=3, buffers_bytes=2, context_bytes=1)
    power = PointPower(watts=4.0, source="power readings")
    (row,) = rows_of(csv_of(report_of(point(1, 1.0, 8.0, memory=memory, power=power))))
    names = ("memory_bytes", "buffers_bytes", "context_bytes", "watts", "watts_from", "samples_per_joule")
    assert [row[name] for name in names] == ["3", "2", "1", "4.0", "power readings", "2.0"]
