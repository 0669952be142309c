"""`trtopt doctor --bundle`: what is in the zip file, and what is not."""

from __future__ import annotations

import getpass
import json
import platform
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from trtopt.files.scrubbing import private_words, scrubbed

SECRET = "hunter2-and-more"


def _texts(file: Path) -> dict[str, str]:
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_a_bundle_tells_the_machine_and_the_build_and_nothing_private(
    trtopt_cli: CommandLine, cpu_build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_TOKEN", SECRET)
    build = trtopt_cli.folder / "build"
    build.mkdir()
    for file in cpu_build.iterdir():
        (build / file.name).write_bytes(file.read_bytes())
    with (build / "batch1.log").open("a") as log:
        log.write(f"\n[E] {Path.home()}/models by {getpass.getuser()} at {platform.node()} with {SECRET}\n")
    done = trtopt_cli("doctor", build, "--bundle", "report.zip")
    assert done.returncode == 0, done.stderr
    texts = _texts(trtopt_cli.folder / "report.zip")
    assert {"survey.json", "packages.txt", "variables.txt", "build/manifest.json"} <= texts.keys()
    assert not [name for name in texts if name.endswith((".onnx", ".engine", ".npz"))]
    assert json.loads(texts["survey.json"])["onnxruntime"]["version"]
    assert "MY_API_TOKEN" in texts["variables.txt"]
    assert SECRET not in "".join(texts.values())
    assert "[E] ~/models by USER at HOST with ***" in texts["build/batch1.log"]
    assert str(Path.home()) not in "".join(texts.values())


def test_names_are_taken_out_where_they_stand_alone_and_secrets_anywhere() -> None:
    words = private_words(
        {"DB_PASSWORD": "abcd", "PASS": "x", "EDITOR": "vi", "XDG_SESSION_CLASS": "banner"},
        user="ann",
        host="box7",
        home="/home/ann",
    )
    told = "/home/ann/m.onnx: ann@box7 banner xabcdx x vi box77"
    assert scrubbed(told, words) == "~/m.onnx: USER@HOST banner x***x x vi box77"


def test_passwords_in_addresses_and_secrets_as_json_writes_them_are_taken_out() -> None:
    words = private_words(
        {
            "PWD": "/work",
            "OLDPWD": "/work",
            "DB_PWD": "hush",
            "API_KEY": 'a"\nb',
            "PROXY": "http://ann:open@box/",
        },
        user="",
        host="",
        home="",
    )
    told = json.dumps({"k": 'a"\nb', "p": "http://ann:open@box/", "d": "hush", "at": "/work"})
    assert scrubbed(told, words) == '{"k": "***", "p": "http://ann:***@box/", "d": "***", "at": "/work"}'


def test_links_in_a_build_folder_are_not_followed(trtopt_cli: CommandLine, cpu_build: Path) -> None:
    build = trtopt_cli.folder / "build"
    shutil.copytree(cpu_build, build)
    (trtopt_cli.folder / "diary").write_text("nobody's business")
    (build / "x.log").symlink_to("../diary")
    assert trtopt_cli("doctor", build, "--bundle", "report.zip").returncode == 0
    assert "build/x.log" not in _texts(trtopt_cli.folder / "report.zip")


def test_a_folder_without_a_bundle_or_one_that_is_none_is_refused(trtopt_cli: CommandLine) -> None:
    assert "--bundle" in trtopt_cli.fails(2, "doctor", ".")
    assert "does not exist" in trtopt_cli.fails(2, "doctor", "nowhere", "--bundle", "x.zip")
