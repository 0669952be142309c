"""The store of timing caches with TensorRT's own timings."""

from pathlib import Path

import pytest

import trtopt
from tests.support.gpu_digits import DIGITS, SOURCES
from trtopt.builder.timing_cache import read_cache
from trtopt.workflows import cache_folder as caches

TRANSFORMER = DIGITS.parents[1] / "digits_transformer" / "digits_transformer.onnx"


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of this test's own."""
    monkeypatch.setenv("TRTOPT_CACHE_DIR", str(tmp_path / "store"))
    return tmp_path / "store"


def test_the_second_folders_build_draws_on_the_firsts_timings(tmp_path: Path) -> None:
    first = trtopt.build(DIGITS, tmp_path / "a", backend="tensorrt", tactic_sources=SOURCES)
    second = trtopt.build(DIGITS, tmp_path / "b", backend="tensorrt", tactic_sources=SOURCES)
    assert first.engines[0].timing_cache_in is None
    assert second.engines[0].timing_cache_in == first.engines[0].timing_cache_out
    assert (second.engines[0].timing_cache_hits or 0) > 0
    (entry,) = caches.entries()
    assert entry.problem is None


def test_after_a_transformer_the_engines_of_one_folder_still_add_to_the_store(
    tmp_path: Path, store: Path
) -> None:
    """What the graph compiler of 8.6 leaves keeps caches from being merged; these need not be."""
    trtopt.build(TRANSFORMER, tmp_path / "a", backend="tensorrt", tactic_sources=SOURCES)
    manifest = trtopt.build(
        DIGITS, tmp_path / "b", batch=(1, 2, 4), backend="tensorrt", tactic_sources=SOURCES
    )
    assert [note for engine in manifest.engines for note in engine.notes if "not kept" in note] == []
    (path,) = store.glob("*.cache")
    assert read_cache(path).sha256 == manifest.engines[-1].timing_cache_out


def test_none_begins_with_nothing_and_leaves_the_store_alone(tmp_path: Path, store: Path) -> None:
    manifest = trtopt.build(
        DIGITS, tmp_path / "a", backend="tensorrt", tactic_sources=SOURCES, timing_cache="none"
    )
    assert manifest.engines[0].timing_cache_in is None
    assert not store.exists()


def test_a_cache_that_tensorrt_refuses_is_set_aside(tmp_path: Path, store: Path) -> None:
    trtopt.build(DIGITS, tmp_path / "a", backend="tensorrt", tactic_sources=SOURCES)
    (path,) = store.glob("*.cache")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    manifest = trtopt.build(DIGITS, tmp_path / "b", backend="tensorrt", tactic_sources=SOURCES)
    assert manifest.engines[0].timing_cache_in is None
    assert any("set aside" in note for note in manifest.engines[0].notes)
    assert len(list(store.glob("*.damaged"))) == 1
    caches.prune()
    (entry,) = caches.entries()
    assert entry.problem is None
