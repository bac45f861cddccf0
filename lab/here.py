"""The lab on this machine as commands ask for it: its administrator, its settings, the connections in its database."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from include.airflow_api import AirflowApi
from include.monitoring.findings import Finding, Severity
from lab.environment import MARK, Lab
from lab.retain import DATABASE


def administrator() -> AirflowApi | None:
    """Airflow as the administrator of the lab here; None if there is no lab."""
    return lab.administrator() if (lab := Lab.made()) else None


def findings() -> Iterator[Finding]:
    """Compare the settings with those that the programs of the lab here were started with, if it runs."""
    from lab.lifecycle import changed

    if MARK not in os.environ and (lab := Lab.made()) and (names := changed(lab)):
        differs = f"its programs were started with other settings: {', '.join(names)}"
        yield Finding("lab", str(lab.place.var), Severity.ERROR, differs, "Run: nightshift lab restart")


def defined(environment: Mapping[str, str]) -> frozenset[str] | None:
    """The connections in Airflow's database; None if there is no lab here, or its database does not answer."""
    lab = Lab.made(environment)
    return in_database(lab.environment(environment)[DATABASE]) if lab else None


def in_database(url: str) -> frozenset[str] | None:
    """The ids of the connections in the database of an Airflow; None if it does not answer."""
    engine = create_engine(url, poolclass=NullPool)
    try:
        with engine.connect() as connection:
            return frozenset(connection.execute(text("SELECT conn_id FROM connection")).scalars())
    except SQLAlchemyError:
        return None
