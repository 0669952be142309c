import json
import os
import re
import types
import typing
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache, partial
from typing import Annotated, Any, Literal, Union

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from tests.support import examples
from trtopt import records
from trtopt.builder import timing_cache
from trtopt.recipe import Recipe
from trtopt.records import (
    BenchReport,
    BuildPlan,
    CompareReport,
    Job,
    MachineSurvey,
    Manifest,
    Record,
    Samples,
    ShapeRange,
    SweepReport,
    from_json,
    to_json,
)
from trtopt.workers import jobs

WHOLE: dict[type[Record], Record] = {
    Manifest: examples.manifest(),
    BenchReport: examples.report(),
    CompareReport: examples.comparison(),
    SweepReport: examples.sweep(),
    MachineSurvey: examples.survey(),
}
Place = tuple[str | int, ...]


def subclasses(kind: type[Record]) -> set[type[Record]]:
    return {kind}.union(*map(subclasses, kind.__subclasses__()))


# ── round trips ─────────────────────────────────────────────────────────────────────────────────────────

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    bytes: st.binary(),
    type(None): st.none(),
}


@cache
def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Any value that a field of this type may have."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in SIMPLE:
        return SIMPLE[kind]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return records_of(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(kind)
    if origin is Annotated:  # a figure with bounds: all admit a share
        return st.floats(0.01, 0.99)
    if origin in (Union, types.UnionType):
        return st.one_of(*map(values_of, arguments))
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=2)
    if origin is tuple and arguments[1:] == (...,):
        return st.lists(values_of(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments))
    if origin is dict:
        return st.dictionaries(*map(values_of, arguments), max_size=2)
    raise NotImplementedError(f"no strategy for {kind}")


@cache
def records_of(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{field: values_of(hints[field]) for field in kind.__struct_fields__})


@pytest.mark.parametrize("kind", WHOLE)
def test_a_whole_record_survives_its_json_form(kind: type[Record]) -> None:
    assert from_json(to_json(WHOLE[kind]), kind) == WHOLE[kind]


@pytest.mark.parametrize("kind", WHOLE)
@settings(max_examples=15)
@given(data=st.data(), indent=st.sampled_from([None, 2]))
def test_any_record_survives_its_json_form(
    kind: type[Record], data: st.DataObject, indent: int | None
) -> None:
    record = data.draw(records_of(kind))
    assert from_json(to_json(record, indent=indent), kind) == record


def test_the_json_form_is_utf_8_text_with_a_closing_newline() -> None:
    survey = msgspec.structs.replace(examples.survey(), cpu="Prozessor Größe 1")
    for indent in (None, 2):
        text = to_json(survey, indent=indent).decode("utf-8")
        assert text.endswith("}\n")
        assert "Größe" in text
        assert json.loads(text)["cpu"] == "Prozessor Größe 1"
        assert text.count("\n") == 1 if indent is None else text.count("\n") > 10


def test_an_argument_that_is_not_utf_8_can_be_recorded() -> None:
    manifest = msgspec.structs.replace(examples.manifest(), argv=("trtopt", os.fsdecode(b"mod\xff.onnx")))
    assert from_json(to_json(manifest), Manifest).onnx == manifest.onnx


def test_files_say_which_schema_they_follow() -> None:
    assert json.loads(to_json(examples.manifest()))["schema"] == "trtopt.build/8"
    assert json.loads(to_json(examples.report()))["schema"] == "trtopt.bench/6"


# ── strict reading ──────────────────────────────────────────────────────────────────────────────────────


