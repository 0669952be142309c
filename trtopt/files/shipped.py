"""Paths of the folders shipped with trtopt."""

from __future__ import annotations

from pathlib import Path


def shipped_folder(name: str) -> Path:
    """`profiles` or `models`: inside the installed package, or at the root of a checkout."""
    package = Path(__file__).parents[1]
    inside = package / name
    return inside if inside.is_dir() else package.parent / name
