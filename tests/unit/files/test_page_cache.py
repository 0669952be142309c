"""What of a file is in memory, and that it can be dropped from there."""

from pathlib import Path

from trtopt.files.page_cache import cached_share, drop_from_cache


def test_a_dropped_file_is_out_of_the_cache_until_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "engine"
    file.write_bytes(bytes(1 << 20))
    assert cached_share(file) == 1.0
    if drop_from_cache(file):  # some file systems live in memory
        assert cached_share(file) == 0.0
    file.read_bytes()
    assert cached_share(file) == 1.0


def test_an_empty_file_has_nothing_to_read(tmp_path: Path) -> None:
    file = tmp_path / "engine"
    file.touch()
    assert cached_share(file) == 1.0
