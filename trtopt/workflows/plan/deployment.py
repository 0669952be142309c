"""A plan into a model repository of Triton's."""

from __future__ import annotations

import re
from pathlib import Path

from trtopt.errors import UsageError
from trtopt.files.atomic import write_atomically
from trtopt.files.locks import lock
from trtopt.files.manifests import is_build_folder, read_manifest, read_plan, read_verified
from trtopt.serving.triton import WRITTEN_BY, check_successor, readme, triton_model

CONFIG = "config.pbtxt"


def deploy_triton(path: str | Path, repository: str | Path, *, name: str | None = None) -> Path:
    """Write the plan at `path` into a model repository as the next version of the model `name`.

    Args:
        path: what `trtopt plan -o` wrote.
        repository: a folder, new or with models in it.
        name: of the model [default: the plan's file without its suffix].

    Returns:
        The folder of the new version.

    Raises:
        UsageError: a plan that Triton cannot serve, or a name that is none; a model whose clients would not
            understand the new version.
        ArtifactError: no plan, an engine that is missing or another one.
        BackendMissingError: the extra `triton` is not installed.
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
        write_atomically(folder / str(version) / model.file, content)
        if _is_replaceable(readme_file := folder / "README.md"):
            write_atomically(readme_file, readme(plan, name, version, io).encode())
        write_atomically(config, model.config.encode())
    return folder / str(version)


def _is_replaceable(readme_file: Path) -> bool:
    """Whether nothing is there, or what trtopt wrote: others' words stay."""
    if not readme_file.is_file():
        return not readme_file.exists()
    return WRITTEN_BY in readme_file.read_text("utf-8", errors="replace")
