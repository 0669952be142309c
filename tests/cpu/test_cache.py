"""`trtopt cache`, on a store that builds could have left."""

import json
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from trtopt.builder.timing_cache import TimingStore
from trtopt.errors import UsageError
from trtopt.records import Backend, CacheTerms, Identity
from trtopt.workflows.cache_folder import store_folder

L4 = Identity(
    backend=Backend(name="tensorrt", version="10.16.1"),
    gpu="NVIDIA L4",
    compute_capability="8.9",
    driver="580.95.05",
    cuda="13.0",
)


@pytest.fixture
def store(trtopt_cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> TimingStore:
    """A store with two caches: of optimisation levels 3 and 5."""
    store = TimingStore(trtopt_cli.folder / "store")
    monkeypatch.setenv("TRTOPT_CACHE_DIR", str(store.folder))
    for level in (3, 5):
        terms = CacheTerms(opt_level=level)
        store.file(L4, terms).save(b"x" * level, grown_from=None, merge=lambda ours, theirs: ours)
    return store


def path(store: TimingStore, level: int) -> Path:
    return store.file(L4, CacheTerms(opt_level=level)).path


def test_the_caches_are_listed_and_reported(trtopt_cli: CommandLine, store: TimingStore) -> None:
    listed = trtopt_cli("cache", "ls").stdout
    assert path(store, 3).stem in listed
    assert path(store, 5).stem in listed
    lines = [json.loads(line) for line in trtopt_cli("cache", "ls", "--json", "-").stdout.splitlines()]
    assert {line["terms"]["opt_level"] for line in lines} == {3, 5}


def test_an_empty_store_is_none(trtopt_cli: CommandLine) -> None:
    assert "no timing caches yet" in trtopt_cli("cache", "ls", "--cache-dir", "nowhere").stdout
    assert not (trtopt_cli.folder / "nowhere").exists()


def test_a_damaged_cache_is_named_by_ls_and_removed_by_prune(
    trtopt_cli: CommandLine, store: TimingStore
) -> None:
    path(store, 3).write_bytes(path(store, 3).read_bytes()[:-1])
    told = trtopt_cli("cache", "ls").stdout
    assert f"{path(store, 3).stem}: " in told
    assert "its bytes are not those that were written" in told
    assert f"{path(store, 5).stem}: " not in told
    assert f"removed {path(store, 3).name}" in trtopt_cli("cache", "prune").stdout
    assert f"removed {path(store, 5).name}" in trtopt_cli("cache", "prune", "--max-size", "0").stdout


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"TRTOPT_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/trtopt"),
        ({"HOME": "/home/me"}, "/home/me/.cache/trtopt"),
    ],
)
def test_the_store_is_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], folder: str
) -> None:
    for name in ("TRTOPT_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert store_folder() == Path(folder)
    assert store_folder("/given") == Path("/given")


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> None:
        raise KeyError(uid)

    for name in ("TRTOPT_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(UsageError):
        store_folder()


def test_a_build_that_times_nothing_leaves_the_store_alone(trtopt_cli: CommandLine) -> None:
    from tests.support.command_line import DIGITS

    done = trtopt_cli("build", DIGITS, "--backend", "tensorrt-rtx", "--cache-dir", "store")
    assert done.returncode == 0, done.stderr
    assert not (trtopt_cli.folder / "store").exists()
    told = trtopt_cli("build", DIGITS, "--backend", "tensorrt-rtx", "--force", "--reproducible")
    assert told.returncode == 2
    assert "--reproducible: tensorrt-rtx" in told.stderr
