"""`trtopt demo`, as a newcomer runs it first."""

from __future__ import annotations

from tests.support.command_line import CommandLine, needs_no_gpu


@needs_no_gpu
def test_the_demo_shows_engines_latency_and_a_report_and_overwrites_nothing(trtopt_cli: CommandLine) -> None:
    (trtopt_cli.folder / "trtopt-demo").mkdir()
    done = trtopt_cli("demo")
    assert done.returncode == 0, done.stderr
    shown = done.stdout + done.stderr
    assert len(shown.splitlines()) < 40
    assert "best batch" in shown
    assert "p99 ms" in shown
    made = {file.name for file in (trtopt_cli.folder / "trtopt-demo-2").iterdir()}
    assert {"manifest.json", "bench.json", "report.html"} <= made
    assert "trtopt-demo-2/report.html" in shown
    assert list((trtopt_cli.folder / "trtopt-demo").iterdir()) == []
    assert "name a new folder with --output" in trtopt_cli.fails(1, "demo", "--output", "trtopt-demo")
