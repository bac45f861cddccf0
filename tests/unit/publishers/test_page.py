"""The page about publishers shows the table that they ask."""

from __future__ import annotations

from docs.generate_publishers import PAGE, render


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text()
    assert render(page) == page, "run `make docs`"