def objects_in(kind: Any, value: Any, place: Place = ()) -> Iterator[tuple[Place, type[msgspec.Struct]]]:
    """Where the JSON form of a record holds the JSON forms of other records, and of which."""
    if isinstance(value, msgspec.Struct):
        yield place, type(value)
        for field in value.__struct_fields__:
            yield from objects_in(None, getattr(value, field), (*place, field))
    elif isinstance(value, tuple | list):
        for index, item in enumerate(value):
            yield from objects_in(None, item, (*place, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from objects_in(None, item, (*place, key))


OBJECTS = [
    pytest.param(kind, place, inner, id=f"{kind.__name__}-{'.'.join(map(str, place)) or 'itself'}")
    for kind, record in WHOLE.items()
    for place, inner in {
        (inner, *(step for step in place if isinstance(step, str))): (place, inner)  # one of a list
        for place, inner in objects_in(kind, record)
    }.values()
]


def at(document: Any, place: Place) -> Any:
    for step in place:
        document = document[step]
    return document


def shown(kind: type[Record], place: Place) -> str:
    """A place as messages show it: `$.engines[...].plan`; keys of a dict are `[...]` too."""
    path, record = "$", WHOLE[kind]
    current: Any = record
    for step in place:
        path += f".{step}" if isinstance(current, msgspec.Struct) else "[...]"
        current = getattr(current, str(step)) if isinstance(current, msgspec.Struct) else current[step]
    return path


def refused(kind: type[Record], document: Any) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        from_json(json.dumps(document).encode(), kind)
    assert type(caught.value) is ValueError
    return re.sub(r"\[\d+\]", "[...]", str(caught.value))  # whether indices are shown is msgspec's affair


@cache
def _whole_json(kind: type[Record]) -> bytes:
    return to_json(WHOLE[kind], indent=None)


def changed(kind: type[Record], place: Place, change: Callable[[dict[str, Any]], object]) -> Any:
    """The JSON form of the whole record with `change` made to the object at a place."""
    document = json.loads(_whole_json(kind))
    change(at(document, place))
    return document


def leave_out(name: str, target: dict[str, Any]) -> None:
    del target[name]


def set_to(name: str, value: Any, target: dict[str, Any]) -> None:
    target[name] = value


@pytest.mark.parametrize(("kind", "place", "inner"), OBJECTS)
def test_an_unknown_field_is_refused_with_its_name_and_place(
    kind: type[Record], place: Place, inner: type[msgspec.Struct]
) -> None:
    message = refused(kind, changed(kind, place, partial(set_to, "bogus", 1)))
    assert "unknown field `bogus`" in message
    if place:
        assert f"`{shown(kind, place)}`" in message


@pytest.mark.parametrize(("kind", "place", "inner"), OBJECTS)
def test_a_missing_field_is_refused_with_its_name_and_place(
    kind: type[Record], place: Place, inner: type[msgspec.Struct]
) -> None:
    for field in msgspec.structs.fields(inner):
        document = changed(kind, place, partial(leave_out, field.name))
        if field.required:
            message = refused(kind, document)
            assert f"missing required field `{field.name}`" in message
            if place:
                assert f"`{shown(kind, place)}`" in message
        else:
            read = from_json(json.dumps(document).encode(), kind)
            default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
            assert getattr(at_record(read, place), field.name) == default


def at_record(record: Any, place: Place) -> Any:
    for step in place:
        record = getattr(record, str(step)) if isinstance(record, msgspec.Struct) else record[step]
    return record


@pytest.mark.parametrize(("kind", "place", "inner"), OBJECTS)
def test_a_value_of_the_wrong_type_is_refused_with_its_place(
    kind: type[Record], place: Place, inner: type[msgspec.Struct]
) -> None:
    hints = typing.get_type_hints(inner)
    for name in inner.__struct_fields__:
        for wrong in ({"wrong": {"deeper": []}}, [[[[]]]], *([] if hints[name] is bool else [True])):
            message = refused(kind, changed(kind, place, partial(set_to, name, wrong)))
            assert f"`{shown(kind, place)}.{name}" in message


@pytest.mark.parametrize(
    "text",
    [b"", b"null", b"[]", b"{", b"{}", b"NaN", b'{"schema": "x"} {}', b"\xff", b"\x00", b"hello"],
)
@pytest.mark.parametrize("kind", WHOLE)
def test_what_is_no_such_record_is_refused(kind: type[Record], text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(text, kind)


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"schema":', b'{"notes":[', b'{"argv":['])
def test_deep_nesting_is_refused(kind: type[Record], opening: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(opening * 200_000, kind)


@pytest.mark.parametrize("kind", WHOLE)
def test_every_cut_of_a_records_json_form_is_refused(kind: type[Record]) -> None:
    text = to_json(WHOLE[kind], indent=None).rstrip()
    for end in range(len(text)):
        with pytest.raises(ValueError, match=r"."):
            from_json(text[:end], kind)


def test_every_record_is_frozen_and_strict_and_takes_its_fields_by_name() -> None:
    for kind in subclasses(Record) - {Record, Job}:
        assert kind.__struct_config__.frozen, kind
        assert kind.__struct_config__.forbid_unknown_fields, kind
        with pytest.raises(TypeError, match="positional"):
            kind(*[None] * len(kind.__struct_fields__))


def test_the_records_of_all_packages_are_known_here() -> None:
    homes = {kind.__module__ for kind in subclasses(Record)}
    assert {
        records.build.__name__,
        records.bench.__name__,
        jobs.__name__,
        timing_cache.__name__,
        Recipe.__module__,
    } <= homes


# ── plans ───────────────────────────────────────────────────────────────────────────────────────────────


def leaves(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    items = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    )
    if items is None:
        yield place, value
    else:
        for key, item in items:
            yield from leaves(item, (*place, key))


def with_leaf(place: Place, leaf: Any) -> BuildPlan:
    document = json.loads(to_json(examples.plan()))
    at(document, place[:-1])[place[-1]] = leaf
    return from_json(json.dumps(document).encode(), BuildPlan)


def test_the_key_of_a_plan_changes_with_every_field() -> None:
    document = json.loads(to_json(examples.plan()))
    places = dict(leaves(document))
    fields = {field for _, kind in objects_in(None, examples.plan()) for field in kind.__struct_fields__}
    assert fields == {step for place in places for step in place} & fields
    keys = {examples.plan().key}
    for place, leaf in places.items():
        keys.add(with_leaf(place, type(leaf)(1 - leaf) if isinstance(leaf, int) else leaf + "'").key)
    assert len(keys) == len(places) + 1


def test_the_key_of_a_plan_changes_when_a_setting_is_left_out() -> None:
    plan = examples.plan()
    keys = {plan.key}
    fields = msgspec.structs.fields(plan.settings)
    for field in fields:
        without = msgspec.structs.replace(plan.settings, **{field.name: field.default})
        keys.add(msgspec.structs.replace(plan, settings=without).key)
    assert len(keys) == len(fields) + 1


def test_the_key_of_a_plan_changes_with_the_name_of_an_input() -> None:
    plan = examples.plan()
    renamed = {"y" if name == "x" else name: shape for name, shape in plan.shapes.items()}
    assert msgspec.structs.replace(plan, shapes=renamed).key != plan.key


def test_the_key_of_a_plan_does_not_depend_on_the_order_of_its_shapes() -> None:
    plan = examples.plan()
    turned = msgspec.structs.replace(plan, shapes=dict(reversed(plan.shapes.items())))
    assert list(turned.shapes) != list(plan.shapes)
    assert turned.key == plan.key


def test_the_key_of_a_plan_survives_its_json_form() -> None:
    assert from_json(to_json(examples.plan()), BuildPlan).key == examples.plan().key


def test_a_plan_is_labelled_by_its_batches() -> None:
    plan = examples.plan()
    assert plan.label == "batch8"
    spread = ShapeRange(min=(1,), opt=(8,), max=(32,))
    assert msgspec.structs.replace(plan, batch=spread, multi_profile=()).label == "batch1-8-32"


def test_a_range_is_fixed_where_it_admits_one_shape() -> None:
    assert ShapeRange(min=(8, 3), opt=(8, 3), max=(8, 3)).is_fixed
    assert not ShapeRange(min=(8, 3), opt=(8, 3), max=(8, 4)).is_fixed


# ── samples ─────────────────────────────────────────────────────────────────────────────────────────────


def samples(starts: list[float], ends: list[float]) -> Samples:
    return Samples(
        start_ms=starts,
        end_ms=ends,
        enqueue_ms=[],
        gpu_compute_ms=[],
        h2d_ms=[],
        d2h_ms=[],
        inference_stream=[],
    )


def test_latency_is_from_handing_over_the_input_to_having_the_output() -> None:
    assert samples([0.0, 1.0, 2.5], [2.0, 4.0, 8.0]).latency_ms == [2.0, 3.0, 5.5]


def test_the_wall_time_is_from_the_first_start_to_the_last_end_whatever_their_order() -> None:
    assert samples([3.0, 1.0, 2.0], [9.0, 12.0, 4.0]).wall_ms == 11.0


def test_the_pauses_between_groups_take_no_time() -> None:
    paused = msgspec.structs.replace(
        samples([0.0, 1.0, 9.0, 10.0], [1.5, 2.5, 10.0, 11.0]), group=[0, 0, 3, 3]
    )
    assert paused.wall_ms == 2.5 + 2.0


def test_no_queries_take_no_time() -> None:
    assert samples([], []).latency_ms == []
    assert samples([], []).wall_ms == 0.0


def test_samples_with_more_starts_than_ends_have_no_latency() -> None:
    with pytest.raises(ValueError, match="zip"):
        _ = samples([0.0, 1.0], [2.0]).latency_ms


# ── sweeps ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_key_of_a_point_changes_with_the_terms_and_with_what_is_set() -> None:
    terms, setting = examples.sweep_terms(), examples.sweep_point().setting
    others = [
        msgspec.structs.replace(setting, **change)
        for change in ({"precision": None}, {"batch": 9}, {"streams": 1}, {"axes": {"seq": 5}})
    ]
    keys = {one.key(terms) for one in (setting, *others)}
    keys |= {
        setting.key(msgspec.structs.replace(terms, **change)) for change in ({"recipe": ""}, {"data": None})
    }
    assert len(keys) == 7


def test_samples_per_joule_are_samples_a_second_over_watts() -> None:
    point = examples.sweep_point()
    assert point.samples_per_joule == 8000.0 / 250.0
    assert msgspec.structs.replace(point, watts=None).samples_per_joule is None
    assert msgspec.structs.replace(point, samples_per_s=None).samples_per_joule is None
