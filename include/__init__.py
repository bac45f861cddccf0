"""The library: everything that Nightshift does, without Airflow."""
