"""Everything here drives a real Chromium; without one, or without playwright, it is skipped."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.paths import ROOT

sys.path.insert(0, str(ROOT / "tests" / "unit"))  # what the page's other tests are made of

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium with an empty profile."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'trtopt[browser]'")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs Chromium on the PATH: apt-get install chromium")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        yield started
        started.close()
