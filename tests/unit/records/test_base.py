"""What all records have in common."""

from __future__ import annotations

from trtopt.records.base import Record


class Pass(Record, frozen=True, kw_only=True):
    name: str
    shape: tuple[int, ...]
    latency_ms: list[float]


def test_records_show_all_their_fields_and_only_the_length_of_long_sequences() -> None:
    shown = repr(Pass(name="latency", shape=(8, 3, 224, 224), latency_ms=[0.25] * 4000))
    assert shown == "Pass(name='latency', shape=(8, 3, 224, 224), latency_ms=<4000 items>)"
