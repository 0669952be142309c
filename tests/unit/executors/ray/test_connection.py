"""Ray itself: what is said where it is too old."""

import re
import sys
from types import ModuleType

import pytest

from tests.support.paths import ROOT
from trtopt.errors import BackendMissingError
from trtopt.executors.ray.connection import OLDEST, load_ray


def test_a_ray_that_is_too_old_is_refused_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    old = ModuleType("ray")
    old.__version__ = "2.49.2"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", old)
    with pytest.raises(BackendMissingError, match=r"Ray 2\.49\.2 is too old: .* 2\.50 or newer") as raised:
        load_ray()
    assert raised.value.remedy == "pip install 'ray[client]>=2.50'"


def test_the_oldest_ray_is_that_of_the_extra() -> None:
    declared = re.search(r"ray\[client\]>=(\d+)\.(\d+)", (ROOT / "pyproject.toml").read_text("utf-8"))
    assert declared is not None
    assert tuple(map(int, declared.groups())) == OLDEST
