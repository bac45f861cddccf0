"""Which pages there are. Light: the plugin imports it in every component of Airflow."""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "/nightshift"
"""Where the app is mounted, below the base path of Airflow."""

STAGEOUT_API = f"{PREFIX}/stageout/v1"
"""Where the REST API of stage-out is mounted."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page; a module reads what it shows, `templates/<name>.html` draws it.

    Args:
        name: The last part of its URL.
        title: In the navigation and at its head.
        module: The module in `include/pages`.
        nav: Whether the navigation has it; other pages are reached by links.
        run_tab: Whether every run of a DAG has it as a tab, asked with `run=<dag id>/<run id>`.
        charts: Whether it draws charts, for which Plotly's script is loaded.
    """

    name: str
    title: str
    module: str
    nav: bool = True
    run_tab: bool = False
    charts: bool = False


PAGES = (
    Page("nights", "Nights", "nights.page", run_tab=True),
    Page("repositories", "Repositories", "repositories.page", charts=True),
    Page("publications", "Publications", "publications.page", charts=True),
    Page("transfers", "Transfers", "transfers.overview", charts=True),
    Page("transfer", "Transfer", "transfers.file", nav=False),
    Page("benchmarks", "Benchmarks", "benchmarks", charts=True),
    Page("provenance", "Provenance", "provenance", nav=False),
    Page("start", "Start a run", "start", nav=False),
)


def external_views() -> list[dict[str, str]]:
    """The pages as Airflow's plugins name them. Their URLs are relative: Airflow's base path comes before them."""
    views = [
        {
            "name": page.title,
            "href": f"{PREFIX[1:]}/{page.name}",
            "destination": "nav",
            "category": "browse",
            "url_route": f"nightshift-{page.name}",
        }
        for page in PAGES
        if page.nav
    ]
    tabs = [
        {
            "name": page.title,
            "href": f"{PREFIX[1:]}/{page.name}?run={{DAG_ID}}/{{RUN_ID}}",
            "destination": "dag_run",
            "url_route": f"nightshift-run-{page.name}",
        }
        for page in PAGES
        if page.run_tab
    ]
    return views + tabs
