"""Files of other programs: what each is, by its first bytes or its suffix, and what to do with it instead."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from trtopt.files.outputs import head_of


@dataclass(frozen=True)
class OtherFormat:
    """What a file is, and what to do with it, of which `{}` is the path; empty where nothing is known."""

    what: str
    remedy: str = ""

    def remedy_for(self, path: Path, otherwise: str) -> str:
        """What to do with the file at `path`."""
        return self.remedy.format(shlex.quote(str(path))) or otherwise


_EXPORT = "write its model as ONNX with trtopt export, which takes it as --checkpoint {}"
_WEIGHTS = OtherFormat("a file of weights", _EXPORT)
_ARRAYS, _ARRAY = OtherFormat("an archive of NumPy arrays (.npz)"), OtherFormat("a NumPy array")
DAMAGED_ZIP = (BadZipFile, NotImplementedError, UnicodeDecodeError)
"""What opening an archive raises whose bytes were changed: in its versions and names, errors of their own."""
ENGINE = OtherFormat(
    "an engine", "give the ONNX file that this engine was built from; trtopt bench measures engines"
)
_BY_HEAD = {
    b"ftrt": ENGINE,
    b"vtrt": ENGINE,
    b"\x89HDF": OtherFormat("an HDF5 file, as Keras writes models"),
    b"\x93NUMPY": _ARRAY,
    b"\x7fELF": OtherFormat("a native library or program"),
    **dict.fromkeys(
        (b"\x80" + bytes([protocol]) for protocol in range(2, 6)),
        OtherFormat("a Python pickle, as PyTorch's older checkpoints are", _EXPORT),
    ),
    b"\x1f\x8b": OtherFormat("a gzip archive"),
    b"version https://git-lfs": OtherFormat("a Git LFS pointer", "fetch the file: git lfs pull"),
}
_BY_SUFFIX = {
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".safetensors", ".bin"), _WEIGHTS),
    **dict.fromkeys((".engine", ".plan", ".trt"), ENGINE),
    ".npz": _ARRAYS,
    ".npy": _ARRAY,
    ".json": OtherFormat("JSON"),
}


def format_by_content(path: Path) -> OtherFormat | None:
    """What the file's beginning shows it to be."""
    head = b""
    with suppress(OSError):
        head = head_of(path)
    if head.startswith(b"PK"):
        with suppress(OSError, *DAMAGED_ZIP), ZipFile(path) as archive:
            names = archive.namelist()
            if any(name.endswith("data.pkl") for name in names):
                return OtherFormat("a PyTorch checkpoint", _EXPORT)
            return _ARRAYS if names and names[0].endswith(".npy") else OtherFormat("a ZIP archive")
    if head[8:10] == b'{"':
        return OtherFormat("a file of weights (safetensors)", _EXPORT)
    if head[4:8] == b"TFL3":
        return OtherFormat("a TensorFlow Lite model")
    return next((found for start, found in _BY_HEAD.items() if head.startswith(start)), None)


def format_of(path: Path) -> OtherFormat | None:
    """The same; else what the file's suffix says."""
    return format_by_content(path) or _BY_SUFFIX.get(path.suffix)
