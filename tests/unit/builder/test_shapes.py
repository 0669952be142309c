import pytest
from hypothesis import given, strategies as st

from trtopt.builder.shapes import batch_range, shape_ranges
from trtopt.errors import FixedBatchError, UsageError
from trtopt.recipe import Recipe, ShapeFlag, parse_shape_flag
from trtopt.records import OnnxArtifact, Shape, ShapeRange, TensorSpec
from trtopt.requests.shared import parse_batches, parse_shape

Own = tuple[int | str, ...]


def model_with(**inputs: Own) -> OnnxArtifact:
    specs = tuple(TensorSpec(name=name, dtype="float32", shape=shape) for name, shape in inputs.items())
    return OnnxArtifact(path="model.onnx", sha256="0" * 64, opset=17, inputs=specs, outputs=specs)


def only(batch: int) -> ShapeRange:
    return ShapeRange(min=(batch,), opt=(batch,), max=(batch,))


def same(*shape: int) -> ShapeRange:
    return ShapeRange(min=shape, opt=shape, max=shape)


def ranges(model: OnnxArtifact, batch: ShapeRange, *flags: str) -> dict[str, ShapeRange]:
    return shape_ranges(model, batch, Recipe(shapes=dict(map(parse_shape, flags))))


def refused(model: OnnxArtifact, batch: ShapeRange, *flags: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        ranges(model, batch, *flags)
    return caught.value


IMAGES = model_with(images=("batch", 3, 8, 8))
TEXT = model_with(ids=("batch", "length"), mask=("batch", "length"))
FIXED = model_with(images=(4, 3, 8, 8))

# ── --batch ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "batches"),
    [("1", (1,)), ("1,8,32", (1, 8, 32)), (" 32, 1 ,8", (1, 8, 32)), ("8,8,1", (1, 8)), ("008", (8,))],
)
def test_batches_are_sorted_and_without_repeats(text: str, batches: tuple[int, ...]) -> None:
    assert parse_batches(text) == batches


@pytest.mark.parametrize("text", ["0", "1,0", "-1", "", ",", "1,,8", "8,", "eight", "1.5", "1e3", "²", "+8"])
def test_what_is_no_list_of_batch_sizes_is_refused_with_the_text_and_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_batches(text)
    assert f"--batch {text!r}" in caught.value.problem
    assert "--batch 1,8,32" in caught.value.remedy


@pytest.mark.parametrize("text", ["9" * 20, "9" * 5000, "1," + "9" * 5000], ids=["20", "5000", "second"])
def test_a_batch_beyond_what_a_tensor_can_have_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_batches(text)


@given(st.text(st.sampled_from("0123456789,x -.+N"), max_size=12))
def test_any_text_is_a_list_of_batches_from_one_on_or_refused(text: str) -> None:
    try:
        batches = parse_batches(text)
    except UsageError:
        return
    assert list(batches) == sorted(set(batches))
    assert batches[0] >= 1


# ── --shape ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ("ids:Nx128", ("ids", (("N", 128),))),
        ("ids:Nx1,Nx128,Nx512", ("ids", (("N", 1), ("N", 128), ("N", 512)))),
        ("input:0:Nx3x224x224", ("input:0", (("N", 3, 224, 224),))),
        ("table:7", ("table", ((7,),))),
        ("ids:Nx1, Nx2, Nx3", ("ids", (("N", 1), ("N", 2), ("N", 3)))),
    ],
)
def test_a_shape_flag_is_a_name_and_one_or_three_shapes(text: str, flag: ShapeFlag) -> None:
    assert parse_shape_flag(text) == flag


