import pytest

from tests.support.trt_behaviour import LAYER
from tests.support.trt_exercise import build, each_version, run, target
from tests.support.trt_surface import Surface


@each_version
def test_a_built_engines_layers_are_described_where_the_machine_can_load_it(dump: str) -> None:
    told = {"EngineInspector.get_engine_information": "the layers"}
    runs_here = target(dump).needs_gpu_to_build
    assert build(Surface(dump, told)).inspector == ("the layers" if runs_here else None)
    assert build(Surface(dump, told | {"Runtime.deserialize_cuda_engine": None})).inspector is None


@each_version
@pytest.mark.parametrize("told", ["", UnicodeDecodeError("utf-8", b"\xc3", 0, 1, "unexpected end of data")])
def test_an_engine_whose_layers_are_unknown_runs_all_the_same(dump: str, told: object) -> None:
    assert run(Surface(dump, {"EngineInspector.get_engine_information": told}))[-3:-1] == [
        [LAYER, LAYER, True],
        None,
    ]
