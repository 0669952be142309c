"""Files of other programs, whole and damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trtopt.files.formats import format_of

DIRECTORY = b"PK\x01\x02"
"""What each entry of an archive's directory begins with."""


@pytest.mark.parametrize(("at", "value"), [(6, 99), (9, 0xFF), (46, 0xFF)], ids=["version", "flags", "name"])
def test_a_damaged_archive_of_arrays_is_still_known_by_its_name(tmp_path: Path, at: int, value: int) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, ä=np.zeros(3))
    content = bytearray(path.read_bytes())
    content[content.rfind(DIRECTORY) + at] = value
    path.write_bytes(content)
    found = format_of(path)
    assert found is not None
    assert "NumPy" in found.what
