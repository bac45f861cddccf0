"""The connections that a site names: which there are, what each is for, and whether it is defined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from include.care.notify.notifier import service_of
from include.care.preflight.findings import Finding, Severity
from include.settings.errors import MissingConnection, SettingsError
from include.settings.model import SiteSettings
from include.settings.secrets import Secrets

Asked = Callable[[str], bool | None]
"""Whether Airflow has a connection of this id; None where it cannot be asked."""
CANNOT_ASK = "not defined here, and Airflow cannot be asked whether it has it"
IN_AIRFLOW = "defined in Airflow; commands here cannot use it"


def airflow_has_all(_: str) -> bool:
    """For callers whose secrets come from Airflow: what they miss, it does not have."""
    return False


def named(settings: SiteSettings, fqrns: Iterable[str], stores: Iterable[str]) -> Mapping[str, str]:
    """Every connection that is needed, with what for."""
    found: dict[str, list[str]] = {}

    def need(name: str | None, what: str) -> None:
        if name:
            found.setdefault(name, []).append(what)

    for name in stores:
        need(settings.store(name).connection, f"store {name}")
        need(settings.store(name).gateway_connection, f"gateways to store {name}")
        need(settings.store(name).collector_connection, f"collections in store {name}")
    for fqrn in fqrns:
        repository = settings.repository(fqrn)
        need(repository.gateway, f"gateway of {fqrn}")
        need(repository.gateway_admin, f"administrator of the gateway of {fqrn}")
        need(repository.server.connection if repository.server else None, f"key of the node of {fqrn}")
        for replica in repository.replicas:
            need(replica.node.connection if replica.node else None, f"key of replica {replica.name} of {fqrn}")
    need(settings.ledger_connection, "ledger")
    need(settings.airflow_connection, "Airflow's API")
    need(settings.metrics_connection, "token of Prometheus")
    for name, what in _notifying(settings).items():
        need(name, what)
    return {name: ", ".join(what) for name, what in sorted(found.items())}


def look_at_connections(
    settings: SiteSettings, secrets: Secrets, names: Mapping[str, str], asked: Asked = airflow_has_all
) -> Iterator[Finding]:
    """Whether each is defined. `asked`: whether Airflow has one that is not defined in this environment."""
    notifying = _notifying(settings)
    for name, what in names.items():
        try:
            found = secrets.get(name)
            if settings.notify.apprise is not None and name in settings.notify.apprise.connections:
                service_of(found)
        except MissingConnection as error:
            yield _missing(name, what, error, asked(name), needed_here=name not in notifying)
        except SettingsError as error:
            yield Finding("connection", name, Severity.ERROR, f"for {what}: not usable", str(error))
        else:
            yield Finding("connection", name, Severity.OK, f"for {what}")


def _missing(name: str, what: str, error: MissingConnection, there: bool | None, *, needed_here: bool) -> Finding:
    if there and not needed_here:
        return Finding("connection", name, Severity.OK, f"for {what}: defined in Airflow")
    if there:
        return Finding("connection", name, Severity.WARNING, f"for {what}: {IN_AIRFLOW}", str(error))
    if there is None and not needed_here:
        return Finding("connection", name, Severity.WARNING, f"for {what}: {CANNOT_ASK}", str(error))
    return Finding("connection", name, Severity.ERROR, f"for {what}: not usable", str(error))


def _notifying(settings: SiteSettings) -> Mapping[str, str]:
    """What only Airflow's tasks use."""
    services = settings.notify.apprise
    return dict.fromkeys(services.connections if services else (), "apprise")