@pytest.mark.parametrize("text", ["ids", ":Nx1", "ids:Nx1,Nx2", "ids:Nx1,Nx2,Nx3,Nx4", "", ":"])
def test_a_flag_of_another_form_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_shape_flag(text)
    assert f"--shape {text!r}: expected NAME:SHAPE or NAME:MIN,OPT,MAX" in caught.value.problem


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("ids:", "''"),
        ("ids:Nx0", "'0'"),
        ("ids:Nx-1", "'-1'"),
        ("ids:Nxlong", "'long'"),
        ("ids:nx1", "'n'"),
        ("ids:Nx1,Nx,Nx3", "''"),
        ("ids:Nx1.5", "'1.5'"),
    ],
)
def test_an_axis_that_is_no_length_is_refused_and_named(text: str, axis: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_shape_flag(text)
    assert f"{axis} is not an axis length" in caught.value.problem


@pytest.mark.parametrize("digits", [20, 5000])
def test_an_axis_beyond_what_a_tensor_can_have_is_refused(digits: int) -> None:
    with pytest.raises(UsageError):
        parse_shape_flag(f"ids:Nx{'9' * digits}")


# ── ranges ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_batch_goes_into_axis_0_and_fixed_axes_stay() -> None:
    assert ranges(IMAGES, only(8)) == {"images": same(8, 3, 8, 8)}


def test_a_range_of_batches_gives_a_range_of_shapes() -> None:
    batch = ShapeRange(min=(1,), opt=(8,), max=(32,))
    built = ranges(IMAGES, batch)["images"]
    assert built == ShapeRange(min=(1, 3, 8, 8), opt=(8, 3, 8, 8), max=(32, 3, 8, 8))
    assert not built.is_fixed


def test_a_dynamic_axis_takes_its_range_from_the_flag_and_its_batch_from_the_engine() -> None:
    built = ranges(TEXT, only(8), "ids:Nx1,Nx128,Nx512", "mask:Nx1,Nx128,Nx512")
    assert built["ids"] == built["mask"] == ShapeRange(min=(8, 1), opt=(8, 128), max=(8, 512))


def test_an_input_without_axes_has_the_empty_shape() -> None:
    assert ranges(model_with(x=("N", 4), scale=()), only(2)) == {"x": same(2, 4), "scale": same()}


def test_an_input_that_fixes_axis_0_keeps_it_where_another_leaves_it_open() -> None:
    assert ranges(model_with(x=("N", 4), table=(100, 4)), only(8)) == {"x": same(8, 4), "table": same(100, 4)}


def test_a_flag_may_repeat_what_the_model_and_the_batch_say() -> None:
    assert ranges(IMAGES, only(8), "images:8x3x8x8") == {"images": same(8, 3, 8, 8)}


@pytest.mark.parametrize(
    ("batches", "low", "best", "high"), [((8,), 8, 8, 8), ((1, 32), 1, 32, 32), ((1, 8, 32), 1, 8, 32)]
)
def test_a_dynamic_engine_is_tuned_for_the_middle_of_three_batches_or_the_larger_of_two(
    batches: tuple[int, ...], low: int, best: int, high: int
) -> None:
    assert batch_range(batches) == ShapeRange(min=(low,), opt=(best,), max=(high,))


def test_more_than_three_batches_for_a_dynamic_engine_are_refused_with_their_number() -> None:
    with pytest.raises(UsageError, match="4 were given"):
        batch_range((1, 2, 4, 8))


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (FIXED, 4),
        (IMAGES, None),
        (model_with(x=("N", 4), table=(100, 4)), None),
        (model_with(scale=()), None),
        (model_with(scale=(), x=(2, 4)), 2),
    ],
    ids=["fixed", "open", "one open", "no axes", "one with axes"],
)
def test_a_model_fixes_its_batch_where_every_input_fixes_axis_0(
    model: OnnxArtifact, batch: int | None
) -> None:
    assert model.fixed_batch == batch


# ── what is refused ─────────────────────────────────────────────────────────────────────────────────────


def test_another_batch_than_the_fixed_one_is_refused_with_the_remedy() -> None:
    with pytest.raises(FixedBatchError) as caught:
        ranges(FIXED, only(8))
    assert "model.onnx: the batch axis is fixed at 4; requested 8" in caught.value.problem
    assert "trtopt rewrite model.onnx --dynamic-batch -o model-dynamic.onnx" in caught.value.remedy
    assert "--batch 4" in caught.value.remedy


