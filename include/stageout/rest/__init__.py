"""Stage-out's REST API: a FastAPI app behind Airflow's login, mounted by the plugin. It imports no Airflow."""
