"""What `trtopt doctor` shows: one line for each thing that works or is missing."""

import msgspec

from tests.support.examples import GPU, survey
from trtopt.extras import EXTRAS
from trtopt.records import Component, MachineSurvey
from trtopt.report.doctor import doctor_lines, needs_of


def missing(name: str) -> Component:
    return Component(name=name, version=None, problem="not installed", remedy=f"pip install {name}")


def bare() -> MachineSurvey:
    """A machine with a GPU on which no optional package is installed."""
    packages = {package for extra in EXTRAS.values() for package in extra.packages}
    return msgspec.structs.replace(
        survey(),
        cuda_bindings=(missing("cuda-python"), missing("pycuda")),
        nvml=missing("nvml"),
        optional=tuple(map(missing, sorted(packages))),
    )


def test_what_is_missing_has_a_line_with_what_to_install() -> None:
    shown = doctor_lines(bare())
    assert (
        "missing: build and bench with TensorRT on a GPU → pip install tensorrt cuda-python nvidia-ml-py"
        in shown
    )
    assert (
        "missing: deploy plans to Triton (trtopt deploy triton) → pip install 'tritonclient[grpc]'" in shown
    )
    assert (
        "missing: export PyTorch models (trtopt export) → pip install torch onnxscript safetensors" in shown
    )
    assert "works: build and bench on ONNX Runtime (CPU)" in shown
    assert max(map(len, shown)) < 120


def test_every_extra_is_known_to_the_doctor() -> None:
    purposes = {extra.purpose for name, extra in EXTRAS.items() if name != "pycuda"}  # the other binding
    assert purposes <= needs_of(bare()).keys()


def test_one_cuda_binding_is_enough_but_pycuda_has_no_cuda_graphs() -> None:
    here = Component(name="here", version="1")
    found = msgspec.structs.replace(
        bare(), tensorrt=here, nvml=here, cuda_bindings=(missing("cuda-python"), here), gpus=(GPU,)
    )
    needs = needs_of(found)
    assert needs["build and bench with TensorRT on a GPU"] == []
    assert needs["bench with CUDA graphs, which pycuda lacks"] == ["pip install cuda-python"]


def test_without_a_gpu_the_gpu_is_named_first() -> None:
    found = msgspec.structs.replace(bare(), gpus=())
    assert needs_of(found)["build and bench with TensorRT on a GPU"][0] == "an NVIDIA GPU with its driver"


def test_recording_kernels_needs_a_gpu_too() -> None:
    here = Component(name="cupti-python", version="1")
    optional = tuple(here if one.name == here.name else one for one in bare().optional)
    needs = needs_of(msgspec.structs.replace(bare(), gpus=(), optional=optional))
    assert needs["record kernels (trtopt profile --kernels)"] == ["an NVIDIA GPU with its driver"]
