"""Links from a task to what it worked on, declared by its operator and so made in the task's own process.

A link that a plugin adds would be made by the API server, from a serialized task that has no batch.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from airflow.sdk import BaseOperatorLink

from include.settings.load import load
from operators.base import airflow_url, log_of


class RepositoryLink(BaseOperatorLink):
    """To the repository's manifest, as its readers fetch it."""

    name = "Repository"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow's signature
        """Made after the task ran; "" leaves the link out."""
        repository = _first(operator).get("repository") or getattr(operator, "fqrn", None)
        return f"{load().repository(repository).public_url}/.cvmfspublished" if repository else ""


class SourceLink(BaseOperatorLink):
    """To the artifact that was prepared, where its store is reached by a browser."""

    name = "Artifact"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow's signature
        """An http(s) URL; for `s3://` the one of its endpoint; "" leaves the link out."""
        from include.settings.secrets import browser_url

        items = _first(operator).get("items") or [{}]
        return browser_url(load(), str(items[0].get("source", ""))) or ""


class NightLink(BaseOperatorLink):
    """To the night of the task's `night` on the page *Nights*."""

    name = "Night"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow's signature
        """The page of slot and date; "" leaves the link out."""
        night = operator.night
        if not isinstance(night, dict) or not {"slot", "date"} <= night.keys():
            return ""
        return f"{airflow_url()}/nightshift/nights?{urlencode({'slot': night['slot'], 'date': night['date']})}"


class CollectionLogLink(BaseOperatorLink):
    """To the log of a collection, which has its whole report; the files are on the worker's machine."""

    name = "Report"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow's signature
        """The task's page, its log first."""
        task = f"{log_of(f'{ti_key.dag_id}/{ti_key.run_id}')}/tasks/{quote(ti_key.task_id, safe='')}"
        return task if ti_key.map_index < 0 else f"{task}/mapped/{ti_key.map_index}"


class BenchmarkReportLink(BaseOperatorLink):
    """To the report of a benchmark campaign; the files are on the worker's machine."""

    name = "Benchmark report"
    page = "report"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow's signature
        """The page of the campaign; "" leaves the link out."""
        from include.pages.registry import PREFIX

        campaign = operator.campaign
        return f"{airflow_url()}{PREFIX}/benchmarks/{quote(campaign, safe='')}/{self.page}" if campaign else ""


class BenchmarkDocsLink(BenchmarkReportLink):
    """To the Data Docs of a campaign's figures, beside its report."""

    name = "Data Docs"
    page = "data-docs"


class QualityLink(BaseOperatorLink):
    """To the Data Docs of a run's quality gate; the files are on the worker's machine."""

    name = "Data Docs"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The first page of the run; "" leaves the link out."""
        from include.quality.results import folder_of_run

        if not isinstance(operator.night, dict) or "slot" not in operator.night:
            return ""
        folder = folder_of_run(load().paths.var, operator.night["slot"], f"{ti_key.dag_id}/{ti_key.run_id}")
        if not (folder / "index.html").is_file():
            return ""
        return f"{airflow_url()}/nightshift/quality/{operator.night['slot']}/{folder.name}/index.html"


def _first(operator: Any) -> dict[str, Any]:
    """The batch of a task, or the first of several; empty where the plan did not end."""
    value = getattr(operator, "batch", None) or getattr(operator, "batches", None) or {}
    if isinstance(value, list):
        value = value[0] if value else {}
    return value if isinstance(value, dict) else {}
