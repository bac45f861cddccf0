"""The connections that people have added in the UI of the lab's Airflow: its database has them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from include.lab.environment import Lab, LabFolders
from include.lab.retain import DATABASE


def defined(environment: Mapping[str, str]) -> frozenset[str] | None:
    """Their ids; None if there is no lab here, or its database does not answer."""
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
