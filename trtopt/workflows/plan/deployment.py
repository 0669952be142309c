"""A plan into a model repository of Triton's."""

from __future__ import annotations

import re
from pathlib import Path

from trtopt.errors import UsageError
from trtopt.files.atomic import lock, write_atomically
from trtopt.files.manifests import is_build_folder, read_manifest, read_plan, read_verified
from trtopt.files.outputs import check_output, hashed_kind, with_hash, write_output
from trtopt.serving.triton import check_successor, readme, triton_model

CONFIG = "config.pbtxt"
_IN_CONFIG, _IN_README = "# {}", "<!-- {} -->"
_CONFIG, _README = hashed_kind("a config", _IN_CONFIG), hashed_kind("a README", _IN_README)


def deploy_triton(path: str | Path, repository: str | Path, *, name: str | None = None) -> Path:
    """Write the plan at `path` into a model repository as the next version of the model `name`.

    Args:
        path: what `trtopt plan -o` wrote.
        repository: a folder, new or with models in it.
        name: of the model [default: the plan's file without its suffix].

    Returns:
        The folder of the new version.
    """
    path = Path(path)
    name = name if name is not None else path.stem
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise UsageError(f"--name {name!r}: not a model name", "give --name of letters, digits, _, - and .")
    plan = read_plan(path)
    model = triton_model(plan, name)
    content = read_verified(path.parent / model.engine.path, model.engine.sha256, "plan")
    build = (path.parent / model.engine.path).parent
    io = read_manifest(build).io if is_build_folder(build) else ()
    folder = Path(repository) / name
    with lock(folder):
        config = folder / CONFIG
        if config.is_file():
            check_successor(config.read_text("utf-8", errors="replace"), model.config, str(config))
        version = 1 + max((int(one.name) for one in folder.glob("*") if one.name.isdecimal()), default=0)
        if folder.is_dir():
            check_output(config, _CONFIG)
        write_atomically(folder / str(version) / model.file, content)
        readme_file = folder / "README.md"  # others' words in it stay
        if not readme_file.exists() or (readme_file.is_file() and _README.is_own(readme_file)):
            write_atomically(readme_file, with_hash(readme(plan, name, version, io), _IN_README))
        write_output(config, with_hash(model.config, _IN_CONFIG), _CONFIG)
    return folder / str(version)
