"""The commands of Nightshift's long-running parts, as data, for the lab and `docker/compose.yaml` alike."""

from dataclasses import dataclass

from include.settings.pools import Queue


@dataclass(frozen=True, slots=True)
class Component:
    """A part that runs for ever, and the command line that starts it; its first word is a program on the path.

    Where all parts are on one machine and see the same files, as in the lab, `on_one_disk` follows.
    """

    name: str
    command: tuple[str, ...]
    on_one_disk: tuple[str, ...] = ()


API_SERVER = Component("api-server", ("airflow", "api-server"))
# Log servers listen on every interface, whatever is configured; on one disk, logs are read from their files.
SCHEDULER = Component("scheduler", ("airflow", "scheduler"), on_one_disk=("--skip-serve-logs",))
DAG_PROCESSOR = Component("dag-processor", ("airflow", "dag-processor"))
TRIGGERER = Component("triggerer", ("airflow", "triggerer"), on_one_disk=("--skip-serve-logs",))
GATEWAY = Component("gateway", ("nightshift", "gateway", "serve"))
FTS = Component("fts", ("nightshift", "fts", "serve"))

AIRFLOW = (API_SERVER, SCHEDULER, DAG_PROCESSOR, TRIGGERER)

# With Celery: what people ask does not slow the heartbeats of tasks.
CORE_API = Component("api-server", ("airflow", "api-server", "--apps", "core"))
EXECUTION_API = Component("execution-api", ("airflow", "api-server", "--apps", "execution", "--port", "8081"))
AIRFLOW_WITH_CELERY = (CORE_API, EXECUTION_API, SCHEDULER, DAG_PROCESSOR, TRIGGERER)
WORKER = Component("worker", ("airflow", "celery", "worker", "--queues", ",".join(queue.value for queue in Queue)))

# Runs once before the others of Airflow.
MIGRATE = Component("migrate", ("airflow", "db", "migrate"))
