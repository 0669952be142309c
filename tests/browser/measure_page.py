"""How large a report page is and how long it takes to make and to open, by its number of layers.

    python tests/browser/measure_page.py      (needs the extra `browser`, and Chromium)

Every layer is a copy of one of ResNet-50's, built by TensorRT 8.6, under a name of its own. Opening counts
from the navigation to the page's table being there; finding from typing a layer's name to its row being
alone. Medians.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

from playwright.sync_api import Browser, sync_playwright

from tests.browser.conftest import FLAGS
from tests.support.pages import many_layers
from trtopt.report.html.page import page_of, plotting_library
from trtopt.report.html.pages import report_page

ROUNDS = 10


def opened(browser: Browser, address: str, wanted: str) -> tuple[float, float]:
    """Milliseconds to open and to find, in a browser that has not seen the page."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    start = time.perf_counter()
    page.goto(f"{address}#why")
    page.locator("#why .count").first.wait_for(state="attached")
    ready = time.perf_counter()
    page.locator("#why").get_by_role("searchbox").first.fill(wanted)
    page.locator("#why .count", has_text="1 to 1 of 1 ").wait_for()
    found = time.perf_counter()
    context.close()
    return (ready - start) * 1e3, (found - ready) * 1e3


def main() -> None:
    """Print one row a number of layers."""
    library = plotting_library()
    print("layers  made ms      MB  open ms  find ms")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
        for count in (60, 1000, 5000):
            layers = many_layers(count)
            start = time.perf_counter()
            content = page_of(report_page(layers), library, "").encode()
            made = (time.perf_counter() - start) * 1e3
            file = Path(folder) / f"{count}.html"
            file.write_bytes(content)
            times = [opened(browser, file.as_uri(), f"/block.{count - 3}/") for _ in range(ROUNDS)]
            row = (f"{median(column):7.0f}" for column in zip(*times, strict=True))
            print(f"{count:6}  {made:7.0f}  {len(content) / 1e6:6.2f}  {'  '.join(row)}")
        browser.close()


if __name__ == "__main__":
    main()
