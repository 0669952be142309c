"""Tables in pages say what the package's own tables say."""

from __future__ import annotations

import pytest

from tests.support.reference_pages import PAGES, ROOT, with_table


@pytest.mark.parametrize("name", PAGES)
def test_the_table_of_a_page_is_up_to_date(name: str) -> None:
    page = (ROOT / name).read_text("utf-8")
    for table in PAGES[name]:
        assert page == with_table(page, table()), "run `python -m tests.support.reference_pages`"
