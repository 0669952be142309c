"""What a file says of its inputs and outputs: as far as it can be so."""

from typing import Any

import pytest

from tests.support.typed_graphs import NORMALISE, conv, file_of, typed
from trtopt.records.tensors import TypedTensor, read_io_request
from trtopt.rewrite.typed_io.recorded import record, recorded_in
from trtopt.rewrite.typed_io.typed_graph import type_graph


def test_a_file_does_not_claim_a_format_that_only_engines_have() -> None:
    typing = type_graph(file_of(conv()), read_io_request({"x": "fp16:hwc8"}, {}, None))
    assert [one.layout for one in typing.tensors] == ["hwc8"]
    assert [one.layout for one in recorded_in(typing.model.proto)] == ["nchw"]


def test_metadata_on_an_input_of_no_type_is_ignored() -> None:
    made = typed(conv(), {"x": "fp16"})
    made.graph.input[0].ClearField("type")
    assert recorded_in(made) == ()


@pytest.mark.parametrize(
    "change",
    [
        {"std": (1.0, 0.0, 1.0)},
        {"mean": (1.0,)},
        {"scale": -1.0},
        {"layout": "nchw4"},
        {"role": "output"},
        {"dtype": "float32"},
    ],
)
def test_metadata_that_cannot_be_true_is_ignored(change: dict[str, Any]) -> None:
    made = typed(conv(), {"x": "fp16"}, {"x": NORMALISE})
    (said,) = recorded_in(made)
    fields = {name: getattr(said, name) for name in said.__struct_fields__}
    record(made, [TypedTensor(**fields | change)])
    assert recorded_in(made) == ()
