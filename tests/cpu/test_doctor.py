"""`trtopt doctor`."""

from __future__ import annotations

import json

from tests.support.command_line import CommandLine


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
        "build with TensorRT-RTX",
    ):
        assert row in done.stdout
    findings = json.loads(trtopt_cli("doctor", "--json", "-").stdout)
    assert findings["tensorrt_rtx"]["version"]
    assert findings["onnxruntime"]["version"]
    for name in ("tensorrt", "nvml"):
        component = findings[name]
        assert component["version"] or component["remedy"].startswith("pip install")
