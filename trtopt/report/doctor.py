"""The environment report: this machine, what works on it, and what the rest needs."""

from __future__ import annotations

from trtopt.extras import EXTRAS, RTX_EXTRA, install
from trtopt.records import Component, MachineSurvey
from trtopt.report.view import Lines, View, cells_of, view_of


@view_of.register
def doctor_view(survey: MachineSurvey) -> View:
    """What works and what is missing, a row for each library."""
    return View("", [Lines(doctor_lines(survey))], rows=map(cells_of, libraries_of(survey)))


def libraries_of(survey: MachineSurvey) -> tuple[Component, ...]:
    """All that were looked for."""
    engines = (survey.tensorrt, survey.tensorrt_rtx, survey.onnxruntime)
    return (*engines, *survey.cuda_bindings, survey.nvml, *survey.optional)


def doctor_lines(survey: MachineSurvey) -> list[str]:
    """One line for each thing that works, one for each that does not with what it needs, and the machine."""
    needs = needs_of(survey)
    works = [f"works: {what}" for what, missing in needs.items() if not missing]
    missing = [f"missing: {what} → {'; '.join(lacks)}" for what, lacks in needs.items() if lacks]
    return [*works, *missing, *_machine(survey)]


def _machine(survey: MachineSurvey) -> list[str]:
    gpus = [
        f"GPU: {gpu.name}, compute capability {gpu.compute_capability}, "
        f"{(gpu.memory_bytes or 0) / 2**30:.0f} GiB, CUDA {gpu.cuda}"
        for gpu in survey.gpus
    ]
    found = [f"{one.name} {one.version}" for one in libraries_of(survey) if one.version]
    return [
        f"Python {survey.python} on {survey.platform}, {survey.cpu}",
        *(gpus or ["GPU: none, or no driver"]),
        f"installed: {', '.join(found)}",
    ]


def needs_of(survey: MachineSurvey) -> dict[str, list[str]]:
    """What trtopt does, and what each lacks here: a GPU, or a line to install."""
    no_gpu = [] if survey.gpus else ["an NVIDIA GPU with its driver"]
    # one binding is enough; cuda-python, the first, is the one to install
    binding = next((one for one in survey.cuda_bindings if one.version), survey.cuda_bindings[0])
    on_gpu = [*no_gpu, *_line("tensorrt", [survey.tensorrt, binding, survey.nvml])]
    needs = {
        "build and bench on ONNX Runtime (CPU)": [],
        "rewrite, lint, cast, quantize and check models": [],
        EXTRAS["tensorrt"].purpose: on_gpu,
        EXTRAS[RTX_EXTRA].purpose: _line(RTX_EXTRA, [survey.tensorrt_rtx]),
    }
    if survey.gpus and not survey.cuda_bindings[0].version and survey.cuda_bindings[1].version:
        needs["bench with CUDA graphs, which pycuda lacks"] = [survey.cuda_bindings[0].remedy or ""]
    packages = {package.name: package for package in survey.optional}
    for name, extra in EXTRAS.items():
        components = [packages[package] for package in extra.packages if package in packages]
        if components and name not in ("tensorrt", RTX_EXTRA, "pycuda"):
            needs[extra.purpose] = [*(no_gpu if name == "kernels" else ()), *_line(name, components)]
    return needs


def _line(extra: str, components: list[Component]) -> list[str]:
    """The install line of an extra, if one of its packages is missing."""
    return [] if all(one.version for one in components) else [install(extra)]
