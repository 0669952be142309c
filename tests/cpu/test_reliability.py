"""Folders that were changed, killed builds, rebuilds: with real engines of TensorRT-RTX."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.support.command_line import DIGITS, CommandLine
from tests.support.killing import run_killed
from trtopt.errors import ArtifactError, OutputError, UsageError
from trtopt.files.manifests import hashes_of, read_manifest, read_verified, write_manifest
from trtopt.records import Manifest, to_json
from trtopt.requests.measure import ProfileRequest
from trtopt.workflows.build.folder import check_folder, differences, rebuild_locked, trust
from trtopt.workflows.profile.profile import profile


@pytest.fixture
def folder(tmp_path: Path, rtx_build: Path) -> Path:
    """A copy of a build for batches 1 and 8."""
    shutil.copytree(rtx_build, tmp_path / "d")
    return tmp_path / "d"


def edited(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))


# ── verify ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_build_names_every_file_by_its_hash(folder: Path) -> None:
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert read_manifest(folder).files.keys() == there - {"manifest.json"}
    check = check_folder(folder)
    assert (check.is_whole, check.extra) == (True, ())


def test_any_file_that_is_missing_changed_or_new_is_named(folder: Path) -> None:
    for name in sorted(read_manifest(folder).files):
        whole = (folder / name).read_bytes()
        edited(folder / name)
        assert check_folder(folder).changed == (name,)
        (folder / name).unlink()
        assert check_folder(folder).missing == (name,)
        (folder / name).write_bytes(whole)
    (folder / "result.json").write_text("{}")
    check = check_folder(folder)
    assert (check.is_whole, check.extra) == (True, ("result.json",))


def test_an_engine_that_only_its_own_entry_names_is_checked_too(folder: Path) -> None:
    manifest = read_manifest(folder)
    (folder / "manifest.json").write_bytes(to_json(msgspec.structs.replace(manifest, files={})))
    assert check_folder(folder).is_whole
    (folder / "batch8.engine").unlink()
    assert check_folder(folder).missing == ("batch8.engine",)


def test_verify_tells_and_exits_with_1(trtopt_cli: CommandLine, folder: Path) -> None:
    assert "unchanged since the build" in trtopt_cli("verify", folder).stdout
    edited(folder / "batch8.engine")
    (folder / "batch1.log").unlink()
    done = trtopt_cli("verify", folder)
    assert done.returncode == 1
    assert "missing: batch1.log" in done.stdout
    assert "changed: batch8.engine" in done.stdout


def test_a_locked_build_needs_the_graphs_and_no_engine(folder: Path, tmp_path: Path) -> None:
    edited(folder / "batch8.engine")
    (folder / "batch1.engine").unlink()
    (folder / "batch1.tactics.json").write_text("of that engine")
    manifest = read_manifest(folder)
    write_manifest(folder, manifest, hashes_of(folder) | manifest.files)
    edited(folder / "batch1.tactics.json")
    rebuild_locked(folder, tmp_path / "again")
    assert check_folder(tmp_path / "again").is_whole
    assert not (tmp_path / "again" / "batch1.tactics.json").exists()
    edited(folder / "model.onnx")
    with pytest.raises(ArtifactError, match=r"model\.onnx"):
        rebuild_locked(folder, tmp_path / "once-more")


def test_a_rebuild_does_not_replace_a_build_with_locked_tactics(folder: Path, tmp_path: Path) -> None:
    """Its line has `--locked`, as a rebuild's has, and it is of the same model."""
    shutil.copytree(folder, locked := tmp_path / "locked")
    (locked / "batch1.tactics.json").write_text("as in the lock")
    manifest = msgspec.structs.replace(read_manifest(locked), argv=("trtopt", "build", "--locked", "a.json"))
    write_manifest(locked, manifest)
    with pytest.raises(OutputError, match="another build"):
        rebuild_locked(folder, locked)


@pytest.mark.parametrize("name", ["manifest.json", "sweep.json", "ledger.json", "batch8.engine"])
def test_a_result_does_not_replace_what_a_folder_is_made_of(
    name: str, trtopt_cli: CommandLine, folder: Path
) -> None:
    if not (folder / name).is_file():
        (folder / name).write_text("{}")
    kept = (folder / name).read_bytes()
    for command in (("verify", folder, "--json"), ("plan", folder, "--slo", "p99=1ms", "-o")):
        assert "name another file" in trtopt_cli.fails(2, *command, folder / name)
    assert (folder / name).read_bytes() == kept


@pytest.mark.parametrize("name", ["../outside.engine", "/etc/passwd", "a/../../b"])
def test_a_manifest_that_names_files_outside_its_folder_is_refused(folder: Path, name: str) -> None:
    text = (folder / "manifest.json").read_text().replace("batch8.engine", name)
    (folder / "manifest.json").write_text(text)
    with pytest.raises(ArtifactError, match="is not the name of a file in the build folder"):
        read_manifest(folder)


