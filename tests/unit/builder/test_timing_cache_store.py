"""The store of timing caches: which file is whose, what is set aside, merged and removed."""

import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.writers import PROCESSES, grow_in_store, lines_of, run_beside, union
from trtopt.builder.timing_cache import TimingStore, read_cache
from trtopt.errors import TimingCacheError
from trtopt.records import (
    Backend,
    BuildSettings,
    CacheTerms,
    Identity,
    to_json,
)

HERE = Identity(
    backend=Backend(name="tensorrt", version="10.16.1"),
    gpu="NVIDIA H200 / 141 GB",
    compute_capability="9.0",
    driver="580.95.05",
    cuda="13.0",
)
TERMS = CacheTerms(opt_level=3)


def save(store: TimingStore, blob: bytes, terms: CacheTerms = TERMS, here: Identity = HERE) -> Path:
    store.file(here, terms).save(blob, grown_from=None, merge=union)
    return store.file(here, terms).path


@pytest.fixture
def store(tmp_path: Path) -> TimingStore:
    return TimingStore(tmp_path / "store")


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("backend", Backend(name="tensorrt", version="10.15.0")),
        ("gpu", "NVIDIA L4"),
        ("compute_capability", "8.9"),
        ("driver", "570.1"),
        ("cuda", None),
    ],
)
def test_what_a_cache_is_bound_to_is_in_its_name(store: TimingStore, field: str, other: Any) -> None:
    there = msgspec.structs.replace(HERE, **{field: other})
    assert store.file(there, TERMS).path != store.file(HERE, TERMS).path
    save(store, b"mine\n")
    assert store.file(there, TERMS).load() is None


@pytest.mark.parametrize(
    ("field", "other"),
    [("opt_level", 5), ("workspace_bytes", 1), ("tactic_sources", ("A",)), ("plugins", ("b" * 64,))],
)
def test_settings_that_decide_which_tactics_compete_have_caches_of_their_own(
    store: TimingStore, field: str, other: Any
) -> None:
    assert set(CacheTerms.__struct_fields__) <= {*BuildSettings.__struct_fields__}
    assert (
        store.file(HERE, msgspec.structs.replace(TERMS, **{field: other})).path
        != store.file(HERE, TERMS).path
    )


def test_a_name_tells_what_it_is_of_and_is_fit_for_any_file_system(store: TimingStore) -> None:
    name = store.file(HERE, TERMS).path.name
    assert re.fullmatch(r"tensorrt-10\.16\.1-NVIDIA-H200-141-GB-[0-9a-f]{12}\.cache", name)


def test_what_builds_save_is_merged_and_listed(store: TimingStore) -> None:
    save(store, b"one\n")
    path = save(store, b"two\n")
    found = store.file(HERE, TERMS).load()
    assert found is not None
    assert found.blob == b"one\ntwo\n"
    (entry,) = store.entries()
    assert (entry.path, entry.identity, entry.terms) == (str(path), HERE, TERMS)
    assert entry.problem is None


# ── damage ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[:-1],
        lambda whole: b"not ours at all",
        lambda whole: b"",
        lambda whole: whole.replace(b"H200", b"H100"),
    ],
    ids=["cut", "foreign", "empty", "renamed GPU"],
)
def test_a_damaged_cache_is_refused_named_and_set_aside(store: TimingStore, damage: Any) -> None:
    path = save(store, b"one\n")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(TimingCacheError, match=re.escape(str(path))):
        store.file(HERE, TERMS).load()
    (entry,) = store.entries()
    assert entry.problem
    aside = store.file(HERE, TERMS).set_aside()
    assert aside is not None
    assert aside.is_file()
    assert store.file(HERE, TERMS).load() is None
    assert store.file(HERE, TERMS).set_aside() is None
    (entry,) = store.entries()
    assert entry.problem == "damaged; set aside by a build"


