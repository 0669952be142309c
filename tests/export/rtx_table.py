"""Which tiny variants TensorRT-RTX builds on the CPU, by precision: a table of docs/reference/models.md.

Run `python tests/export/rtx_table.py [MODEL ...]`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.export import rtx
from trtopt.device.ort.reference import open_reference
from trtopt.errors import TrtoptError
from trtopt.export.export import DType, export
from trtopt.export.source_module import from_spec
from trtopt.export.spec import Axis, ModelSpec, files, read_spec

DTYPES: tuple[DType, ...] = ("fp32", "fp16", "bf16")


def words(name: str, spec: ModelSpec, dtype: DType, folder: Path) -> str:
    """`yes`, or what stood in the way."""
    path, variant = files()[name], "tiny" if "tiny" in spec.variants else "full"
    file = path.parent / str(spec.onnx)
    axes: dict[str, Axis] = spec.axes_of(variant)
    if spec.onnx and dtype != "fp32":
        return "an ONNX file: FP32 only"
    if spec.construct:
        try:
            file = export(from_spec(path, variant), folder / f"{name}.onnx", open_reference, dtype=dtype).path
        except TrtoptError as error:
            return f"export: {error.problem}"
    problems = rtx.build(file, spec.inputs, axes, spec.variants[variant].sizes)
    return "yes" if not problems else problems[0].replace("|", "/").replace("\n", " ")[:300]


def main(names: list[str]) -> None:
    """A row a model."""
    for name in names or list(files()):
        spec = read_spec(files()[name])
        with tempfile.TemporaryDirectory() as folder:
            row = [words(name, spec, dtype, Path(folder)) for dtype in DTYPES]
        print(f"| {name} | {' | '.join(row)} | | | | |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
