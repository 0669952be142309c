"""How much of a file is read, whatever its size is said to be."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from trtopt.builder.timing_cache import read_cache
from trtopt.data.readers import read_json
from trtopt.errors import OutputError, TrtoptError
from trtopt.files import bounded_reading as reading
from trtopt.files.bounded_reading import MAX_BYTES, read_bounded, read_toml, reason_of, sha256_of
from trtopt.logs import write_to
from trtopt.precision.calibrate import read_table
from trtopt.serving.load_folder import measured_latencies
from trtopt.workflows.compare.result_files import read_result
from trtopt.workflows.plan.sources import read_arrivals
from trtopt.workflows.profile.profile import read_profile
from trtopt.workflows.sweep.folder import read_sweep

LIMIT = 3 << 20


@pytest.mark.parametrize("size", [0, 1, LIMIT - 1, LIMIT])
def test_what_is_within_the_bound_is_read_whole(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "file").write_bytes(content)
    assert read_bounded(tmp_path / "file", LIMIT) == content


def test_a_byte_more_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(LIMIT + 1))
    with pytest.raises(ValueError, match="larger than the 3 MiB allowed for it"):
        read_bounded(tmp_path / "file", LIMIT)


def test_a_device_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="larger than the 3 MiB"):
        read_bounded(Path("/dev/zero"), LIMIT)


@pytest.mark.parametrize(("size", "fits"), [(LIMIT, True), (LIMIT + 1, False), (3 * LIMIT, False)])
def test_a_pipe_is_read_to_its_end_or_the_bound(tmp_path: Path, size: int, fits: bool) -> None:
    pipe, content = tmp_path / "pipe", os.urandom(size)
    os.mkfifo(pipe)

    def write() -> None:
        with suppress(BrokenPipeError):
            pipe.write_bytes(content)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        if fits:
            assert read_bounded(pipe, LIMIT) == content
        else:
            with pytest.raises(ValueError, match="larger than"):
                read_bounded(pipe, LIMIT)
    finally:
        writer.join()


@pytest.mark.parametrize(
    "read",
    [
        read_result,
        read_profile,
        read_sweep,
        read_table,
        read_cache,
        read_json,
        lambda path: read_toml(path, "give another"),
        lambda path: measured_latencies(path.parent, ()),
        lambda path: read_arrivals(str(path)),
    ],
    ids=["result", "profile", "sweep", "table", "cache", "feeds", "TOML", "beside", "arrivals"],
)
def test_every_reader_refuses_what_is_too_large_before_it_reads(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    file = tmp_path / "bench.json"
    with file.open("wb") as sparse:
        sparse.truncate(MAX_BYTES + 1)
    with pytest.raises(TrtoptError, match="MiB allowed for it"):
        read(file)


def test_why_a_file_was_not_read_is_reported_without_its_name_again(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Errno") as caught:
        read_bounded(tmp_path / "gone", LIMIT)
    assert reason_of(caught.value) == "No such file or directory"
    assert reason_of(ValueError("larger than it may be")) == "larger than it may be"


@pytest.mark.parametrize(("version", "remedy"), [("1", "make it again"), ("999", "upgrade trtopt")])
def test_a_file_of_another_version_has_its_own_remedy(tmp_path: Path, version: str, remedy: str) -> None:
    file = tmp_path / "bench.json"
    file.write_text(f'{{"schema": "trtopt.bench/{version}"}}')
    with pytest.raises(TrtoptError, match=f"bench/{version}, written by") as caught:
        read_result(file)
    assert remedy in (caught.value.remedy or "")


def test_a_pipe_that_no_one_writes_to_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reading, "_SILENCE_S", 0.2)
    monkeypatch.setattr(reading, "_ANNOUNCED_S", 0.1)
    os.mkfifo(tmp_path / "pipe.json")
    with caplog.at_level(logging.WARNING, "trtopt"), pytest.raises(TrtoptError, match="no data from it"):
        read_result(tmp_path / "pipe.json")
    assert f"waiting for data from {tmp_path / 'pipe.json'}" in caplog.text


def test_a_pipe_in_the_place_of_a_sweeps_report_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "sweep.json")
    with pytest.raises(TrtoptError, match="not a regular file"):
        read_sweep(tmp_path)


def test_a_pipe_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            sha256_of(path)
    with pytest.raises(OutputError, match="cannot be written"):
        write_to(tmp_path / "pipe")
