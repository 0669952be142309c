"""Seeded inputs: axes of one name are of one length, formulas hold, and a model is not asked too much."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import trtopt
from tests.rewrite_graphs import model
from trtopt.data import SampleSource
from trtopt.data.feeds import inputs_of, seeded, seeded_source, specs_of
from trtopt.data.random_inputs import lengths_of
from trtopt.errors import ModelError
from trtopt.onnxio import model_file
from trtopt.rewrite.rewrite import rewrite_model

_DECODER = """
    # table: float[20,4]
    g (float[N,1,4] x, float[N,2,P,4] past, float[N,M] mask) => (float[N,2,M,4] y)
    <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}>
    {
        long = Shape<start = 2, end = 3>(past)
        next = Add(long, one)
        place = Slice(table, long, next, zero)
        here = Add(x, place)
        head = Unsqueeze(here, one)
        heads = Concat<axis = 1>(head, head)
        grown = Concat<axis = 2>(past, heads)
        seen = Unsqueeze(mask, one)
        tall = Unsqueeze(seen, three)
        y = Mul(grown, tall)
    }"""
"""One step of a decoder with a mask over the cache and the new token, and 20 positions."""


def _decoder(folder: Path, positions: int) -> Path:
    proto = model(_DECODER.replace("[20,4]", f"[{positions},4]"))
    by_name = {item.name: item for item in (*proto.graph.input, *proto.graph.output)}
    by_name["mask"].type.tensor_type.shape.dim[1].dim_param = "P + 1"
    by_name["y"].type.tensor_type.shape.dim[2].dim_param = "P + 1"
    onnx.save(proto, folder / "decoder.onnx")
    return folder / "decoder.onnx"


def _lengths(source: SampleSource, file: Path) -> list[tuple[int, int]]:
    specs = specs_of(onnx.load(file))
    return [(feed["past"].shape[2], feed["mask"].shape[1]) for feed in source.batches(specs, 8)]


def test_a_name_has_one_length_wherever_it_stands_and_the_first_place_decides() -> None:
    assert lengths_of([("N", 3), ("time", 24), ("time", 96), ("N", 24)]) == {"N": 3, "time": 24}


@pytest.mark.parametrize(
    ("formula", "length"),
    [
        ("past + 1", 97),
        ("1 + past", 97),
        ("2*past", 192),
        ("past - 1", 95),
        ("past//2", 48),
        ("past + N", 99),
    ],
)
def test_a_formula_has_the_value_that_its_names_give_it(formula: str, length: int) -> None:
    assert lengths_of([(formula, 24), ("N", 3), ("past", 96)])[formula] == length


def test_names_that_only_a_formula_knows_get_the_length_of_its_place() -> None:
    assert lengths_of([("new + past", 24), ("past", 96)]) == {"past": 96, "new": 24, "new + past": 120}


@pytest.mark.parametrize(
    "name", ["past-length", "past length", "max(past, 1)", "past//0", "past//N", "past/2", "-1", "N.1", "+"]
)
def test_what_is_no_formula_is_a_name(name: str) -> None:
    assert lengths_of([(name, 24), ("past", 96), ("length", 7), ("N", 3)])[name] == 24


def test_a_formula_without_a_length_above_zero_falls_back_on_its_place() -> None:
    assert lengths_of([("N - 1", 24), ("N", 1)])["N - 1"] == 24


def test_a_fixed_length_that_an_exporter_wrote_as_a_name_is_that_length() -> None:
    assert lengths_of([("8", 24)]) == {"8": 8}


def test_inputs_keep_to_what_their_names_tie_together(tmp_path: Path) -> None:
    proto = onnx.load(_decoder(tmp_path, 1000))
    assert [item.name for item in inputs_of(proto)] == ["x", "past", "mask"]
    for feed in seeded(proto):
        assert feed.values["mask"].shape[1] == feed.values["past"].shape[2] + 1


def test_a_model_gets_the_usual_lengths_if_it_runs_on_them(tmp_path: Path) -> None:
    file = _decoder(tmp_path, 97)
    assert _lengths(seeded_source(model_file.load(file)), file) == [(64, 65), (96, 97)]


def test_a_model_whose_positions_end_sooner_gets_shorter_ones(tmp_path: Path) -> None:
    file = _decoder(tmp_path, 96)
    assert _lengths(seeded_source(model_file.load(file)), file) == [(32, 33), (48, 49)]


def test_a_model_that_runs_on_neither_is_refused_with_the_runtimes_words(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="ONNX Runtime cannot run the model"):
        seeded_source(model_file.load(_decoder(tmp_path, 20)))


def test_rewriting_and_casting_choose_alike(tmp_path: Path) -> None:
    file = _decoder(tmp_path, 50)
    trace = rewrite_model(file, tmp_path / "out.onnx", target="8.6")
    assert {item.feed for item in trace.checked} == {
        "seed 0, small (1x1x4, 1x2x32x4, 1x33)",
        "seed 0, large (3x1x4, 3x2x48x4, 3x49)",
    }
    assert trtopt.cast(file, tmp_path / "cast.onnx", precision="fp16").samples == 4


_WINDOWED = """
    # w: float[4,1,400]
    g (float[N,S] sound) => (float[N,4,M] y) <int64[1] one = {1}>
    {channel = Unsqueeze(sound, one) padded = Conv(channel, w) y = Relu(padded)}"""
"""A model of audio: its first convolution needs 400 samples."""


def test_a_model_of_audio_gets_a_whole_window(tmp_path: Path) -> None:
    onnx.save(model(_WINDOWED), tmp_path / "audio.onnx")
    source = seeded_source(model_file.load(tmp_path / "audio.onnx"))
    assert [feed["sound"].shape for feed in source.batches(specs_of(model(_WINDOWED)), 8)] == [
        (1, 512),
        (3, 640),
    ]


def test_a_recurrent_state_without_names_has_the_batch_of_the_other_inputs() -> None:
    proto = model("g (float[N,6] x, float[2,S,8] state) => (float[N,6] y) {y = Relu(x)}")
    for item in proto.graph.input:
        for axis in item.type.tensor_type.shape.dim:
            if axis.HasField("dim_param"):
                axis.dim_param = "?"
    assert [(feed.values["x"].shape[0], feed.values["state"].shape[1]) for feed in seeded(proto)] == [
        (1, 1),
        (3, 3),
    ]
