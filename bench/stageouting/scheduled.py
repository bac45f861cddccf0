"""The components as tasks of the real Airflow, in a lab of its own, in place of processes of the benchmark."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from bench.nights.lab import BenchLab, bench_lab
from bench.stageouting.load import SERVER, LoadPlan, site_documents
from include.settings.secrets import LEDGER_URL_VARIABLE

DAGS = ("stage_out_submit", "stage_out_monitor", "stage_out_finish")
DAG_APPEARS_S = 180.0


@contextmanager
def scheduled(
    plan: LoadPlan, ledger_url: str, fts_url: str, more: Callable[[dict[str, Any]], None] = lambda _: None
) -> Iterator[BenchLab]:
    """A lab whose DAGs of stage-out run every minute on this ledger and this FTS service, while it is entered.

    `more` may change the configuration further.
    """
    parts = urlsplit(fts_url)
    connection = {"conn_type": "fts", "schema": parts.scheme, "host": parts.hostname, "port": parts.port}
    given = {LEDGER_URL_VARIABLE: ledger_url, f"AIRFLOW_CONN_{SERVER.upper()}": json.dumps(connection)}

    def change(document: dict[str, Any]) -> None:
        document["sites"] = site_documents(plan.sites)
        document["stageout"] |= {"files_per_job": plan.per_job, "most_queued": 100_000}
        more(document)

    os.environ.update(given)
    try:
        with bench_lab(change) as lab:
            for name in DAGS:
                lab.api.wait_for_dag(name, timeout_s=DAG_APPEARS_S)
                lab.api.unpause(name)
            yield lab
    finally:
        for name in given:
            del os.environ[name]
