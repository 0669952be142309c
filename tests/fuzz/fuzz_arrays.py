"""Mutations of files that hold arrays or other bytes behind a header."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from random import Random

from tests.fuzz.fuzz_mutators import bytes_changed, json_changed, some

_DTYPES = (
    "<f4",
    ">f8",
    "|O",
    "|V4",
    "<U9",
    "<c8",
    "<M8[s]",
    "<f16",
    "|b1",
    "<i8",
    "|S0",
    "<V2",
    "O,O",
    "f4,(2,)i4",
)
_SHAPES = ("()", "(0,)", "(-1,)", "(1,)", "(4, 4)", f"({2**62},)", f"({2**40}, {2**40})", "(1.5,)", "'x'")
_SHAPES = (*_SHAPES, "None", "(True,)", f"({'1, ' * 70})", "(3, 0, 5)", "[4]")


def npy_changed(rng: Random, content: bytes) -> bytes:
    """A header that says something else of the same values, or changed bytes."""
    if rng.random() < 0.3 or content[:6] != b"\x93NUMPY":
        return bytes_changed(rng, content)
    size = int.from_bytes(content[8:10], "little")
    header = content[10 : 10 + size].decode("latin1")
    for _ in some(rng):
        change = rng.randrange(5)
        if change == 0:
            start = header.find("'descr': ")
            header = (
                header[:start] + f"'descr': {rng.choice(_DTYPES)!r}" + header[header.find(", '", start + 9) :]
            )
        elif change == 1:
            start = header.find("'shape': ")
            header = header[:start] + f"'shape': {rng.choice(_SHAPES)}, }}"
        elif change == 2:
            header = header.replace("False", rng.choice(("True", "None", "1", "(", "__import__('os')")))
        elif change == 3:
            header = "(" * rng.choice((10, 1000)) + header
        else:
            header = bytes_changed(rng, header.encode("latin1")).decode("latin1")
    version = rng.choice((1, 1, 1, 2, 3, 9))
    length = len(header).to_bytes(2 if version == 1 else 4, "little", signed=False)
    return content[:6] + bytes([version, 0]) + length + header.encode("latin1") + content[10 + size :]


def npz_changed(rng: Random, content: bytes) -> bytes:
    """Members changed, renamed, doubled and left out, or the archive's own bytes changed."""
    if rng.random() < 0.35:
        return bytes_changed(rng, content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    for _ in some(rng):
        at = rng.randrange(len(members))
        name, array = members[at]
        change = rng.randrange(6)
        if change <= 2:
            members[at] = (name, npy_changed(rng, array))
        elif change == 3:
            members[at] = (
                rng.choice(("", "../x.npy", "/x.npy", "x", "a\0.npy", name + "/", "ä" * 99)),
                array,
            )
        elif change == 4 and len(members) > 1:
            del members[at]
        else:
            members.append((rng.choice(("y.npy", "x.npy", f"{at}.npy")), array))
    out = io.BytesIO()
    methods = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    with zipfile.ZipFile(out, "w", rng.choice(methods)) as archive:
        for name, array in dict(members).items():
            archive.writestr(zipfile.ZipInfo(name or "x"), array, compress_type=rng.choice(methods))
    return out.getvalue() if rng.random() < 0.8 else bytes_changed(rng, out.getvalue())


def encoded_arrays_changed(rng: Random, content: bytes) -> bytes:
    """Polygraphy's JSON: the JSON changed, or an array inside of it."""
    if rng.random() < 0.5:
        return json_changed(rng, content)
    feeds = json.loads(content)
    for _ in some(rng):
        arrays = rng.choice(feeds)
        entry = arrays[rng.choice(list(arrays))]
        entry["array"] = base64.b64encode(npy_changed(rng, base64.b64decode(entry["array"]))).decode()
    return json.dumps(feeds).encode()


def header_changed(rng: Random, content: bytes) -> bytes:
    """A timing cache: its line of JSON changed, or any bytes."""
    magic, header, blob = content.split(b"\n", 2)
    if rng.random() < 0.5:
        return bytes_changed(rng, content)
    return b"\n".join((magic, json_changed(rng, header), blob))
