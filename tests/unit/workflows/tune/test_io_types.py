"""Types and formats of inputs and outputs: from conversions and copies in the profile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.inspected import graph, node, profiled
from tests.support.trt_exercise import VERSIONS, target
from tests.support.tuning import evidence, gain, proposed, situation
from trtopt.recipe import Recipe, io_request
from trtopt.records import EngineTensor
from trtopt.rewrite.typed_io.requested import check_formats
from trtopt.workflows.tune.graph_kinds import IO_TYPES

CHW32 = "Thirty-two wide channel vectorized row major FP16 format"
QUANTISED = graph(
    node("QuantizeLinear", "x s", "q"), node("DequantizeLinear", "q s", "y"), inputs={"x": (8, 4), "s": ()}
)


def reformat(name: str, made: str = "", ms: float = 1.0, *, output: bool = False) -> object:
    own, other = EngineTensor(name=name), EngineTensor(name="inner", format=made)
    inputs, outputs = ((other,), (own,)) if output else ((own,), (other,))
    return profiled("reformat", "", ms, is_reformat=True, inputs=inputs, outputs=outputs)


def shown(*layers: object, **fields: object) -> object:
    return evidence(*layers, profiled("rest", "y", 9.0), **fields)  # type: ignore[arg-type]


def test_the_format_that_a_conversion_makes_is_tried_with_its_share_of_the_time() -> None:
    found = proposed(IO_TYPES, situation("tensorrt-rtx", "1.7", evidence=shown(reformat("x", CHW32))))
    assert [*found] == ["io x=fp16", "io x=fp16:chw32"]
    assert found["io x=fp16:chw32"].recipe == {"io": {"x": "fp16:chw32"}}
    assert gain(found["io x=fp16:chw32"]) == pytest.approx(0.8 * 0.1)
    assert "10.0%" in found["io x=fp16:chw32"].evidence


def test_samples_keep_their_layout() -> None:
    made = reformat("x", "Channel major FP16 format")
    shape = {"x": (8, 3, 4, 4)}
    given = situation(
        "tensorrt-rtx", "1.7", evidence=shown(made, of=graph(node("Relu", "x", "y"), inputs=shape))
    )
    assert "io x=fp16:nhwc" in proposed(IO_TYPES, given)
    assert "io x=fp16:nhwc" not in proposed(IO_TYPES, replace(given, data="samples.npz"))


def test_what_is_not_converted_or_copied_stays_as_it_is() -> None:
    assert proposed(IO_TYPES, situation(evidence=shown())) == {}
    assert proposed(IO_TYPES, situation()) == {}
    typed = situation(evidence=shown(reformat("x")), recipe=Recipe(io={"x": "fp16"}))
    assert proposed(IO_TYPES, typed) == {}


def test_copies_shrink_with_the_type() -> None:
    found = proposed(IO_TYPES, situation(evidence=shown(), copied={"y": 0.2}))
    assert [*found] == ["io y=fp16"]
    assert gain(found["io y=fp16"]) == pytest.approx(0.1)


def test_an_input_that_is_quantised_first_is_taken_in_int8() -> None:
    given = situation(
        evidence=shown(reformat("x"), of=QUANTISED), selected="int8", recipe=Recipe(precision="best")
    )
    int8 = proposed(IO_TYPES, given)["io x=int8"]
    assert int8.recipe == {"io": {"x": "int8"}, "precision": "int8", "verdict": False}
    assert int8.makes_graph
    assert not any("int8" in name for name in proposed(IO_TYPES, replace(given, selected="int8.part1")))


@pytest.mark.parametrize("dump", VERSIONS)
def test_every_format_is_one_of_the_target(dump: str) -> None:
    version = dump.rpartition("-")[2]
    given = situation(
        target(dump).backend,
        version,
        evidence=shown(reformat("x"), reformat("y", output=True), of=QUANTISED),
    )
    found = proposed(IO_TYPES, given)
    assert len(found) > 4
    for change in found.values():
        check_formats(io_request(Recipe(**change.recipe)), target(dump), in_engine=True)
