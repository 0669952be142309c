"""Which tiny variants TensorRT-RTX builds on the CPU: a column of docs/reference/models.md.

Run `python tests/export/rtx_table.py [MODEL ...]`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.export import rtx
from trtopt.device.ort.reference import open_reference
from trtopt.errors import TrtoptError
from trtopt.export.export import export
from trtopt.export.source_module import from_spec
from trtopt.export.spec import Axis, ModelSpec, files, read_spec


def words(name: str, spec: ModelSpec, folder: Path) -> str:
    """`yes`, or what stood in the way."""
    path, variant = files()[name], "tiny" if "tiny" in spec.variants else "full"
    file = path.parent / str(spec.onnx)
    axes: dict[str, Axis] = spec.axes_of(variant)
    if spec.construct:
        try:
            file = export(from_spec(path, variant), folder / f"{name}.onnx", open_reference).path
        except TrtoptError as error:
            return f"export: {error.problem}"
    problems = rtx.build(file, spec.inputs, axes, spec.variants[variant].sizes)
    return "yes" if not problems else problems[0].replace("|", "/").replace("\n", " ")[:300]


def main(names: list[str]) -> None:
    """A row a model."""
    for name in names or list(files()):
        spec = read_spec(files()[name])
        with tempfile.TemporaryDirectory() as folder:
            print(f"| {name} | {words(name, spec, Path(folder))} | |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
