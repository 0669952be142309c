import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from tests.support.inspected import graph, node, profiled
from tests.support.scripted_runs import terms
from trtopt.inspect.explanation import difference, differences
from trtopt.inspect.profile import profile_point
from trtopt.records import (
    BenchPoint,
    EngineDifference,
    EngineProfile,
    EngineRef,
    KernelFamily,
    KernelReport,
    KernelRow,
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
    empty = profile_point(point, (), EMPTY, None)
    return replace(empty, layers=layers, sum_ms=sum(layer.ms or 0.0 for layer in layers))


def between(a: list[ProfiledLayer], b: list[ProfiledLayer]) -> EngineDifference:
    return difference(engine("a", *a), engine("b", *b))


def test_the_latency_next_to_the_sum_is_the_median_without_a_profiler() -> None:
    assert engine("a").latency_ms == 2.0


def part(name: str, nodes: str, ms: float, op: str = "Conv", **rest: object) -> ProfiledLayer:
    """A layer of one operator; `kind` names it where layers are compared."""
    names = nodes.split()
    return profiled(name, nodes, ms, kind=name, onnx_ops=(op,) * len(names), **rest)


def costs(a: list[ProfiledLayer], b: list[ProfiledLayer]) -> dict[str, float]:
    """Causes that change anything, but for the latency, which stays the same here."""
    causes = between(a, b).causes
    return {one.cause: one.cost_ms for one in causes if one.cost_ms and not one.cause.startswith("gaps")}


CONV = part("conv", "conv relu", 2.0, dtype="float16")
PLANTED = {
    "products, float16 → int8: slower": ([CONV], [part("gemm", "conv relu", 5.0, dtype="int8")]),
    "products, float16 → float32: slower": ([CONV], [part("gemm", "conv relu", 5.0, dtype="float32")]),
    "fusions that B lost: pointwise work that A has within products": (
        [CONV],
        [part("conv", "conv", 2.0, dtype="float16"), part("relu", "relu", 3.0, "Relu")],
    ),
    "reformats, Q and DQ": ([CONV], [CONV, part("q", "q", 3.0, "QuantizeLinear")]),
    "products that only A merges": (
        [part("qkv", "q k v", 2.0, "MatMul")],
        [part(name, name, ms, "MatMul") for name, ms in zip("qkv", (3.0, 1.0, 1.0), strict=True)],
    ),
    "normalisation, float16 → float32: wider in B": (
        [part("norm", "norm", 1.0, "LayerNormalization", dtype="float16")],
        [part("norm", "norm", 4.0, "LayerNormalization", dtype="float32")],
    ),
    "pooling": ([part("pool", "pool", 1.0, "MaxPool")], [part("pool", "pool", 4.0, "MaxPool")]),
    "copies": ([CONV], [CONV, part("concat", "concat", 3.0, "Concat")]),
    "unknown": (
        [part("{ForeignNode[a]}", "a b", 1.0, is_opaque=True)],
        [part("{ForeignNode[a]}", "a b", 4.0, is_opaque=True)],
    ),
}


@pytest.mark.parametrize("cause", PLANTED)
def test_a_planted_cause_is_the_only_one_that_costs_and_nothing_else_is_alleged(cause: str) -> None:
    a, b = PLANTED[cause]
    assert costs(a, b) == {cause: pytest.approx(3.0)}
    assert costs(a, a) == costs(b, b) == {}


def test_what_costs_has_its_remedy_and_what_gains_has_none() -> None:
    (lost,) = (one for one in between(*PLANTED["products that only A merges"]).causes if one.remedy)
    assert "qkv=merged" in lost.remedy
    assert not any(one.remedy for one in between(*reversed(PLANTED["products that only A merges"])).causes)


def kernels(*rows: KernelRow) -> KernelReport:
    total = sum(row.own_ms for row in rows)
    return KernelReport(
        runs=1, graph=True, dropped=0, different_runs=0, rows=rows, by_name=(), sum_ms=total, busy_ms=total,
        gap_ms=0.25, latency_ms=None, remainder_ms=None, unknown_ms=0.0,
    )  # fmt: skip


def row(family: KernelFamily, nodes: str, ms: float, name: str = "") -> KernelRow:
    return KernelRow(
        kind="kernel", name=name or family, family=family, start_ms=0.0, ms=ms, gap_ms=0.0, layer="foreign",
        nodes=tuple(nodes.split()),
    )  # fmt: skip


def opaque(label: str, *rows: KernelRow) -> EngineProfile:
    """One layer that hides a product, the GELU behind it and an attention."""
    layer = profiled("foreign", "fc erf q softmax v", 9.0, is_opaque=True)
    return replace(engine(label, layer), kernels=kernels(*rows))


def named(a: EngineProfile, b: EngineProfile) -> list[str]:
    return [one.cause for one in difference(a, b).causes if one.b_ms > one.a_ms and one.b_parts]


def test_a_gelu_within_a_hidden_product_is_a_fusion_unless_a_kernel_of_unknown_nodes_may_have_it() -> None:
    apart = opaque("b", row("product", "fc", 2.0), row("pointwise", "erf", 1.0))
    fused = opaque("a", row("product", "fc", 2.0))
    assert named(fused, apart) == ["fusions that B lost: pointwise work that A has within products"]
    assert named(opaque("a", row("product", "fc", 2.0), row("pointwise", "", 0.5)), apart) == ["pointwise"]


@pytest.mark.parametrize(("hidden", "is_fusion"), [("MulMinMaxRouCas", True), ("MulErf", False), ("", False)])
def test_a_kernel_of_unknown_nodes_has_no_erf_that_its_name_lacks(hidden: str, is_fusion: bool) -> None:
    """What the product takes less without the GELU counts with it."""
    unknown = row("pointwise", "", 0.5, f"__myl_bb0_4_{hidden}" if hidden else "kernel")
    fused = opaque("a", unknown, row("product", "fc", 2.0))
    gelu = row("pointwise", "erf", 1.0, "__myl_bb0_3_DivErfAddMul")
    found = difference(fused, opaque("b", unknown, row("product", "fc", 1.25), gelu)).causes
    lost = [one.cost_ms for one in found if one.cause.startswith("fusions that B lost")]
    assert lost == ([0.25] if is_fusion else [])


def test_a_layer_that_runs_its_activation_in_a_kernel_of_its_own_has_not_fused_it() -> None:
    """Kernels of a layer that hides nothing serve all of its nodes."""
    two = opaque("a", row("product", "fc erf", 2.0), row("pointwise", "fc erf", 1.0))
    assert not any(one.cost_ms for one in difference(two, two).causes)
    assert named(two, opaque("b", row("product", "fc", 2.0), row("pointwise", "erf", 2.0))) == ["pointwise"]


def test_an_attention_of_one_kernel_against_its_products_is_one_cause() -> None:
    whole = opaque("a", row("attention", "q softmax v", 1.0))
    apart = opaque("b", row("product", "q", 1.0), row("softmax", "softmax", 1.0), row("product", "v", 1.0))
    assert named(whole, apart) == ["attention that only A has in one kernel"]
    assert named(whole, opaque("b", row("attention", "q softmax v", 2.0))) == ["attention"]


GATE = "gates of squeeze-and-excitation that B has in float between INT8"


def test_a_gate_in_float_is_a_cause_with_the_reformats_around_it() -> None:
    fast = engine("a", part("mul", "pool fc mul", 1.0, "Mul", dtype="int8"))
    slow = engine("b", part("pool", "pool", 1.0, "GlobalAveragePool"), part("fc", "fc", 1.0),
                  part("mul", "mul", 1.0, "Mul"), part("r", "mul", 1.0, is_reformat=True))  # fmt: skip
    in_float = replace(slow, float_gates=("pool", "fc", "mul"))
    (cause,) = (one for one in difference(fast, in_float).causes if one.cost_ms > 0)
    assert (cause.cause, cause.cost_ms, cause.options) == (GATE, 3.0, {"forms": ("gates=int8",)})
    assert GATE not in [one.cause for one in difference(in_float, in_float).causes]


def test_gaps_are_what_the_latency_without_the_tracer_has_beyond_kernels() -> None:
    def with_gap(ms: float) -> EngineProfile:
        return replace(opaque("a"), kernels=replace(kernels(row("product", "fc", 1.5)), gap_ms=ms))

    (gaps,) = (
        one for one in difference(with_gap(0.25), with_gap(4.0)).causes if one.cause.startswith("gaps")
    )
    assert (gaps.a_ms, gaps.b_ms) == (0.5, 0.5)  # of a latency of 2 ms


def test_parts_whose_nodes_are_called_otherwise_are_known_by_their_kernels() -> None:
    assert costs([CONV, part("gemm", "old", 1.0)], [CONV, part("gemm", "new", 1.0)]) == {}


def test_layers_whose_counterpart_is_hidden_are_not_alleged_to_be_on_one_side_only() -> None:
    hidden = part("foreign", "conv relu fc", 4.0, is_opaque=True)
    apart = [CONV, part("fc", "fc", 1.0, "MatMul", dtype="float16")]
    assert costs(apart, [hidden]) == {"unknown": 1.0}
    assert costs([hidden], apart) == {"unknown": -1.0}


def test_where_one_side_recorded_no_kernel_layers_are_compared() -> None:
    found = difference(opaque("a", row("product", "fc", 2.0)), opaque("b"))
    assert found.parts == "layers"
    assert not any(one.cost_ms for one in found.causes)


def test_what_was_replaced_is_the_costliest_first_and_once_for_all_blocks() -> None:
    a = [part("t1", f"block.{n}/conv", 1.0) for n in range(3)] + [part("same", "exp", 9.0, "Exp")]
    b = [part("t2", f"block.{n}/conv", 2.0) for n in range(3)] + [part("same", "exp", 1.0, "Exp")]
    (found,) = between(a, b).replaced
    assert (found.nodes, found.a, found.b, found.blocks) == (("block.*/conv",), ("t1",), ("t2",), 3)
    assert found.cost_ms == 3.0


def test_only_batch_sizes_that_both_were_timed_at_are_explained() -> None:
    eight = replace(engine("a", CONV), batch=8)
    assert [one.batch for one in differences([engine("a", CONV), eight], [eight, engine("b")])] == [8]


LAYERS = st.lists(
    st.tuples(
        st.lists(st.sampled_from("abcdef"), min_size=1, max_size=3, unique=True),
        st.floats(0, 10),
        st.sampled_from(("MatMul", "Relu", "Cast", "Softmax", "Custom")),
        st.sampled_from(("", "int8", "float16", "float32")),
        st.booleans(),
    ),
    max_size=6,
).map(
    lambda side: [
        part(f"{n}", " ".join(names), ms, op, dtype=dtype, is_opaque=is_opaque)
        for n, (names, ms, op, dtype, is_opaque) in enumerate(side)
    ]
)


@given(LAYERS, LAYERS)
def test_causes_add_up_to_both_latencies(a: list[ProfiledLayer], b: list[ProfiledLayer]) -> None:
    found = between(a, b)
    assert found.a_ms == found.b_ms == 2.0
    assert sum(one.a_ms for one in found.causes) == pytest.approx(2.0)
    assert sum(one.b_ms for one in found.causes) == pytest.approx(2.0)
    assert sum(one.a_parts for one in found.causes) == sum(bool(layer.ms) for layer in a)


@given(LAYERS)
def test_nothing_is_alleged_of_an_engine_against_itself(layers: list[ProfiledLayer]) -> None:
    found = between(layers, layers)
    assert not found.replaced
    for cause in found.causes:
        assert (cause.cost_ms, cause.remedy) == (0.0, "")
        assert not {"only", "slower", "faster", "wider", "lost"} & {*cause.cause.split()}
