"""What can be wrong with a request for a page, besides what the ledger and the settings say."""

from __future__ import annotations

from include.errors import NightshiftError


class BadPageQuery(NightshiftError):
    """A parameter of a page's URL has a value that it cannot have."""

    code = "page-query-invalid"
    hint = "Open the page from Airflow's navigation and choose there."

    def __init__(self, name: str, detail: str) -> None:
        self.name = name
        super().__init__(f"parameter {name}: {detail}. {self.hint}")
