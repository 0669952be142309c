import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.writers import PROCESSES, grow_file, lines_of, run_beside, union
from trtopt.builder.timing_cache import CacheFile, StoredCache, header_of, identity_of
from trtopt.errors import OutputError, TimingCacheError
from trtopt.files.bounded_reading import MAX_BYTES
from trtopt.records import Backend, DeviceInfo, Identity, to_json

HERE = Identity(
    backend=Backend(name="tensorrt", version="10.16.1"),
    gpu="NVIDIA L4",
    compute_capability="8.9",
    driver="580.95.05",
    cuda="13.0",
)
ELSEWHERE: dict[str, Any] = {
    "backend": Backend(name="tensorrt", version="10.15.0"),
    "gpu": "NVIDIA A10",
    "compute_capability": "8.6",
    "driver": "570.1",
    "cuda": None,
}


class Union:
    """A merge of the test's own: the union of the lines; writes every call down."""

    def __init__(self) -> None:
        self.calls: list[tuple[bytes, bytes]] = []

    def __call__(self, ours: bytes, theirs: bytes) -> bytes:
        self.calls.append((ours, theirs))
        return union(ours, theirs)


def stored(blob: bytes) -> StoredCache:
    """What is in the file of a cache that was made here."""
    header = msgspec.structs.replace(header_of(HERE, None), blob_sha256=hashlib.sha256(blob).hexdigest())
    return StoredCache(header, blob)


def never(ours: bytes, theirs: bytes) -> bytes:
    pytest.fail("nothing was to be merged")


def put(path: Path, blob: bytes, here: Identity = HERE) -> StoredCache:
    """Somebody's build saves `blob`."""
    path.unlink(missing_ok=True)
    return CacheFile(path, here).save(blob, grown_from=None, merge=never)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "timing.cache"


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "blob", [b"", b"\n", b"lines\nof\n\nbytes", bytes(range(256)), b"trtopt timing cache 1\n"]
)
def test_a_cache_is_read_as_it_was_saved(file: Path, blob: bytes) -> None:
    saved = put(file, blob)
    read = CacheFile(file, HERE).load()
    assert read == saved == stored(blob)
    assert read.sha256 == saved.sha256


def test_the_hash_of_a_cache_is_that_of_tensorrts_own_bytes(file: Path) -> None:
    assert put(file, b"").sha256 == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_a_file_that_does_not_exist_is_no_cache(file: Path) -> None:
    assert CacheFile(file, HERE).load() is None


@pytest.mark.parametrize("content", [b"ftrt\x00\x01 of another tool's", b"", b"trtopt timing cach"])
def test_a_file_without_the_header_is_another_tools_and_read_whole(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    assert CacheFile(file, HERE).load() == StoredCache(None, content)


@pytest.mark.parametrize("field", Identity.__struct_fields__)
def test_a_cache_made_elsewhere_is_refused_with_what_differs(file: Path, field: str) -> None:
    there = msgspec.structs.replace(HERE, **{field: ELSEWHERE[field]})
    put(file, b"blob", there)
    with pytest.raises(TimingCacheError) as caught:
        CacheFile(file, HERE).load()
    said = f"{field.replace('_', ' ')} {ELSEWHERE[field]}, here {getattr(HERE, field)}"
    assert caught.value.problem == f"{file}: this timing cache was made elsewhere: {said}"
    assert "--timing-cache" in caught.value.remedy


def test_everything_that_differs_is_reported(file: Path) -> None:
    put(file, b"blob", Identity(**ELSEWHERE))
    with pytest.raises(TimingCacheError) as caught:
        CacheFile(file, HERE).load()
    for field in Identity.__struct_fields__:
        assert f"{field.replace('_', ' ')} {ELSEWHERE[field]}, here" in caught.value.problem


def test_the_identity_is_that_of_the_backend_and_the_device() -> None:
    device = DeviceInfo(
        kind="gpu",
        name="NVIDIA L4",
        uuid="GPU-1",
        compute_capability="8.9",
        driver="580.95.05",
        cuda="13.0",
    )
    assert identity_of(HERE.backend, device) == HERE
    another_card = msgspec.structs.replace(device, uuid="GPU-2", binding="pycuda 2025.1")
    assert identity_of(HERE.backend, another_card) == HERE


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[: whole.index(b"\n") + 1],
        lambda whole: whole[: whole.index(b"{") + 10],
        lambda whole: whole.replace(b"{", b"[", 1),
        lambda whole: whole.replace(b'"gpu"', b'"gup"', 1),
        lambda whole: whole.replace(b'"NVIDIA L4"', b"7", 1),
        lambda whole: whole.replace(b"NVIDIA", b"\xff\xfe\xfd\xfc\xfb\xfa", 1),
    ],
    ids=["no header", "cut", "other bracket", "other field", "other type", "not UTF-8"],
)
def test_a_damaged_header_is_refused(file: Path, damage: Any) -> None:
    put(file, b"blob")
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(TimingCacheError, match="a damaged timing cache") as caught:
        CacheFile(file, HERE).load()
    assert str(file) in caught.value.problem


def test_a_cache_whose_bytes_have_changed_is_refused(file: Path) -> None:
    put(file, b"blob")
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole + b"b", whole[:-4] + b"blub"):
        file.write_bytes(damaged)
        with pytest.raises(TimingCacheError, match="its bytes are not those that were written"):
            CacheFile(file, HERE).load()


def test_a_cache_from_before_hashes_were_kept_is_read(file: Path) -> None:
    file.write_bytes(b"trtopt timing cache 1\n" + to_json(HERE, indent=None) + b"blob")
    assert CacheFile(file, HERE).load() == StoredCache(header_of(HERE, None), b"blob")


