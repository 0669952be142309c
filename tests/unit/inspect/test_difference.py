import pytest
from hypothesis import given, strategies as st

from tests.support.inspected import graph, node, profiled
from tests.support.scripted_runs import terms
from trtopt.inspect.difference import difference
from trtopt.inspect.profile import profile_point
from trtopt.records import (
    BenchPoint,
    EngineDifference,
    EngineProfile,
    EngineRef,
    LayerPass,
    Measurement,
    ProfiledLayer,
    Samples,
)

EMPTY = graph(node("Relu", "x", "y"), inputs={"x": (1,)})


def samples(*compute: float) -> Samples:
    times = list(compute)
    return Samples(
        start_ms=times,
        end_ms=times,
        enqueue_ms=times,
        gpu_compute_ms=times,
        h2d_ms=[],
        d2h_ms=[],
        inference_stream=[0] * len(times),
    )


def engine(label: str, *layers: ProfiledLayer) -> EngineProfile:
    from msgspec.structs import replace

    latency = Measurement(
        mode="latency",
        contract=terms("isolated"),
        engine=EngineRef(path="e", sha256=label * 64, label=label),
        batch=1,
        shapes={},
        samples=samples(3.0, 1.0, 2.0),
        staged=samples(3.0, 1.0, 2.0),
        warmups=samples(),
        stop_reason="",
    )
    point = BenchPoint(batch=1, latency=latency, layers=LayerPass(runs=1, layers=()))
    empty = profile_point(point, None, EMPTY, None)
    return replace(empty, layers=layers, sum_ms=sum(layer.ms or 0.0 for layer in layers))


def between(a: list[ProfiledLayer], b: list[ProfiledLayer]) -> EngineDifference:
    return difference(engine("a", *a), engine("b", *b))


def test_the_latency_next_to_the_sum_is_the_median_without_a_profiler() -> None:
    assert engine("a").latency_ms == 2.0


FP16 = profiled("conv + relu", "conv relu", 2.0, dtype="float16", kind="Cask", tactic="t1")


@pytest.mark.parametrize(
    ("other", "change", "detail"),
    [
        ({}, "same", ""),
        ({"tactic": "t2"}, "tactic", "t1 → t2"),
        ({"kind": "gemm", "tactic": "t2"}, "kind", "Cask → gemm"),
        ({"dtype": "int8", "kind": "gemm"}, "type", "float16 → int8"),
        ({"dtype": ""}, "type", "float16 → unknown"),
    ],
)
def test_a_layer_that_covers_the_same_nodes_is_held_against_it_whatever_it_is_called(
    other: dict[str, str], change: str, detail: str
) -> None:
    fields = {"dtype": "float16", "kind": "Cask", "tactic": "t1"} | other
    (found,) = between([FP16], [profiled("__myl_7", "conv relu", 5.0, **fields)]).changes
    assert (found.change, found.detail) == (change, detail)
    assert (found.a, found.b, found.cost_ms) == (("conv + relu",), ("__myl_7",), 3.0)
    assert found.nodes == ("conv", "relu")


def test_a_layer_that_split_and_layers_that_merged() -> None:
    apart = [profiled("conv", "conv", 2.0), profiled("relu", "relu", 1.0)]
    (found,) = between([FP16], apart).changes
    assert (found.change, found.b, found.cost_ms) == ("split", ("conv", "relu"), 1.0)
    (found,) = between(apart, [FP16]).changes
    assert (found.change, found.a, found.cost_ms) == ("merged", ("conv", "relu"), -1.0)
    crossed = [profiled("1", "a b"), profiled("2", "c d")], [profiled("3", "a"), profiled("4", "b c d")]
    (found,) = between(*crossed).changes
    assert found.change == "regrouped"


def test_reformats_go_with_the_layer_that_they_serve() -> None:
    reformat = profiled("Reformatting CopyNode …", "conv relu", 0.5, is_reformat=True)
    (found,) = between([FP16], [FP16, reformat]).changes
    assert (found.change, found.detail, found.cost_ms) == ("same", "1 reformats more in B", 0.5)


def test_layers_that_only_one_engine_has_and_layers_without_nodes() -> None:
    found = between([FP16, profiled("own", "", 1.0)], [profiled("own", "", 4.0), profiled("new", "exp", 9.0)])
    told = {one.a or one.b: (one.change, one.detail, one.cost_ms) for one in found.changes}
    assert told == {
        ("new",): ("only in one", "only in B", 9.0),
        ("own",): ("same", "", 3.0),
        ("conv + relu",): ("only in one", "only in A", -2.0),
    }
    assert [one.cost_ms for one in found.changes] == [9.0, 3.0, -2.0]


LAYERS = st.lists(
    st.tuples(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=3, unique=True), st.floats(0, 10)),
    max_size=6,
)


@given(LAYERS, LAYERS)
def test_all_of_the_time_is_in_the_changes(
    a: list[tuple[list[str], float]], b: list[tuple[list[str], float]]
) -> None:
    sides = [[profiled(f"{n}", " ".join(names), ms) for n, (names, ms) in enumerate(side)] for side in (a, b)]
    found = between(*sides)
    assert sum(one.cost_ms for one in found.changes) == pytest.approx(found.b_ms - found.a_ms)
    assert sorted(name for one in found.changes for name in one.a) == sorted(one.name for one in sides[0])
