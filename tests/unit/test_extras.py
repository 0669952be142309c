"""The table of extras is that of pyproject.toml, in packages that pip knows."""

import re
import sys

import pytest

from tests.support.paths import ROOT
from trtopt.extras import EXTRAS, install

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

FOR_DEVELOPERS = {"test", "browser", "dev", "docs"}


def declared() -> dict[str, list[str]]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return dict(tomllib.load(file)["project"]["optional-dependencies"])


def packages_of(extra: str) -> list[str]:
    """The names without versions, those of extras it refers to in their place."""
    found: list[str] = []
    for requirement in declared()[extra]:
        if inner := re.match(r"trtopt\[(.+)\]", requirement):
            found += packages_of(inner[1])
        else:
            found += re.findall(r"^[\w.\[\]-]+", requirement)
    return found


def test_every_extra_for_users_is_in_the_table_with_its_packages() -> None:
    assert EXTRAS.keys() == declared().keys() - FOR_DEVELOPERS
    assert {name: list(extra.packages) for name, extra in EXTRAS.items()} == {
        name: packages_of(name) for name in EXTRAS
    }


def test_an_install_line_names_real_packages_quoted_for_a_shell() -> None:
    assert install("tensorrt") == "pip install tensorrt cuda-python nvidia-ml-py"
    assert install("triton") == "pip install 'tritonclient[grpc]'"
