"""How Sphinx builds the site: `make docs`, or `sphinx-build -W docs docs/_build`."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

from sphinx.application import Sphinx

from trtopt.version import __version__

project = "trtopt"
author = "the trtopt authors"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
exclude_patterns = ["_build", "serving", "case_study"]
source_suffix = {".md": "markdown"}

myst_enable_extensions = ["deflist", "colon_fence"]
myst_heading_anchors = 4

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 88  # longer signatures have a line per parameter
python_trailing_comma_in_multi_line_signatures = False
autodoc_default_options = {"exclude-members": "__init__, __new__"}
autodoc_mock_imports = [
    name
    for name in ("cryptography", "jinja2", "torch", "tensorrt", "tensorrt_rtx", "vl_convert")
    if importlib.util.find_spec(name) is None
]
"""Heavy libraries are mocked only where they are not installed."""

html_theme = "furo"
html_title = f"trtopt {__version__}"
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False


def _as_rst(_: Sphinx, *given: Any) -> None:
    """Rewrite texts that use Markdown's single backticks, and bars that reStructuredText reads as markup."""
    lines: list[str] = given[-1]
    lines[:] = [line if line.lstrip().startswith(".. ") else _plain(line) for line in lines]


def _plain(line: str) -> str:
    return re.sub(r"(?<![`:])`([^`]+)`(?!`)", r"``\1``", line).replace("|", r"\|")


def setup(app: Sphinx) -> None:
    """Called by Sphinx: docstrings and help texts are plain text with Markdown's backticks."""
    for part in ("description", "options", "arguments"):
        app.connect(f"sphinx-click-process-{part}", _as_rst)
    app.connect("autodoc-process-docstring", _as_rst, priority=100)
