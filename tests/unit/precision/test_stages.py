"""A model is cut into stages that share no node and hand on just what those behind them read."""

from __future__ import annotations

import onnx
import pytest

from tests.rewrite_graphs import model
from trtopt.precision.running import Stage, cut

FLOAT = onnx.TensorProto.FLOAT
LADDER = """g (float[N,8] x) => (float[N,8] y)
    {a = Neg(x) i = Cast<to=7>(a) b = Exp(a) c, d = Split<axis=1>(b) e = Neg(d) f = Cast<to=1>(i)
     y = Add(f, x)}"""
TYPES = {**dict.fromkeys("abcdefy", FLOAT), "i": onnx.TensorProto.INT64}


def made(stages: tuple[Stage, ...]) -> list[list[str]]:
    return [[name for node in stage.proto.graph.node for name in node.output] for stage in stages]


def outputs(stages: tuple[Stage, ...]) -> list[set[str]]:
    return [{item.name for item in stage.proto.graph.output} for stage in stages]


def test_no_node_is_in_two_stages_and_what_is_read_later_is_handed_on() -> None:
    stages = cut(model(LADDER), [["x", "a"], ["b", "c"], ["d", "e"], ["f", "y"]], TYPES)
    assert made(stages) == [["a"], ["i", "b", "c", "d"], ["e"], ["f", "y"]]
    assert outputs(stages) == [{"a"}, {"b", "c", "d", "i"}, {"e"}, {"f", "y"}]
    assert [stage.reads for stage in stages] == [{"x"}, {"x", "a"}, {"x", "d"}, {"x", "i"}]
    assert [stage.later for stage in stages] == [{"a"}, {"d", "i"}, {"i"}, frozenset()]


def test_the_last_stage_hands_on_nothing_and_one_stage_is_the_whole() -> None:
    (stage,) = cut(model(LADDER), [list("abcdefy")], TYPES)
    assert (made((stage,))[0], stage.later) == ([*"aibcdefy"], frozenset())
    assert stage.reads == {"x"}


@pytest.mark.parametrize(("untyped", "stage"), [("d", 1), ("i", 2)])
def test_what_has_no_known_type_is_made_again_where_it_is_read(untyped: str, stage: int) -> None:
    types = {name: kind for name, kind in TYPES.items() if name != untyped}
    stages = cut(model(LADDER), [["b"], ["e"], ["y"]], types)
    assert untyped in made(stages)[stage]
    assert untyped not in set().union(*(one.reads | one.later for one in stages))
