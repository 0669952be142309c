"""`trtopt bench` on a scripted device: runs not to be trusted, devices that fall away, locked clocks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

import trtopt
from tests.support.command_line import CommandLine
from tests.support.long import few
from tests.support.scripted_device.clocks import ScriptedControl
from tests.support.scripted_device.device import Script, ScriptedDevice, ScriptedTarget
from trtopt.cli.main import cli
from trtopt.errors import DeviceError
from trtopt.measure.engine import BenchJob, BenchResult, bench_engine
from trtopt.records import BenchReport, ClockReading, DeviceInfo, from_json
from trtopt.workers.jobs import environment_of
from trtopt.workflows.bench import bench as pipeline

FULL = ClockReading(at_ms=0.0, sm_mhz=1980, power_w=412.0, temperature_c=51)
HOT = ClockReading(at_ms=0.0, sm_mhz=1100, throttle=("hw_slowdown", "hw_thermal_slowdown"))
SCRIPTED = DeviceInfo(kind="scripted", name="scripted device")


def on_scripted_devices(scripts: Sequence[Script]) -> SimpleNamespace:
    """Stands in for `THIS_HOST`: the n-th job runs in this process, on a device with the n-th script."""

    def run_jobs(
        jobs: Sequence[BenchJob], *, limit_s: float | None, on_progress: object
    ) -> Iterator[tuple[int, BenchResult]]:
        for index, (job, script) in enumerate(zip(jobs, scripts, strict=True)):
            target = ScriptedTarget(ScriptedDevice(script))
            plan = msgspec.structs.replace(job.engine.artifact.plan, backend=ScriptedTarget.backend)
            artifact = msgspec.structs.replace(job.engine.artifact, plan=plan, device=SCRIPTED)
            engine = msgspec.structs.replace(
                job.engine, artifact=artifact, shapes={"x": (job.engine.batch, 4)}
            )
            ours = msgspec.structs.replace(job, engine=engine)
            point = bench_engine(target, ours, lambda phase, fraction: None)
            yield index, BenchResult(point=point, environment=environment_of(target))  # type: ignore[arg-type]

    return SimpleNamespace(run_all_jobs=run_jobs)


@pytest.fixture
def scripted_cli(
    cpu_build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Result, BenchReport | None]]:
    """Runs `trtopt bench` on batches 1 and 8, a script each; gives its result and the result file."""

    def run(first: Script, second: Script, *flags: str) -> tuple[Result, BenchReport | None]:
        monkeypatch.setattr(pipeline, "THIS_HOST", on_scripted_devices((first, second)))
        monkeypatch.setenv("COLUMNS", "300")
        file = tmp_path / "result.json"
        arguments = [str(cpu_build), "--duration", "1", "--json", str(file), "-v", *flags]
        result = CliRunner().invoke(cli, ["bench", *arguments])
        return result, from_json(file.read_bytes(), BenchReport) if file.exists() else None

    return run


def steady(**changes: Any) -> Script:
    return Script(clocks=[FULL], **changes)


# ── trust ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("flags", [(), ("--strict",)])
def test_a_steady_run_tells_its_clocks_and_exits_with_0(scripted_cli: Any, flags: tuple[str, ...]) -> None:
    result, report = scripted_cli(steady(), steady(), *flags)
    assert result.exit_code == 0
    assert "clocks: SM 1980 MHz, against the application clock of 1980 MHz, 412 W, 51 °C\n" in result.output
    assert "trusted" not in result.output
    assert report.points[0].latency.clock_reference.kind == "application"


def test_a_throttled_run_is_shown_without_figures_and_exits_with_0(scripted_cli: Any) -> None:
    result, _ = scripted_cli(steady(), Script(clocks=[HOT]))
    assert result.exit_code == 0
    assert "not trustworthy (!) at batch 8" in result.output
    assert "(!) at batch 1" not in result.output
    reasons = r"hw slowdown \(\1\), hw thermal slowdown \(\1\), SM clock under 75% of 1980 MHz \(\1\)"
    for mode in ("latency", "throughput"):
        discards = rf"{mode} pass: (\d+) of \1 groups of samples discarded: {reasons} at batch 8"
        assert re.search(discards, result.output)
    row = next(line for line in result.output.splitlines() if line.split()[:1] == ["8!"])
    assert row.split() == ["8!", *["–"] * 6]


def test_a_throttled_run_exits_with_4_if_strict_after_its_file_was_written(scripted_cli: Any) -> None:
    result, report = scripted_cli(steady(), Script(clocks=[HOT]), "--strict")
    assert result.exit_code == 4
    assert [point.batch for point in report.points] == [1, 8]
    latency = report.points[1].latency
    assert latency.samples.start_ms == []
    assert latency.discarded == len(latency.discarded_samples.start_ms) > 100
    assert latency.untrustworthy


def test_an_unsteady_run_is_marked_first_among_its_notes_and_exits_with_4_if_strict(
    scripted_cli: Any,
) -> None:
    """p99 is a hundred times p50."""
    spikes = [1.0] * 49 + [100.0]
    unsteady = steady(compute_ms=cycle(spikes))
    result, _ = scripted_cli(steady(), unsteady, "--strict")
    assert result.exit_code == 4
    assert "note: unsteady (~): p99 is 99 times the median at batch 8: " in result.output
    assert any(line.split()[:1] == ["8~"] for line in result.output.splitlines())


def test_a_card_at_its_power_limit_is_reported_as_normal_and_trusted(scripted_cli: Any) -> None:
    capped = ClockReading(at_ms=0.0, sm_mhz=1700, throttle=("sw_power_cap",))
    result, _ = scripted_cli(steady(), Script(clocks=[capped]), "--strict")
    assert result.exit_code == 0
    assert "at the power limit in " in result.output
    assert "as large loads are on large GPUs" in result.output
    hint = "hint: clocks not at application level: SM at 1700 MHz, application clock 1980 MHz"
    assert f"{hint} at batch 8: the power limit sets the clock" in result.output


def test_several_streams_are_measured_next_to_one_and_their_gain_is_reported(scripted_cli: Any) -> None:
    """Streams of the scripted device compute at the same time; where enqueueing takes all, none gains."""
    bound = steady(compute_ms=[0.01], enqueue_ms=[1.0])
    result, report = scripted_cli(steady(), bound, "--streams", "2")
    assert result.exit_code == 0
    first = report.points[0]
    assert first.single_stream.contract.name == "trtexec-11"
    assert first.single_stream.contract.streams == 1
    assert first.throughput.contract.streams == 2
    gains = r"hint: streams gain nothing: 2 streams give 1\.\d+ times one's throughput at batch 8: "
    assert re.search(gains, result.output)


# ── a device that falls away ────────────────────────────────────────────────────────────────────────────


def test_a_device_that_falls_away_in_mid_pass_leaves_what_was_measured(scripted_cli: Any) -> None:
    result, report = scripted_cli(steady(), steady(fail_at=("wait", 500)))
    assert isinstance(result.exception, DeviceError)
    assert result.exception.problem == "batch 8: scripted failure of wait"
    assert "earlier measurements are kept" in result.exception.remedy
    first, second = report.points
    assert (first.failure, second.failure) == (None, "scripted failure of wait")
    assert second.throughput is None
    assert 200 < len(second.latency.samples.start_ms) < 500
    assert second.latency.stop_reason == "failure: scripted failure of wait"
    assert "not trustworthy (!) at batch 8" in result.output
    assert "passes are missing: scripted failure of wait at batch 8" in result.output


def test_a_device_that_falls_away_between_passes_leaves_the_pass_before(scripted_cli: Any) -> None:
    result, report = scripted_cli(steady(), steady(fail_at=("context", 2)))
    assert isinstance(result.exception, DeviceError)
    second = report.points[1]
    assert second.failure == "scripted failure of context"
    assert (second.latency.failure, second.throughput) == (None, None)
    assert second.latency.untrustworthy == ()


def test_a_job_that_fails_before_any_sample_leaves_the_points_before_it(scripted_cli: Any) -> None:
    result, report = scripted_cli(steady(), steady(fail_at=("load", 1)))
    assert isinstance(result.exception, DeviceError)
    assert [point.batch for point in report.points] == [1]
    assert report.notes[-1] == "batch 8 could not be measured: scripted failure of load"
    assert "note: batch 8 could not be measured: scripted failure of load" in result.output


def test_where_the_first_job_fails_there_is_nothing_to_show(scripted_cli: Any) -> None:
    result, report = scripted_cli(steady(fail_at=("load", 1)), steady())
    assert isinstance(result.exception, DeviceError)
    assert report is None
    assert "queries/s" not in result.output


# ── locked clocks ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("asked", "mhz"), [(1500, 1500), (True, 1980)])
def test_clocks_are_held_while_measuring_and_released(
    cpu_build: Path, monkeypatch: pytest.MonkeyPatch, asked: int | bool, mhz: int
) -> None:
    control = ScriptedControl(ScriptedDevice())
    monkeypatch.setattr(pipeline, "open_clock_control", lambda name: control)
    held: list[int | None] = []
    host = on_scripted_devices((steady(),))

    def watched(
        jobs: Sequence[BenchJob], *, limit_s: float | None, on_progress: object
    ) -> Iterator[tuple[int, BenchResult]]:
        for found in host.run_all_jobs(jobs, limit_s=limit_s, on_progress=on_progress):
            held.append(control.locked_mhz)
            yield found

    monkeypatch.setattr(pipeline, "THIS_HOST", SimpleNamespace(run_all_jobs=watched))
    report = trtopt.bench(cpu_build, batch=[8], duration=0.5, lock_clocks=asked)
    assert held == [mhz]
    assert control.locked_mhz is None
    assert report.notes == (f"clocks locked at {mhz} MHz while measuring",)


def test_a_refused_lock_measures_nothing(cpu_build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = ScriptedControl(ScriptedDevice(Script(fail_at=("lock", 1))))
    monkeypatch.setattr(pipeline, "open_clock_control", lambda name: control)
    monkeypatch.setattr(pipeline, "THIS_HOST", None)
    with pytest.raises(DeviceError, match="scripted failure of lock"):
        trtopt.bench(cpu_build, batch=[8], lock_clocks=True)


LOCKING = """
import sys
from trtopt.cli.main import main
from tests.support.scripted_device.device import ScriptedDevice
from tests.support.scripted_device.clocks import ScriptedControl
from trtopt.workflows.bench import bench

