"""Airflow with a home of its own."""

from tests.fakes import airflowhome

airflowhome.use()
