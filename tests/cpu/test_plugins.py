"""Plugin libraries are native code: a manifest that names one does not have it loaded, the user does."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from tests.support.command_line import CommandLine
from tests.support.long import few
from trtopt.errors import ArtifactError
from trtopt.files.bounded_reading import sha256_of
from trtopt.files.manifests import MANIFEST, read_manifest
from trtopt.records import Plugin, to_json
from trtopt.serving import EnginePool

REFUSED = "a plugin library that the engines need; it is native code and was not loaded"


def with_plugin(build: Path, folder: Path) -> Path:
    """A copy of a build whose manifest names a library for every engine. Returns the library."""
    shutil.copytree(build, folder)
    library = folder.parent / "lib.so"
    library.write_text("no library at all")
    manifest = read_manifest(folder)
    plugin = Plugin(path=str(library), sha256=sha256_of(library))
    engines = []
    for engine in manifest.engines:
        settings = msgspec.structs.replace(engine.plan.settings, plugins=(plugin,))
        plan = msgspec.structs.replace(engine.plan, settings=settings)
        engines.append(msgspec.structs.replace(engine, plan=plan))
    (folder / MANIFEST).write_bytes(to_json(msgspec.structs.replace(manifest, engines=tuple(engines))))
    return library


@pytest.mark.parametrize("command", few("bench", of=["bench", "profile", "compare"]))
def test_what_measures_loads_no_plugin_that_is_not_named(
    command: str, trtopt_cli: CommandLine, cpu_build: Path
) -> None:
    library = with_plugin(cpu_build, trtopt_cli.folder / "e")
    asked = (
        command,
        "e",
        "--batch",
        "8",
        "--duration",
        "0.3",
        *(["--control", "1"] * (command == "compare")),
    )
    told = trtopt_cli.fails(1, *asked)
    assert REFUSED in told
    assert f"--trust {library}" in told
    assert REFUSED in trtopt_cli.fails(1, *asked, "--trust", "batch8.onnx")
    done = trtopt_cli(*asked, "--trust", library)  # ONNX Runtime has no use for it
    assert done.returncode == 0, done.stderr


def test_what_builds_again_loads_no_plugin_that_is_not_named(
    trtopt_cli: CommandLine, rtx_build: Path
) -> None:
    library = with_plugin(rtx_build, trtopt_cli.folder / "e")
    assert f"--plugin {library}" in trtopt_cli.fails(1, "build", "--locked", "e")
    named = trtopt_cli.fails(1, "build", "--locked", "e", "--plugin", library)
    assert "cannot be loaded" in named  # it was tried


def test_a_pool_loads_no_plugin_that_is_not_named(tmp_path: Path, cpu_build: Path) -> None:
    library = with_plugin(cpu_build, tmp_path / "e")
    with pytest.raises(ArtifactError, match=REFUSED):
        EnginePool.open(tmp_path / "e")
    with EnginePool.open(tmp_path / "e", trust=[str(library)]) as pool:
        assert pool.largest_batch == 8
