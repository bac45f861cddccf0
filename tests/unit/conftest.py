"""Airflow has a home of its own, whichever test imports it first."""

from tests.fakes import airflowhome

airflowhome.use()
