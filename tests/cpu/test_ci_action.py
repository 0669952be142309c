"""The composite action's script, which the guide shows, run as GitHub runs it: it fails closed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml

from tests.support.command_line import DIGITS, HELDOUT, needs_no_tensorrt
from tests.support.page_commands import blocks_of
from tests.support.paths import ROOT

ACTION = (ROOT / ".github" / "actions" / "gate" / "action.yml").read_text("utf-8")
GUIDE = ROOT / "docs" / "guides" / "ci.md"
SCRIPT = textwrap.dedent(ACTION.partition("      run: |\n")[2])
_INPUT = re.compile(r'^  (\S+):\n    description: .+\n(?:    default: "?(.*?)"?\n)?', re.MULTILINE)
INPUTS = dict(_INPUT.findall(ACTION.partition("outputs:")[0]))
VARIABLES = dict(re.findall(r"^        ([A-Z_]+): \$\{\{ inputs\.(\S+) \}\}$", ACTION, re.MULTILINE))


def run_bash(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """As `shell: bash` of a step does."""
    (folder / "step.sh").write_text(script)
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "step.sh"]
    return subprocess.run(
        command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, check=False
    )


class Runner:
    """Runs the action's step in a folder of its own."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder, self.summary = folder, folder / "summary.md"
        self._path = f"{programs}{os.pathsep}{os.environ['PATH']}"

    def __call__(self, **inputs: object) -> subprocess.CompletedProcess[str]:
        """Run it with inputs, whose `-` is `_` here."""
        given = {name.replace("_", "-"): str(value) for name, value in inputs.items()}
        values = INPUTS | given
        (self.folder / "temp").mkdir(exist_ok=True)
        return run_bash(
            SCRIPT,
            self.folder,
            PATH=self._path,
            RUNNER_TEMP=str(self.folder / "temp"),
            GITHUB_OUTPUT=str(self.folder / "output"),
            GITHUB_STEP_SUMMARY=str(self.summary),
            **{variable: values[name] for variable, name in VARIABLES.items()},
        )

    @property
    def cases(self) -> list[str] | None:
        """What JUnit's cases came to, if there is a file."""
        output = (self.folder / "output").read_text().strip().removeprefix("folder=")
        file = Path(output) / "junit.xml"
        if not file.exists():
            return None
        return [case[0].tag for case in ElementTree.parse(file).iter("testcase")]


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path, Path(sys.executable).parent)


# ── the script ──────────────────────────────────────────────────────────────────────────────────────────


def test_the_guide_shows_the_script_of_the_action_whose_every_input_is_used() -> None:
    assert SCRIPT in [block.text for block in blocks_of(GUIDE, "sh")]
    assert {*INPUTS} == {*VARIABLES.values()}
    assert all(f"${variable}" in SCRIPT or f"${{{variable}" in SCRIPT for variable in VARIABLES)


def test_the_action_is_what_github_reads() -> None:
    (step,) = yaml.safe_load(ACTION)["runs"]["steps"]
    assert (step["shell"], step["run"]) == ("bash", SCRIPT)
    assert step["env"] == {variable: f"${{{{ inputs.{name} }}}}" for variable, name in VARIABLES.items()}


COMMANDS = {
    "baseline": ["build", "check", "compare"],
    "history": ["build", "check", "bench", "history", "history"],
}