class Told(ScriptedControl):
    def lock(self, mhz):
        with open("calls", "a") as file: file.write("lock ")
        return super().lock(mhz)

    def unlock(self):
        with open("calls", "a") as file: file.write("unlock ")
        super().unlock()

bench.open_clock_control = lambda name: Told(ScriptedDevice())
main()
"""


@pytest.mark.parametrize(
    ("end", "status"),
    few(
        (signal.SIGINT, 130),
        ("worker killed", 1),
        of=[(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), ("worker killed", 1)],
    ),
)
def test_clocks_are_released_whatever_ends_the_process(
    cpu_build: Path, tmp_path: Path, end: signal.Signals | str, status: int
) -> None:
    """The command line as a process of its own, whose clock control writes down what it is asked."""
    command = [sys.executable, "-c", LOCKING, "bench", str(cpu_build), "--lock-clocks", "1500"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE)
    while not (workers := _workers(process.pid)):
        assert process.poll() is None
        time.sleep(0.01)
    assert (tmp_path / "calls").read_text() == "lock "
    if isinstance(end, signal.Signals):
        process.send_signal(end)
    else:
        os.kill(workers[0], signal.SIGKILL)
    process.communicate(timeout=120)
    assert process.returncode == status
    assert (tmp_path / "calls").read_text() == "lock unlock "


def _workers(pid: int) -> list[int]:
    """The forks of its fork server."""
    return [worker for server in _children(pid) for worker in _children(server)]


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lock-clocks"], "a processor's clocks cannot be locked"),
        (["--lock-clocks", "1500"], "a processor's clocks cannot be locked"),
        (["--lock-clocks", "0"], "--lock-clocks 0: out of range"),
        (["--lock-clocks", "fast"], "--lock-clocks 'fast': not a clock in MHz"),
    ],
)
def test_clocks_that_cannot_be_locked_are_refused(
    cpu_build: Path, trtopt_cli: CommandLine, flags: list[str], message: str
) -> None:
    assert message in trtopt_cli.fails(2, "bench", cpu_build, *flags)
