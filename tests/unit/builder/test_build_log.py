"""What becomes of a builder's messages."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
from rich.console import Console

from tests.support import examples
from trtopt.builder.engine import BuildLog
from trtopt.report.build import build_view


def test_messages_go_into_the_file_with_their_mark_and_verbose_ones_do_not(tmp_path: Path) -> None:
    log = BuildLog(tmp_path / "batch1.log")
    for severity in ("error", "warning", "info", "verbose"):
        log(severity, f"a {severity} message")
    log.close()
    assert (tmp_path / "batch1.log").read_text() == (
        "[E] a error message\n[W] a warning message\n[I] a info message\n"
    )
    assert log.warnings == 2


def test_a_routine_warning_is_kept_but_not_counted(tmp_path: Path) -> None:
    log = BuildLog(tmp_path / "batch1.log")
    log("warning", " (foreignNode) Converting conv weight scales to fp32.")
    log("error", "Converting conv weight scales to fp32 failed")
    log.close()
    assert "[W]  (foreignNode) Converting" in (tmp_path / "batch1.log").read_text()
    assert log.warnings == 1


def test_a_summary_names_the_logs_that_hold_warnings_in_one_line_and_no_others() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    manifest = examples.manifest()
    loud = msgspec.structs.replace(manifest.engines[0], log="loud.log", warnings=3)
    quiet = msgspec.structs.replace(manifest.engines[0], log="quiet.log", warnings=0)
    console.print(build_view(msgspec.structs.replace(manifest, engines=(loud, quiet)), "out"))
    assert "warnings from the builder are in loud.log (3)\n" in console.export_text()
