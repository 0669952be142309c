import re

import pytest

from trtopt.builder.shapes import by_own_names, shape_ranges, shapes_at
from trtopt.errors import UsageError
from trtopt.recipe import Recipe
from trtopt.records import Backend, BuildPlan, BuildSettings, OnnxArtifact, ShapeRange, TensorSpec
from trtopt.requests.shared import parse_shape


def model(**shapes: tuple[int | str, ...]) -> OnnxArtifact:
    inputs = tuple(TensorSpec(name=name, dtype="int64", shape=shape) for name, shape in shapes.items())
    return OnnxArtifact(path="m.onnx", sha256="a" * 64, opset=17, inputs=inputs, outputs=(), types=())


def ranges(onnx: OnnxArtifact, axes: dict[str, tuple[int, ...]], *flags: str) -> dict[str, ShapeRange]:
    batch = ShapeRange(min=(2,), opt=(2,), max=(2,))
    return shape_ranges(onnx, batch, Recipe(shapes=dict(map(parse_shape, flags)), axes=axes))


def plan_of(onnx: OnnxArtifact, axes: dict[str, tuple[int, ...]]) -> BuildPlan:
    return BuildPlan(
        onnx_sha256=onnx.sha256,
        batch=ShapeRange(min=(2,), opt=(2,), max=(2,)),
        shapes=ranges(onnx, axes),
        settings=BuildSettings(),
        backend=Backend(name="onnxruntime", version="1.20"),
    )


def between(low: int, best: int, high: int) -> ShapeRange:
    return ShapeRange(min=(2, low), opt=(2, best), max=(2, high))


BERT = model(ids=("N", "seq"), mask=("N", "seq"), table=(4, 8))


def test_an_axis_has_its_range_in_every_input_that_has_it() -> None:
    built = ranges(BERT, {"seq": (1, 128, 512)})
    assert built["ids"] == built["mask"] == between(1, 128, 512)
    assert built["table"].is_fixed


def test_one_length_fixes_the_axis() -> None:
    assert ranges(BERT, {"seq": (64,)})["mask"] == between(64, 64, 64)


def test_an_anonymous_axis_is_given_by_its_place() -> None:
    built = ranges(model(x=("N", 3, "?", "?")), {"x.2": (224,), "x.3": (96, 192, 256)})
    assert built["x"] == ShapeRange(min=(2, 3, 224, 96), opt=(2, 3, 224, 192), max=(2, 3, 224, 256))


def test_axes_of_one_input_and_the_shape_of_another_go_together() -> None:
    built = ranges(model(ids=("N", "seq"), past=("N", "past")), {"seq": (8,)}, "past:Nx4")
    assert (built["ids"].opt, built["past"].opt) == ((2, 8), (2, 4))


@pytest.mark.parametrize(
    ("axes", "flags", "message"),
    [
        ({"sek": (8,)}, (), r"--axis sek: the model has no such open axis\n.*did you mean 'seq'"),
        ({"N": (8,)}, (), r"--axis N: is the batch axis\n.*--batch"),
        ({"ids.0": (8,)}, (), "--axis ids.0: the model has no such open axis"),
        ({"table.1": (8,)}, (), "--axis table.1: the model has no such open axis"),
        ({"seq": (8,), "mask.1": (8,)}, (), "axis 1 of 'mask' is given under two names"),
        ({"seq": (8,)}, ("ids:Nx4",), "--shape ids and --axis seq contradict each other"),
        (
            {},
            ("ids:Nx1,Nx128,Nx512", "mask:Nx64"),
            r"'ids' and 'mask' share the axis 'seq', and their ranges contradict each other: 1,128,512 and 64"
            r"\n.*--axis seq=1,128,512",
        ),
        ({"ids.1": (8,), "mask.1": (16,)}, (), "'ids' and 'mask' share the axis 'seq'.* 8 and 16"),
    ],
)
def test_what_names_no_axis_or_contradicts_itself_is_refused(
    axes: dict[str, tuple[int, ...]], flags: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError) as error:
        ranges(BERT, axes, *flags)
    assert re.search(message, str(error.value))


def test_an_axis_that_nothing_gives_is_named_and_the_remedy_works() -> None:
    image = model(x=("N", 3, "height", "?"))
    with pytest.raises(UsageError, match=r"input 'x': axis 2 \('height'\) is dynamic") as error:
        ranges(image, {})
    names = re.findall(r"--axis (\S+)=MIN,OPT,MAX", error.value.remedy)
    assert names == ["height", "x.3"]
    assert ranges(image, dict.fromkeys(names, (1, 2, 3)))["x"].max == (2, 3, 3, 3)


def test_the_batch_axis_of_a_recurrent_state_is_no_axis_to_give() -> None:
    with pytest.raises(UsageError, match="--axis N: is the batch axis"):
        ranges(model(x=("N", 3), state=(2, "N", 8)), {"N": (4,)})


def test_a_model_without_open_axes_reports_it() -> None:
    with pytest.raises(UsageError) as error:
        ranges(model(x=("N", 3)), {"seq": (8,)})
    assert "every axis but the batch is fixed" in error.value.remedy


# ── engines that admit several lengths ──────────────────────────────────────────────────────────────────


def test_an_engine_runs_at_the_length_it_is_tuned_for_or_at_a_given_one() -> None:
    plan = plan_of(BERT, {"seq": (1, 128, 512)})
    assert shapes_at(BERT.inputs, plan, 2)["mask"] == (2, 128)
    at_64 = shapes_at(BERT.inputs, plan, 2, Recipe(axes={"seq": (64,)}))
    assert (at_64["ids"], at_64["mask"], at_64["table"]) == ((2, 64), (2, 64), (4, 8))
    assert shapes_at(BERT.inputs, plan, 2, Recipe(shapes={"ids": "Nx1,Nx16,Nx32"}))["ids"] == (2, 16)


def test_a_length_that_the_engine_does_not_admit_is_refused_with_what_it_admits() -> None:
    with pytest.raises(UsageError, match="input 'ids': axis 1 is 600, and the engine admits 1 to 512"):
        shapes_at(BERT.inputs, plan_of(BERT, {"seq": (1, 128, 512)}), 2, Recipe(axes={"seq": (600,)}))


def test_an_engine_runs_a_state_at_the_batch_of_the_other_inputs() -> None:
    recurrent = model(frames=("batch", 80), state=(2, "batch", 128))
    at_1 = shapes_at(recurrent.inputs, plan_of(recurrent, {}), 1)
    assert at_1 == {"frames": (1, 80), "state": (2, 1, 128)}


def test_a_place_is_called_as_the_model_calls_its_axis_unless_others_share_it() -> None:
    one = model(x=("N", "seq", "?")).inputs
    assert by_own_names(one, {"x.1": (4, 8), "x.2": (3,)}) == {"seq": (4, 8), "x.2": (3,)}
    assert by_own_names(BERT.inputs, {"ids.1": (4,)}) == {"ids.1": (4,)}  # not that of the mask
    both = {"x.1": (4,), "seq": (8,)}
    assert by_own_names(one, both) == both
    assert by_own_names(one, {"none": (4,)}) == {"none": (4,)}
