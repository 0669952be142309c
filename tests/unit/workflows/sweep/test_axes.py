import re

import pytest

from trtopt.errors import UsageError
from trtopt.records import OnnxArtifact, TensorSpec
from trtopt.workflows.sweep.axes import shapes_with


def model(**shapes: tuple[int | str, ...]) -> OnnxArtifact:
    inputs = tuple(TensorSpec(name=name, dtype="int64", shape=shape) for name, shape in shapes.items())
    return OnnxArtifact(path="m.onnx", sha256="a" * 64, opset=17, inputs=inputs, outputs=(), types=())


BERT = model(ids=("N", "seq"), mask=("N", "seq"), table=(4, 8))


def test_an_axis_has_its_length_in_every_input_that_has_it() -> None:
    assert shapes_with(BERT, {"seq": 128}, {}) == {"ids": "Nx128", "mask": "Nx128"}


def test_an_anonymous_axis_is_given_by_its_place() -> None:
    image = model(x=("N", 3, "?", "?"))
    assert shapes_with(image, {"x.2": 224, "x.3": 192}, {}) == {"x": "Nx3x224x192"}


def test_shapes_of_other_inputs_stay() -> None:
    two = model(ids=("N", "seq"), past=("N", "past"))
    assert shapes_with(two, {"seq": 8}, {"past": "Nx4"}) == {"ids": "Nx8", "past": "Nx4"}
    assert shapes_with(two, {}, {"past": "Nx4"}) == {"past": "Nx4"}


@pytest.mark.parametrize(
    ("axes", "fixed", "message"),
    [
        ({"sek": 8}, {}, r"--shapes sek: the model has no such open axis\n.*did you mean 'seq'"),
        ({"N": 8}, {}, r"--shapes N: that is the batch axis\n.*--batch"),
        ({"ids.0": 8}, {}, "--shapes ids.0: the model has no such open axis"),
        ({"table.1": 8}, {}, "--shapes table.1: the model has no such open axis"),
        ({"seq": 8, "mask.1": 8}, {}, "axis 1 of 'mask' is given under two names"),
        ({"seq": 8}, {"ids": "Nx4"}, "--shape ids: --shapes sweeps an axis of this input"),
    ],
)
def test_what_names_no_axis_or_names_one_twice_is_refused(
    axes: dict[str, int], fixed: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError) as error:
        shapes_with(BERT, axes, fixed)
    assert re.search(message, str(error.value))


def test_an_open_axis_that_nothing_gives_is_named() -> None:
    image = model(x=("N", 3, "height", "width"))
    with pytest.raises(UsageError, match=r"input 'x': axis 3 \('width'\) is open"):
        shapes_with(image, {"height": 224}, {})


def test_a_model_without_open_axes_reports_it() -> None:
    with pytest.raises(UsageError) as error:
        shapes_with(model(x=("N", 3)), {"seq": 8}, {})
    assert "every axis but the batch is fixed" in error.value.remedy