def test_a_file_larger_than_a_cache_can_be_is_not_read(file: Path) -> None:
    with file.open("wb") as sparse:
        sparse.truncate(MAX_BYTES + 1)
    with pytest.raises(TimingCacheError, match="larger than the 1024 MiB"):
        CacheFile(file, HERE).load()


def test_every_cut_inside_the_header_is_refused_or_taken_for_another_tools(file: Path) -> None:
    put(file, b"blob")
    whole = file.read_bytes()
    magic = whole.index(b"\n") + 1
    for end in range(len(whole) - len(b"blob")):
        file.write_bytes(whole[:end])
        if end < magic:
            assert CacheFile(file, HERE).load() == StoredCache(None, whole[:end])
        else:
            with pytest.raises(TimingCacheError):
                CacheFile(file, HERE).load()


def test_a_folder_is_no_timing_cache(tmp_path: Path) -> None:
    with pytest.raises(TimingCacheError):
        CacheFile(tmp_path, HERE).load()


# ── saving ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_first_cache_is_saved_without_a_merge(file: Path) -> None:
    saved = CacheFile(file, HERE).save(b"ours\n", grown_from=None, merge=never)
    assert saved == CacheFile(file, HERE).load() == stored(b"ours\n")


def test_a_cache_that_grew_from_what_is_still_there_is_saved_without_a_merge(file: Path) -> None:
    put(file, b"old\n")
    grown_from = CacheFile(file, HERE).load()
    CacheFile(file, HERE).save(b"old\nours\n", grown_from=grown_from, merge=never)
    assert CacheFile(file, HERE).load() == stored(b"old\nours\n")


def test_a_cache_that_another_build_has_written_meanwhile_is_merged_once(file: Path) -> None:
    put(file, b"old\n")
    grown_from = CacheFile(file, HERE).load()
    put(file, b"old\ntheirs\n")
    merge = Union()
    saved = CacheFile(file, HERE).save(b"old\nours\n", grown_from=grown_from, merge=merge)
    assert merge.calls == [(b"old\nours\n", b"old\ntheirs\n")]
    assert saved == CacheFile(file, HERE).load() == stored(b"old\nours\ntheirs\n")


def test_a_cache_that_has_appeared_meanwhile_is_merged_once(file: Path) -> None:
    put(file, b"theirs\n")
    merge = Union()
    CacheFile(file, HERE).save(b"ours\n", grown_from=None, merge=merge)
    assert merge.calls == [(b"ours\n", b"theirs\n")]
    assert CacheFile(file, HERE).load() == stored(b"ours\ntheirs\n")


def test_a_cache_that_another_build_has_written_alike_is_not_merged(file: Path) -> None:
    put(file, b"old\n")
    grown_from = CacheFile(file, HERE).load()
    put(file, b"same\n")
    CacheFile(file, HERE).save(b"same\n", grown_from=grown_from, merge=never)
    assert CacheFile(file, HERE).load() == stored(b"same\n")


def test_a_cache_that_has_vanished_meanwhile_is_saved_without_a_merge(file: Path) -> None:
    grown_from = put(file, b"old\n")
    file.unlink()
    CacheFile(file, HERE).save(b"old\nours\n", grown_from=grown_from, merge=never)
    assert CacheFile(file, HERE).load() == stored(b"old\nours\n")


def test_another_tools_cache_that_was_read_is_replaced_by_what_grew_from_it(file: Path) -> None:
    file.write_bytes(b"foreign\n")
    grown_from = CacheFile(file, HERE).load()
    CacheFile(file, HERE).save(b"foreign\nours\n", grown_from=grown_from, merge=never)
    assert CacheFile(file, HERE).load() == stored(b"foreign\nours\n")


def test_a_cache_of_elsewhere_that_has_appeared_meanwhile_is_refused_and_kept(file: Path) -> None:
    put(file, b"theirs\n", msgspec.structs.replace(HERE, gpu="NVIDIA A10"))
    before = file.read_bytes()
    with pytest.raises(TimingCacheError, match="gpu NVIDIA A10, here NVIDIA L4"):
        CacheFile(file, HERE).save(b"ours\n", grown_from=None, merge=never)
    assert file.read_bytes() == before


def test_a_merge_that_fails_leaves_the_file_as_it_was_and_its_lock_free(file: Path) -> None:
    def fail(ours: bytes, theirs: bytes) -> bytes:
        raise TimingCacheError("they do not belong together", "use another file")

    put(file, b"theirs\n")
    before = file.read_bytes()
    with pytest.raises(TimingCacheError, match="do not belong together"):
        CacheFile(file, HERE).save(b"ours\n", grown_from=None, merge=fail)
    assert file.read_bytes() == before
    merge = Union()
    CacheFile(file, HERE).save(b"ours\n", grown_from=None, merge=merge)
    assert CacheFile(file, HERE).load() == stored(b"ours\ntheirs\n")


def test_a_cache_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError):
        CacheFile(tmp_path / "file" / "timing.cache", HERE).save(b"", grown_from=None, merge=never)


# ── many builds at once ─────────────────────────────────────────────────────────────────────────────────

ROUNDS = 20


def test_builds_that_save_at_once_lose_nothing(file: Path) -> None:
    here = msgspec.json.encode(HERE).decode()
    assert run_beside(grow_file, str(file), here, str(ROUNDS)) == [0] * PROCESSES
    cache = CacheFile(file, HERE).load()
    assert cache is not None
    assert sorted(cache.blob.decode().splitlines()) == sorted(lines_of(ROUNDS))
