"""The lab on this machine as commands ask for it: its administrator, its settings, the connections in its database."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from include.airflow_api import AirflowApi
from include.monitoring.findings import Finding, Severity
from lab.environment import ADMIN, MARK, Lab, LabFolders
from lab.retain import DATABASE


def administrator() -> AirflowApi | None:
    """Airflow as the administrator of the lab here; None if there is no lab."""
    if not os.access(LabFolders.from_environment(os.environ).secrets, os.R_OK):
        return None
    lab = Lab.from_environment()
    return AirflowApi(lab.airflow_url, ADMIN, lab.secrets.admin_password)


def findings() -> Iterator[Finding]:
    """Compare the settings with those that the programs of the lab here were started with, if it runs."""
    from lab.lifecycle import changed

    place = LabFolders.from_environment(os.environ)
    if MARK in os.environ or not os.access(place.secrets, os.R_OK):
        return
    if names := changed(Lab.from_environment()):
        seen = f"its programs were started with other settings: {', '.join(names)}"
        yield Finding("lab", str(place.var), Severity.ERROR, seen, "Run: nightshift lab restart")


def defined(environment: Mapping[str, str]) -> frozenset[str] | None:
    """The connections in Airflow's database; None if there is no lab here, or its database does not answer."""
    if not os.access(LabFolders.from_environment(environment).secrets, os.R_OK):
        return None
    return in_database(Lab.from_environment(environment).environment(environment)[DATABASE])


def in_database(url: str) -> frozenset[str] | None:
    """The ids of the connections in the database of an Airflow; None if it does not answer."""
    engine = create_engine(url, poolclass=NullPool)
    try:
        with engine.connect() as connection:
            return frozenset(connection.execute(text("SELECT conn_id FROM connection")).scalars())
    except SQLAlchemyError:
        return None