def test_an_engine_that_has_changed_is_loaded_only_once_it_is_trusted_by_name(
    trtopt_cli: CommandLine, cpu_build: Path
) -> None:
    folder = trtopt_cli.folder / "e"
    shutil.copytree(cpu_build, folder)
    shutil.copyfile(folder / "model.onnx", folder / "batch8.onnx")
    bench = ("bench", folder, "--duration", "0.05", "--warmup", "0.01", "--batch", "8")
    assert "it was not loaded" in trtopt_cli.fails(1, *bench)
    assert "no engine of" in trtopt_cli.fails(2, "verify", folder, "--trust", "model.onnx")
    assert trtopt_cli("verify", folder, "--trust", "batch8.onnx").returncode == 0
    assert trtopt_cli(*bench).returncode == 0
    assert "trusted by name" in read_manifest(folder).engines[1].notes[0]
    edited(folder / "batch1.onnx")
    (folder / "batch8.onnx").unlink()
    assert check_folder(folder).changed == ("batch1.onnx",)
    with pytest.raises(ArtifactError, match="is not there"):
        trust(folder, ["batch8.onnx"])


def test_what_the_manifest_vouches_for_is_checked_before_it_is_read(folder: Path) -> None:
    for name in ("model.onnx", "batch8.log"):
        edited(folder / name)
    with pytest.raises(ArtifactError, match=r"model\.onnx"):
        profile(ProfileRequest(folder, duration=0.05))
    with pytest.raises(ArtifactError, match=r"batch8\.log"):
        read_verified(folder / "batch8.log", read_manifest(folder).files["batch8.log"])


# ── --locked ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_locked_build_is_made_of_the_manifest_and_tells_what_differs(
    trtopt_cli: CommandLine, folder: Path
) -> None:
    files = ("--log-file", "log.jsonl", "--json", "manifest.json")
    done = trtopt_cli("build", "--locked", folder, "-v", *files)
    assert done.returncode == 0, done.stderr
    assert all((trtopt_cli.folder / name).stat().st_size for name in files[1::2])
    before, after = read_manifest(folder), read_manifest(trtopt_cli.folder / "d.rebuilt")
    assert [engine.plan for engine in after.engines] == [engine.plan for engine in before.engines]
    assert check_folder(trtopt_cli.folder / "d.rebuilt").is_whole
    same = [new.sha256 == old.sha256 for new, old in zip(after.engines, before.engines, strict=True)]
    assert all(same) == ("is the same" in done.stdout)
    assert "omit '--batch'" in trtopt_cli.fails(2, "build", "--locked", folder, "--batch", "2")
    assert "give MODEL" in trtopt_cli.fails(2, "build")


def test_versions_machine_and_settings_that_differ_are_told(folder: Path) -> None:
    before = read_manifest(folder)
    first = before.engines[0]
    other = msgspec.structs.replace(
        first,
        builder_config=first.builder_config | {"flags": "A_FLAG"},
        device=msgspec.structs.replace(first.device, driver="1.2"),
        sha256="0" * 64,
    )
    after: Manifest = msgspec.structs.replace(before, trtopt="0", engines=(other, *before.engines[1:]))
    assert [change.rpartition(": ")[0] for change in differences(before, after)] == [
        "trtopt",
        "batch1.engine: device driver",
        "batch1.engine: flags",
        "batch1.engine: SHA-256",
    ]
    assert differences(before, before) == []


def test_a_locked_build_of_a_changed_model_is_refused(folder: Path, tmp_path: Path) -> None:
    edited(folder / "model.onnx")
    with pytest.raises(ArtifactError, match=r"model\.onnx missing or changed"):
        rebuild_locked(folder, tmp_path / "again")
    assert not (tmp_path / "again").exists()
    with pytest.raises(UsageError, match="is the build itself"):
        rebuild_locked(folder, folder)


# ── killed builds ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.long
def test_a_build_that_was_killed_does_no_harm_and_the_next_one_takes_its_leavings_away(
    tmp_path: Path,
) -> None:
    """`unit/test_killed.py` has every step; this is the whole way."""
    command = ["-m", "trtopt", "build", str(DIGITS), "-o", str(tmp_path / "d")]
    command += ["--backend", "tensorrt-rtx", "--rewrite", "none"]
    assert run_killed("replace", 2, *command) == -signal.SIGKILL  # the manifest's name is the first
    assert len(list(tmp_path.glob(".d.*"))) == 1
    assert not (tmp_path / "d").exists()
    done = subprocess.run([sys.executable, *command], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["d"]
    assert check_folder(tmp_path / "d").is_whole