def test_a_range_of_batches_on_a_fixed_batch_is_refused_even_if_it_begins_or_ends_there() -> None:
    for batches in ((1, 4), (4, 8), (1, 4, 8)):
        with pytest.raises(FixedBatchError, match=f"requested {batches[0]} to {batches[-1]}"):
            ranges(FIXED, batch_range(batches))


def test_the_fixed_batch_itself_is_taken() -> None:
    assert ranges(FIXED, only(4)) == {"images": same(4, 3, 8, 8)}


def test_an_unknown_input_is_refused_with_the_nearest_name_and_all_names() -> None:
    error = refused(TEXT, only(1), "id:Nx8")
    assert "--shape id: the model has no such input" in error.problem
    assert "did you mean 'ids'?" in error.remedy
    assert "'ids', 'mask'" in error.remedy


def test_an_unknown_input_that_is_like_no_name_is_refused_with_all_names() -> None:
    error = refused(TEXT, only(1), "pixels:Nx8")
    assert "did you mean" not in error.remedy
    assert "'ids', 'mask'" in error.remedy


@pytest.mark.parametrize("shapes", ["Nx9,Nx8,Nx16", "Nx8,Nx17,Nx16", "Nx8,Nx4,Nx16"])
def test_min_above_opt_or_opt_above_max_is_refused_with_the_axis_and_its_lengths(shapes: str) -> None:
    error = refused(TEXT, only(1), f"ids:{shapes}", "mask:Nx8")
    low, best, high = (shape[2:] for shape in shapes.split(","))
    assert f"--shape ids: axis 1 has min {low}, opt {best}, max {high}" in error.problem


@pytest.mark.parametrize(("flag", "axes"), [("ids:N", 1), ("ids:Nx8x8", 3), ("ids:Nx8,Nx8x8,Nx8", 3)])
def test_a_shape_of_another_rank_is_refused_with_both_ranks_and_the_models_shape(
    flag: str, axes: int
) -> None:
    error = refused(TEXT, only(1), flag, "mask:Nx8")
    assert f"--shape ids: {axes} axes given, the model's input has 2" in error.problem
    assert "batchxlength" in error.remedy


def test_a_shape_that_contradicts_a_fixed_axis_is_refused_with_the_axis_and_both_lengths() -> None:
    error = refused(IMAGES, only(1), "images:Nx4x8x8")
    assert "--shape images: axis 1 is 4, the model fixes it at 3" in error.problem


def test_a_batch_other_than_the_engines_in_a_shape_flag_is_refused() -> None:
    error = refused(IMAGES, only(8), "images:4x3x8x8")
    assert "axis 0 is the batch axis and is set by --batch" in error.problem
    assert "write N" in error.remedy
    assert "--batch 4" in error.remedy


def test_a_dynamic_axis_that_no_flag_gives_is_refused_with_the_axis_and_the_flag_to_add() -> None:
    error = refused(TEXT, only(1), "ids:Nx8")
    assert "input 'mask': axis 1 ('length') is dynamic, and its length is not given" in error.problem
    assert "--axis length=MIN,OPT,MAX" in error.remedy


def test_a_batch_behind_the_time_is_told_that_batch_is_of_axis_0() -> None:
    error = refused(model_with(x=("time", "batch", 8)), only(1))
    assert error.problem.endswith("its length is not given; --batch gives that of axis 0 ('time')")
    assert "--axis batch=MIN,OPT,MAX" in error.remedy


# ── properties ──────────────────────────────────────────────────────────────────────────────────────────

AXES = st.one_of(st.integers(1, 9), st.sampled_from(["batch", "length", "?"]))
MODELS = st.lists(st.lists(AXES, max_size=4).map(tuple), min_size=1, max_size=3).map(
    lambda shapes: model_with(**{f"x{index}": shape for index, shape in enumerate(shapes)})
)
BATCHES = st.lists(st.integers(1, 9), min_size=1, max_size=3).map(lambda sizes: batch_range(sorted(sizes)))


def agrees(spec: TensorSpec, shape: Shape) -> bool:
    """Whether a shape has the input's rank and its fixed axes."""
    return len(shape) == len(spec.shape) and all(
        isinstance(own, str) or own == axis for own, axis in zip(spec.shape, shape, strict=True)
    )