@pytest.mark.parametrize("judged_by", COMMANDS)
def test_each_command_that_fails_ends_the_step_with_its_code(
    judged_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `trtopt` that only counts its calls fails at each in turn."""
    programs = tmp_path / "programs"
    programs.mkdir()
    program = programs / "trtopt"
    program.write_text('#!/bin/sh\necho "$1" >> calls\n[ "$(wc -l < calls)" -ne "$FAILING" ] || exit 5\n')
    program.chmod(0o755)
    runner, calls = Runner(tmp_path, programs), tmp_path / "calls"
    expected = COMMANDS[judged_by]
    for failing in range(1, len(expected) + 2):
        calls.unlink(missing_ok=True)
        monkeypatch.setenv("FAILING", str(failing))
        done = runner(model="model.onnx", **{judged_by: "kept"})
        assert calls.read_text().split() == expected[:failing]
        assert done.returncode == (5 if failing <= len(expected) else 0)


@pytest.mark.parametrize("result", ["success", "failure", "cancelled", "skipped", ""])
def test_the_check_to_require_passes_only_after_a_measurement_that_did(result: str, tmp_path: Path) -> None:
    (line,) = re.findall(
        r"- env: \{RESULT: .*needs\.measure\.result.*\}\n +run: (.+)", GUIDE.read_text("utf-8")
    )
    assert (run_bash(line, tmp_path, RESULT=result).returncode == 0) == (result == "success")


# ── with engines ────────────────────────────────────────────────────────────────────────────────────────

DIGITS_HERE = {"model": DIGITS, "data": HELDOUT, "batch": 8, "backend": "onnxruntime", "duration": 0.5}
SLOW = "--graph-optimization disable --execution-mode parallel"


@pytest.mark.long
@pytest.mark.parametrize(
    ("inputs", "status", "cases"),
    [
        ({"fail_on": "95%"}, 0, ["system-out"]),
        ({"fail_on": "95%", "build_options": SLOW}, 3, ["failure"]),
        ({"fail_on": "0.01%"}, 5, ["error"]),
        ({"baseline": "nowhere"}, 2, None),
        ({"fail_on": "95%", "data": "nowhere.npz"}, 2, None),
    ],
    ids=["as fast", "slower", "undecided", "no baseline", "no data"],
)
def test_engines_are_held_against_a_baseline(
    inputs: dict[str, str], status: int, cases: list[str] | None, cpu_build: Path, runner: Runner
) -> None:
    baseline = cpu_build / "batch8.onnx"
    done = runner(**DIGITS_HERE | {"baseline": baseline} | inputs)
    assert (done.returncode, runner.cases) == (status, cases), done.stderr
    said = runner.summary.read_text() if runner.summary.exists() else ""
    assert bool(said) == (cases is not None)


@pytest.fixture
def earlier(cpu_build: Path, tmp_path: Path) -> Callable[[list[float]], Path]:
    """A history of runs at these latencies, in milliseconds, on this machine, all before today."""

    def fill(levels_ms: list[float]) -> Path:
        import trtopt

        folder = tmp_path / "history"
        folder.mkdir()
        report = trtopt.bench(cpu_build, batch=8, duration=0.2).to_dict()
        now = datetime.fromisoformat(report["created"])  # type: ignore[arg-type]
        random = np.random.default_rng(0)
        samples = report["points"][0]["latency"]["samples"]  # type: ignore[index]
        for number, level_ms in enumerate(levels_ms):
            report["created"] = (now - timedelta(days=len(levels_ms) - number)).isoformat()
            noise = np.exp(0.01 * random.standard_normal(len(samples["start_ms"])))
            samples["end_ms"] = (np.array(samples["start_ms"]) + level_ms * noise).tolist()
            (folder / f"{number:02}.json").write_text(json.dumps(report))
        return folder

    return fill


@pytest.mark.long
def test_results_are_held_against_a_history(earlier: Callable[[list[float]], Path], runner: Runner) -> None:
    """One run at the old speed is no way back from five that were ten times as slow."""
    history = earlier([0.001] * 12 + [1000.0] * 5)
    done = runner(**DIGITS_HERE | {"history": history})
    assert done.returncode == 3, done.stdout + done.stderr
    assert runner.cases is not None
    assert "failure" in runner.cases
    assert "SLOWER" in runner.summary.read_text()
    assert len([*history.iterdir()]) == 18


@pytest.mark.long
def test_the_first_result_is_undecided(runner: Runner) -> None:
    done = runner(**DIGITS_HERE | {"history": "kept"})
    assert (done.returncode, runner.cases) == (5, ["error"] * 2), done.stderr


@pytest.mark.long
@needs_no_tensorrt
def test_without_the_named_backend_nothing_is_measured_on_another(runner: Runner) -> None:
    done = runner(model=DIGITS, history="kept")
    assert (done.returncode, runner.cases) == (1, None), done.stderr
    assert not (runner.folder / "kept").exists()


@pytest.mark.parametrize("inputs", [{}, {"model": DIGITS}, {"history": "kept"}])
def test_an_input_that_is_missing_shuts_the_gate(inputs: dict[str, object], runner: Runner) -> None:
    assert runner(**inputs).returncode == 1
