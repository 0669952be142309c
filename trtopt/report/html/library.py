"""The plotting library embedded in a page.

Vega, as vl-convert bundles it: 0.9 MB against plotly.js's 4.8 MB, and with a treemap, which Bokeh (1.3 MB)
lacks. All three are maintained and work offline.
"""

from __future__ import annotations

from trtopt.errors import BackendMissingError
from trtopt.extras import install

_EXPORTS = "window.vegaEmbed = vegaEmbed;"


def plotting_library() -> str:
    """JavaScript that defines `vegaEmbed`; takes about two seconds to bundle.

    Raises:
        BackendMissingError: the extra is not installed.
    """
    try:
        import jinja2  # noqa: F401  (what the page is made with: told before any work)
        from vl_convert import javascript_bundle
    except ImportError as error:
        raise BackendMissingError(f"{error.name or error} is not installed", install("report")) from None
    return javascript_bundle(_EXPORTS)
