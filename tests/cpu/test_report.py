"""`trtopt report` on what the other commands leave, and on folders that hold something else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

import trtopt
from tests.support import examples
from tests.support.command_line import DIGITS, ROOT, CommandLine, needs_no_gpu
from trtopt.api import profile
from trtopt.errors import ArtifactError, OutputError
from trtopt.files.manifests import read_manifest
from trtopt.files.outputs import check_output
from trtopt.records import BenchReport, Collected, EngineRef, ProfileReport, to_json
from trtopt.records.precision import CheckReport
from trtopt.report.html.page import page_of
from trtopt.report.html.pages import report_page
from trtopt.workflows.report import PAGE, collect, default_output

INSPECTOR = ROOT / "tests" / "data" / "inspector" / "tensorrt-8.6.0-r50_fp16.json.gz"


@pytest.fixture(scope="module")
def measured(cpu_build: Path) -> BenchReport:
    return trtopt.bench(cpu_build, duration=0.03, warmup=0.01, layers=True)


@pytest.fixture(scope="module")
def inside(cpu_build: Path, measured: BenchReport, tmp_path_factory: pytest.TempPathFactory) -> ProfileReport:
    file = tmp_path_factory.mktemp("result") / "result.json"
    file.write_bytes(to_json(measured))
    return profile(cpu_build, result=file)


@pytest.fixture
def full(cpu_build: Path, measured: BenchReport, inside: ProfileReport, tmp_path: Path) -> Path:
    """A build folder with a result file and a profile in it."""
    folder = tmp_path / "full"
    shutil.copytree(cpu_build, folder)
    (folder / "result.json").write_bytes(to_json(measured))
    (folder / "profile.json").write_bytes(to_json(inside))
    return folder


def change(file: Path, **fields: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_bytes()) | fields))


# ── what a folder holds ─────────────────────────────────────────────────────────────────────────────────


def test_a_page_is_made_of_what_build_bench_and_profile_leave(trtopt_cli: CommandLine) -> None:
    commands = (
        ("build", DIGITS, "-o", "d", "--backend", "onnxruntime", "--batch", "1,8"),
        ("bench", "d", "--duration", "0.03", "--warmup", "0.01", "--json", "d/result.json"),
        ("profile", "d", "--duration", "0.1", "-o", "d", "--trace"),
        ("report", "d"),
    )
    for command in commands:
        done = trtopt_cli(*command)
        assert done.returncode == 0, done.stderr
    page = (trtopt_cli.folder / "d.html").read_text("utf-8")
    assert "/block1/conv2/conv/Conv + /block1/Add + /block1/relu2/Relu" in page
    for command in commands:
        assert f"trtopt {' '.join(map(str, command))}" in page
    assert "not on this page: trace.json, no record of trtopt" in page
    assert "not measured" not in page
    assert trtopt_cli("report", "d", "d").returncode == 0
    side_by_side = (trtopt_cli.folder / "d-and-d.html").read_text("utf-8")
    assert "trtopt report d d" in side_by_side
    assert "How do they differ?" in side_by_side
    assert "B against A (95 %)" in side_by_side


def test_what_is_no_page_is_never_overwritten(tmp_path: Path, trtopt_cli: CommandLine) -> None:
    folder, page = tmp_path / "d", tmp_path / "d.html"
    assert default_output(folder) == page
    assert default_output(folder, tmp_path / "e") == tmp_path / "d-and-e.html"
    check_output(page, PAGE)
    page.write_text("<p>the user's</p>")
    with pytest.raises(OutputError, match="not a page of trtopt"):
        check_output(page, PAGE)
    (tmp_path / "d").mkdir()
    assert "is not a page of trtopt" in trtopt_cli.fails(1, "report", tmp_path / "d", "-o", page)
    assert page.read_text() == "<p>the user's</p>"
    page.write_text(
        page_of(report_page(Collected(folder="d", name="d", manifest=examples.manifest())), "", "today")
    )
    check_output(page, PAGE)


def test_a_folder_is_called_by_its_name_however_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "d").mkdir()
    monkeypatch.chdir(tmp_path / "d")
    assert default_output(Path()) == tmp_path / "d.html"
    assert default_output(Path("../d")) == Path("../d.html")


def test_a_check_of_the_model_is_collected_and_one_of_another_is_left_out(full: Path) -> None:
    manifest = read_manifest(full)
    check = CheckReport(
        created="2026-01-01T00:00:00+00:00",
        model="d",
        against="m.onnx",
        against_sha256=manifest.source_sha256,
        data="x.npz",
        data_is_random=False,
        subjects=(),
    )
    (full / "check.json").write_bytes(to_json(check))
    other = msgspec.structs.replace(check, against_sha256="0" * 64)
    (full / "other.json").write_bytes(to_json(other))
    found = collect(full)
    assert found.checks == {"check.json": check}
    assert found.left_out == {"other.json": "a check against another model"}
    (full / "check.json").write_bytes(to_json(check)[:-20])
    with pytest.raises(ArtifactError, match=r"check\.json: cannot be read as a check"):
        collect(full)


def test_measurements_of_another_build_are_left_out_of_a_new_builds_page(
    full: Path, measured: BenchReport
) -> None:
    first = measured.points[0]
    other = msgspec.structs.replace(first.latency.engine, sha256="0" * 64)
    latency = msgspec.structs.replace(first.latency, engine=other)
    point = msgspec.structs.replace(first, latency=latency)
    (full / "old.json").write_bytes(to_json(msgspec.structs.replace(measured, points=(point,))))
    with pytest.raises(ArtifactError, match=r"old\.json: batch .* is of another engine"):
        collect(full)
    found = collect(full, leave_out_others=True)
    assert found.left_out == {"old.json": "of another build"}
    assert found.results.keys() == {"result.json"}


def test_all_that_belongs_is_collected(full: Path, measured: BenchReport, inside: ProfileReport) -> None:
    (full / "again.json").write_bytes(to_json(measured))
    found = collect(full)
    assert found.manifest is not None
    assert found.results == {"again.json": measured, "result.json": measured}
    assert found.profiles == {"profile.json": inside}
    assert found.left_out == {}
    assert found.notes == ()


@needs_no_gpu
def test_engines_that_do_not_run_here_are_reported_with_the_model_on_the_cpu(
    rtx_build: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "rtx"
    shutil.copytree(rtx_build, folder)
    result = trtopt.bench(folder, duration=0.03, warmup=0.01, backend="auto", batch=[8])
    (folder / "result.json").write_bytes(to_json(result))
    profiled = profile(folder, batch=[8], backend="onnxruntime", duration=0.1)
    (folder / "profile.json").write_bytes(to_json(profiled))
    found = collect(folder)
    assert found.results["result.json"].environment.backend.name == "onnxruntime"
    assert found.profiles["profile.json"].environment.backend.name == "onnxruntime"


def test_what_is_not_trtopts_is_left_out_with_its_reason(full: Path) -> None:
    import gzip

    (full / "layers.json").write_bytes(gzip.decompress(INSPECTOR.read_bytes()))
    (full / "strict.json").write_text('{"Bindings": [], "Layers": []}')
    (full / "times.json").write_text("[]")
    (full / "empty.json").write_text("")
    (full / "folder.json").mkdir()
    names = ("empty.json", "folder.json", "layers.json", "strict.json", "times.json")
    assert collect(full).left_out == dict.fromkeys(names, "no record of trtopt's")


def test_results_and_profiles_of_two_builds_are_noted(
    tmp_path: Path, measured: BenchReport, inside: ProfileReport
) -> None:
    other = EngineRef(path="e", sha256="0" * 64, label="batch8")
    engines = (inside.engines[0], msgspec.structs.replace(inside.engines[1], engine=other))
    (tmp_path / "result.json").write_bytes(to_json(measured))
    (tmp_path / "profile.json").write_bytes(to_json(msgspec.structs.replace(inside, engines=engines)))
    (note,) = collect(tmp_path).notes
    assert note.startswith("batch 8: result.json and profile.json were made with two builds")


# ── bad input ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_folder_with_nothing_in_it_says_what_would_fill_it(trtopt_cli: CommandLine) -> None:
    assert "does not exist" in trtopt_cli.fails(2, "report", "nowhere", "-o", "r.html")
    (trtopt_cli.folder / "d").mkdir()
    told = trtopt_cli.fails(2, "report", "d", "-o", "r.html")
    assert "d: holds nothing to report on: it has no JSON files" in told
    assert "`trtopt profile PATH -o d`" in told
    (trtopt_cli.folder / "d" / "x.json").write_text('{"Layers": []}')
    told = trtopt_cli.fails(2, "report", "d", "-o", "r.html")
    assert "x.json is no record of trtopt's" in told
    told = trtopt_cli.fails(2, "report", "d/x.json", "-o", "r.html")
    assert "d/x.json: is a file" in told
    assert "the folder that it lies in: d" in told


def test_a_page_that_cannot_be_written_is_reported_before_anything_is_read(
    full: Path, trtopt_cli: CommandLine
) -> None:
    assert "is a folder" in trtopt_cli.fails(1, "report", full, "-o", full)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("result.json", "as a result file"),
        ("profile.json", "as a profile"),
        ("manifest.json", "as a manifest"),
    ],
)
def test_a_file_of_trtopts_that_is_broken_or_newer_is_an_error(full: Path, name: str, told: str) -> None:
    file = full / name
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(ArtifactError, match=f"{name}: cannot be read {told}") as broken:
        collect(full)
    assert "engines" not in broken.value.remedy  # no remedy of another command's: a folder was given
    file.write_bytes(content)
    kind = json.loads(content)["schema"].partition("/")[0]
    change(file, schema=f"{kind}/999")
    with pytest.raises(ArtifactError, match="written by a newer trtopt"):
        collect(full)


@pytest.mark.parametrize("name", ["result.json", "profile.json"])
def test_files_of_another_model_are_refused(full: Path, name: str) -> None:
    change(full / name, model_sha256="0" * 64)
    with pytest.raises(ArtifactError, match=rf"{name}: is of another model than that of manifest.json"):
        collect(full)
    (full / "manifest.json").unlink()
    with pytest.raises(ArtifactError, match=r"profile\.json: is of another model than that of result\.json"):
        collect(full)


def test_a_profile_of_another_engine_is_refused(full: Path, inside: ProfileReport) -> None:
    other = EngineRef(path="batch1.onnx", sha256="0" * 64, label="batch1")
    engines = (msgspec.structs.replace(inside.engines[0], engine=other), *inside.engines[1:])
    (full / "profile.json").write_bytes(to_json(msgspec.structs.replace(inside, engines=engines)))
    with pytest.raises(ArtifactError, match=r"batch 1 is of another engine .*hashes differ") as caught:
        collect(full)
    assert "make it again" in caught.value.remedy
