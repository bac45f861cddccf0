"""Credentials in the environment of a lab, and the services that hold them.

The same split as in `docker/compose.yaml`; docs/security.md has the table. Tasks of LocalExecutor are in the process
group of the scheduler, which therefore holds what all of them need.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from include.settings.model import SiteSettings
from include.settings.scheduling import BROKER_URL, Queue
from include.settings.secrets import LEDGER_URL_VARIABLE, connection_variable
from lab.cluster import Cluster

GATEWAY_STORE, COLLECTOR_STORE = "NIGHTSHIFT_GATEWAY_STORE", "NIGHTSHIFT_COLLECTOR_STORE"
DATABASE_URL = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
RESULTS_URL = "AIRFLOW__CELERY__RESULT_BACKEND"


class Credential(Enum):
    """Purpose of a credential."""

    STORES = "publisher's key, that of builds"
    PATH = "gateway's key of a path"
    GATEWAY = "gateway's key of the store"
    COLLECTOR = "collector's key of the store, passphrase of backups"
    ADMIN = "gateway's administrator"
    FTS = "FTS"
    RUNS = "user of Airflow that deletes old runs"
    READER = "user of Airflow that looks"
    METRICS = "token of figures"
    OWN = "connections of the caller's environment"
    LEDGER = "ledger"
    DATABASE = "Airflow's database"
    CELERY = "broker, results"
    TOKENS = "tokens of tasks and people"
    LOGS = "log requests"


_VARIABLES = {
    GATEWAY_STORE: Credential.GATEWAY,
    COLLECTOR_STORE: Credential.COLLECTOR,
    # a service without the connection is not told its name either: checks would miss it
    "NIGHTSHIFT_AIRFLOW_CONNECTION": Credential.READER,
    "NIGHTSHIFT_METRICS_CONNECTION": Credential.METRICS,
    "NIGHTSHIFT_RUNS_CONNECTION": Credential.RUNS,
    LEDGER_URL_VARIABLE: Credential.LEDGER,
    DATABASE_URL: Credential.DATABASE,
    "AIRFLOW__CORE__FERNET_KEY": Credential.DATABASE,
    RESULTS_URL: Credential.CELERY,
    BROKER_URL: Credential.CELERY,
    "AIRFLOW__API_AUTH__JWT_SECRET": Credential.TOKENS,
    "AIRFLOW__API__SECRET_KEY": Credential.LOGS,
}
_C = Credential
_PUBLISHES = frozenset({_C.STORES, _C.PATH, _C.OWN, _C.LEDGER})
_TRANSFERS = frozenset({_C.FTS, _C.RUNS})
_COLLECTS = frozenset({_C.GATEWAY, _C.COLLECTOR, _C.ADMIN, _C.READER})
_HELD = {
    "gateway": frozenset({_C.GATEWAY, _C.PATH, _C.ADMIN, _C.LEDGER}),
    "api-server": _PUBLISHES | {_C.DATABASE, _C.TOKENS, _C.LOGS, _C.METRICS, _C.READER, _C.FTS},
    "dag-processor": frozenset({_C.DATABASE, _C.LEDGER, _C.OWN}),
    "triggerer": _PUBLISHES | {_C.DATABASE, _C.FTS},
}
_WORKER = _PUBLISHES | {_C.CELERY, _C.LOGS}
_OF_QUEUES = {Queue.GATEWAY_HOST: _COLLECTS, Queue.TRANSFER: _TRANSFERS}


def held(cluster: Cluster | None) -> Mapping[str, frozenset[Credential]]:
    """Return what each service holds; one that is not named holds nothing."""
    tells = frozenset({_C.DATABASE, _C.TOKENS})
    if cluster is None:
        return _HELD | {"scheduler": tells | _PUBLISHES | _TRANSFERS | _COLLECTS}
    workers = {
        machine.name: _WORKER.union(*(_OF_QUEUES.get(Queue(queue), frozenset()) for queue in machine.queues))
        for machine in cluster.machines
    }
    return _HELD | {"execution-api": tells, "scheduler": tells | {_C.CELERY}} | workers


def uses(settings: SiteSettings, environment: Mapping[str, str]) -> Mapping[str, frozenset[Credential]]:
    """Return what the credentials of an environment are for, by their variables."""
    purposes: dict[str, set[Credential]] = {}

    def use(connection: str | None, credential: Credential) -> None:
        if connection:
            purposes.setdefault(connection_variable(connection), set()).add(credential)

    for store in settings.stores.values():
        use(store.connection, Credential.STORES)
        use(store.collector_connection, Credential.COLLECTOR)
    for repository in settings.repositories.values():
        store = settings.store(repository.store)
        use(store.gateway_connection or store.connection, Credential.GATEWAY)
        use(repository.gateway, Credential.PATH)
        use(repository.gateway_admin, Credential.ADMIN)
    for server in settings.stageout.fts:
        use(server, Credential.FTS)
    use(settings.stageout.runs_connection, Credential.RUNS)
    use(settings.airflow_connection, Credential.READER)
    use(settings.metrics_connection, Credential.METRICS)
    use(settings.ledger_connection, Credential.LEDGER)
    use(settings.backup.connection, Credential.COLLECTOR)
    others = {name: {Credential.OWN} for name in environment if name.startswith("AIRFLOW_CONN_")}
    named = {name: {credential} for name, credential in _VARIABLES.items()}
    return {name: frozenset(what) for name, what in {**others, **purposes, **named}.items() if name in environment}