def test_a_good_cache_that_another_build_has_written_meanwhile_stays(store: TimingStore) -> None:
    path = save(store, b"one\n")
    refused = store.file(HERE, TERMS).load()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(TimingCacheError):
        store.file(HERE, TERMS).load()
    path.write_bytes(whole)  # the other build's
    assert store.file(HERE, TERMS).set_aside() is None
    save(store, b"two\n")
    assert store.file(HERE, TERMS).set_aside(refused) is None  # not what TensorRT has refused
    assert read_cache(path).blob == b"one\ntwo\n"


def test_a_cache_under_anothers_name_is_refused(store: TimingStore) -> None:
    other = msgspec.structs.replace(TERMS, opt_level=5)
    os.replace(save(store, b"one\n"), store.file(HERE, other).path)
    with pytest.raises(TimingCacheError, match="with other builder settings than its name says"):
        store.file(HERE, other).load()
    assert [entry.problem for entry in store.entries()] == ["is not the cache that its name stands for"]


# ── size ────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_was_not_used_for_longest_goes_when_the_store_outgrows_its_bound(tmp_path: Path) -> None:
    store = TimingStore(tmp_path, limit_bytes=25_000)
    paths = [save(store, bytes(10_000), CacheTerms(opt_level=level)) for level in (1, 2)]
    for age, path in zip((200, 100), paths, strict=True):
        os.utime(path, (1e9 - age, 1e9 - age))
    store.file(HERE, CacheTerms(opt_level=1)).load()  # used again: the other one is the oldest now
    third = save(store, bytes(10_000), CacheTerms(opt_level=3))
    assert {Path(entry.path) for entry in store.entries()} == {paths[0], third}


def test_a_cache_larger_than_the_bound_is_kept_by_the_build_that_wrote_it(tmp_path: Path) -> None:
    store = TimingStore(tmp_path, limit_bytes=100)
    path = save(store, bytes(10_000))
    assert path.is_file()
    assert store.prune(100) == (path,)
    assert store.entries() == ()


def test_what_was_set_aside_goes_first(tmp_path: Path) -> None:
    store = TimingStore(tmp_path)
    save(store, bytes(10_000))
    aside = store.file(HERE, TERMS).set_aside(store.file(HERE, TERMS).load())
    path = save(store, bytes(10_000))
    os.utime(path, (1, 1))
    assert store.prune(15_000) == (aside,)


# ── caches from elsewhere ───────────────────────────────────────────────────────────────────────────────


def test_what_is_no_file_is_no_cache(store: TimingStore) -> None:
    save(store, b"a\n")
    caches = store.entries()
    (store.folder / "folder.cache").mkdir()
    (store.folder / "gone.cache").symlink_to("nowhere")
    os.mkfifo(store.folder / "pipe.cache")
    assert store.entries() == caches
    assert len(store.prune(0)) == len(caches)


# ── many hosts at once ──────────────────────────────────────────────────────────────────────────────────

ROUNDS = 6


def test_processes_that_share_a_store_lose_nothing(store: TimingStore) -> None:
    told = to_json(HERE, indent=None).decode()
    assert run_beside(grow_in_store, str(store.folder), told, str(ROUNDS)) == [0] * PROCESSES
    found = store.file(HERE, TERMS).load()
    assert found is not None
    assert set(found.blob.decode().splitlines()) == lines_of(ROUNDS)
    assert [path.name for path in store.folder.glob(".*tmp")] == []


def test_files_of_others_in_the_stores_folder_are_neither_listed_nor_removed(store: TimingStore) -> None:
    kept = save(store, b"x" * 100)
    others = ["own.cache", "notes.damaged", "mine-0123456789ab.cache.damaged", "-0123456789ab.cache"]
    for name in others:
        (store.folder / name).write_bytes(b"y" * 1000)
    assert [entry.path for entry in store.entries()] == [str(kept)]
    assert store.prune(0) == (kept,)
    assert sorted(path.name for path in store.folder.iterdir()) == sorted(others)
