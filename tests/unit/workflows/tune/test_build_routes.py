"""Internal options of TensorRT's builder, as its JSON lists them."""

from __future__ import annotations

import json

import pytest

from trtopt.workflows.tune.engine_kinds import single_options, with_option

LISTED = json.dumps(
    {
        "tuner_version": "1.0",
        "tuner_options": [
            {"option": "-fuse", "allowed_values": "bool [0|1]", "default_value": "1", "help": ""},
            {"option": "-level", "allowed_values": "[low | mid|high]", "default_value": "mid", "help": ""},
            {"option": "-size", "allowed_values": "int [0|1|...]", "default_value": "0", "help": ""},
            {"option": "-name", "allowed_values": "any text", "default_value": "", "help": ""},
        ],
    }
)


def test_each_closed_option_is_tried_with_its_other_values() -> None:
    assert single_options(LISTED) == ("-fuse=0", "-level=low", "-level=high")


@pytest.mark.parametrize(
    "listed", ["", "no JSON", "[]", "{}", '{"tuner_options": [1]}', '{"tuner_options": 1}']
)
def test_a_list_of_another_form_holds_nothing(listed: str) -> None:
    assert single_options(listed) == ()


def test_an_option_takes_the_place_of_another_value_of_it() -> None:
    assert with_option(None, "-a=1") == "-a=1"
    assert with_option("-a=0 -b=2", "-a=1") == "-b=2 -a=1"
