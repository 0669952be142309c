"""A job's way to another host and back, without a cluster: real builds in a scratch folder."""

import hashlib
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from tests.support.paths import ROOT
from trtopt.builder.engine import BuildJob
from trtopt.device.backends import open_builder
from trtopt.errors import ArtifactError, BuildError, DeviceError, TrtoptError
from trtopt.executors import transfer
from trtopt.executors.transfer import Reply, carry_out, checked, pack, unpack
from trtopt.files.bounded_reading import sha256_of
from trtopt.onnxio.model_info import read_onnx
from trtopt.recipe import Recipe
from trtopt.records import BuildPlan, EngineArtifact
from trtopt.workers.worker import Failure
from trtopt.workflows.workbench import make_plans

MODEL = ROOT / "models" / "digits" / "digits.onnx"


def plan_for(version: str | None = None) -> BuildPlan:
    backend = open_builder("onnxruntime").backend
    if version is not None:
        backend = msgspec.structs.replace(backend, version=version)
    return make_plans(read_onnx(MODEL), Recipe(batch=(2,)), backend)[0]


def build_job(folder: Path, plan: BuildPlan) -> BuildJob:
    return BuildJob(
        onnx=str(MODEL), types=read_onnx(MODEL).types, plan=plan, folder=str(folder), timing_cache=None
    )


def packed_job(job: BuildJob) -> tuple[bytes, dict[str, Path]]:
    """And its files by hash."""
    files: dict[str, Path] = {}

    def hash_of(file: Path) -> str:
        files[sha256 := sha256_of(file)] = file
        return sha256

    return pack(job, limit_s=60, hash_of=hash_of), files


def sent(parcel: bytes, files: dict[str, Path]) -> tuple[bytes, dict[str, bytes]]:
    return carry_out(parcel, lambda sha256: files[sha256].read_bytes(), lambda *_: None)


def test_a_build_comes_back_with_its_files_and_the_users_own_paths(tmp_path: Path) -> None:
    job = build_job(tmp_path, plan_for())
    parcel, files = packed_job(job)
    reply, contents = sent(parcel, files)
    assert b"/.trtopt." not in reply  # the scratch folder
    outcome = unpack(job, reply, contents)
    assert isinstance(outcome, EngineArtifact)
    engine = outcome
    assert engine.plan == job.plan
    assert sha256_of(tmp_path / engine.path) == engine.sha256
    assert {engine.path, engine.log} == {file.name for file in tmp_path.iterdir()}


def test_an_error_names_the_users_paths_and_keeps_its_type_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = build_job(tmp_path, plan_for(version="0.1"))
    outcome = unpack(job, *sent(*packed_job(job)))
    assert isinstance(outcome, TrtoptError)
    assert outcome.remedy == "plan and build in one environment"

    def run_all_jobs(jobs: list[BuildJob], **_: object) -> list[tuple[int, TrtoptError]]:
        assert jobs[0].folder != job.folder
        return [(0, BuildError(f"{jobs[0].folder}/batch2.log: full", f"see {jobs[0].onnx}"))]

    monkeypatch.setattr(transfer, "THIS_HOST", SimpleNamespace(run_all_jobs=run_all_jobs))
    outcome = unpack(job, *sent(*packed_job(job)))
    assert isinstance(outcome, BuildError)
    assert (outcome.problem, outcome.remedy) == (f"{tmp_path}/batch2.log: full", f"see {MODEL}")


def test_a_model_travels_with_its_external_weights(tmp_path: Path) -> None:
    import onnx

    model = onnx.load(MODEL)
    path = tmp_path / "large.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="large.data", size_threshold=0)
    out = tmp_path / "out"
    out.mkdir()
    job = msgspec.structs.replace(build_job(out, plan_for()), onnx=str(path))
    parcel, files = packed_job(job)
    assert sorted(file.name for file in files.values()) == ["large.data", "large.onnx"]
    assert isinstance(unpack(job, *sent(parcel, files)), EngineArtifact)


def test_a_file_that_arrives_damaged_is_refused_on_both_ways(tmp_path: Path) -> None:
    job = build_job(tmp_path, plan_for())
    parcel, files = packed_job(job)
    with pytest.raises(ArtifactError, match="arrived damaged"):
        carry_out(parcel, lambda sha256: b"other bytes", lambda *_: None)
    reply, contents = sent(parcel, files)
    with pytest.raises(ArtifactError, match="arrived damaged"):
        unpack(job, reply, {sha256: content + b"!" for sha256, content in contents.items()})
    with pytest.raises(ArtifactError, match="arrived damaged"):
        unpack(job, reply, {})
    with pytest.raises(ArtifactError, match="a reply arrived damaged"):
        unpack(job, reply[:-1], contents)
    assert list(tmp_path.iterdir()) == []


def test_what_fails_on_a_full_disk_of_the_node_is_no_fault_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = build_job(tmp_path, plan_for(version="0.1"))
    parcel, files = packed_job(job)
    monkeypatch.setattr(transfer, "_FULL_BYTES", 1 << 60)  # so this disk counts as full
    with pytest.raises(DeviceError, match="is full: the plan is for"):
        sent(parcel, files)


def test_what_is_undamaged_passes() -> None:
    assert checked(b"x", hashlib.sha256(b"x").hexdigest(), "place") == b"x"


@pytest.mark.parametrize("place", ["out/../../evil", "/etc/evil"])
def test_a_file_cannot_leave_the_folder_it_arrives_in(tmp_path: Path, place: str) -> None:
    job = build_job(tmp_path / "folder", plan_for())
    sha256 = hashlib.sha256(b"x").hexdigest()
    built = msgspec.Raw(msgspec.json.encode(Failure(name="BuildError", problem="", remedy="")))
    reply = msgspec.json.encode(Reply(node="n", outcome=built, files={place: sha256}))
    with pytest.raises(ArtifactError, match="leaves the folder"):
        unpack(job, reply, {sha256: b"x"})
    assert not (tmp_path / "evil").exists()