def check(model: OnnxArtifact, batch: ShapeRange, built: dict[str, ShapeRange]) -> None:
    """Every range is in order, agrees with the model, and has the batch wherever axis 0 is open."""
    assert list(built) == [spec.name for spec in model.inputs]
    for spec in model.inputs:
        low, best, high = built[spec.name].min, built[spec.name].opt, built[spec.name].max
        assert all(a <= b <= c for a, b, c in zip(low, best, high, strict=True))
        assert all(agrees(spec, shape) for shape in (low, best, high))
        if spec.shape and isinstance(spec.shape[0], str):
            assert (low[0], best[0], high[0]) == (batch.min[0], batch.opt[0], batch.max[0])


def written(flag: ShapeFlag) -> str:
    return f"{flag[0]}:{','.join('x'.join(map(str, shape)) for shape in flag[1])}"


@st.composite
def flags_that_fit(draw: st.DrawFn, model: OnnxArtifact) -> list[ShapeFlag]:
    flags = []
    shared: dict[str, list[int]] = {}
    for spec in model.inputs:
        drawn = {
            index: sorted(draw(st.lists(st.integers(1, 64), min_size=3, max_size=3)))
            for index, axis in enumerate(spec.shape)
            if index and isinstance(axis, str)
        }
        lengths = {
            index: own if (axis := str(spec.shape[index])) == "?" else shared.setdefault(axis, own)
            for index, own in drawn.items()
        }
        shapes = tuple(
            tuple(
                axis if isinstance(axis, int) else "N" if index == 0 else lengths[index][which]
                for index, axis in enumerate(spec.shape)
            )
            for which in range(3)
        )
        if lengths:
            flags.append((spec.name, shapes))
    return flags


@given(st.data(), MODELS, BATCHES)
def test_flags_that_fit_give_ranges_in_order_that_agree_with_the_model(
    data: st.DataObject, model: OnnxArtifact, batch: ShapeRange
) -> None:
    fixed = model.fixed_batch
    batch = batch if fixed is None else only(fixed)
    flags = data.draw(flags_that_fit(model))
    built = ranges(model, batch, *map(written, flags))
    check(model, batch, built)
    for name, shapes in flags:
        assert built[name].min[1:] == shapes[0][1:]
        assert built[name].opt[1:] == shapes[1][1:]
        assert built[name].max[1:] == shapes[2][1:]


FLAG_SHAPES = st.lists(st.one_of(st.integers(1, 9), st.just("N")), min_size=1, max_size=4).map(tuple)
FLAGS = st.lists(
    st.tuples(
        st.sampled_from(["x0", "x1", "x2", "y"]),
        st.one_of(st.tuples(FLAG_SHAPES), st.tuples(FLAG_SHAPES, FLAG_SHAPES, FLAG_SHAPES)),
    ),
    max_size=3,
)


@given(MODELS, BATCHES, FLAGS)
def test_any_flags_give_ranges_that_agree_with_the_model_or_a_typed_error(
    model: OnnxArtifact, batch: ShapeRange, flags: list[ShapeFlag]
) -> None:
    try:
        built = ranges(model, batch, *map(written, flags))
    except (UsageError, FixedBatchError):
        return
    check(model, batch, built)


# ── a recurrent state ───────────────────────────────────────────────────────────────────────────────────


def test_a_later_axis_of_the_batchs_name_is_the_batch() -> None:
    model = model_with(frames=("batch", 80), state=(2, "batch", 128))
    assert ranges(model, ShapeRange(min=(1,), opt=(4,), max=(8,)))["state"] == ShapeRange(
        min=(2, 1, 128), opt=(2, 4, 128), max=(2, 8, 128)
    )


def test_where_first_axes_have_several_names_none_is_taken_for_the_batch_elsewhere() -> None:
    model = model_with(frames=("time", 80), lengths=("batch",), state=(2, "batch", 128))
    assert "input 'state': axis 1 ('batch') is dynamic" in refused(model, only(1)).problem
