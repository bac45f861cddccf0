"""Checks of the configuration itself: its connections, schedules and keys, and the ledger that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime

from include.ledger.engine import shown, shown_address
from include.ledger.errors import LedgerError
from include.monitoring.findings import Finding, Severity
from include.notify import service_of
from include.settings.errors import MissingConnection, SettingsError
from include.settings.model import SiteSettings
from include.settings.scheduling import left_out
from include.settings.secrets import ConnectionSecrets, Secrets, base_url, ledger_address
from include.site.site import Site

Asked = Callable[[str], bool | None]
"""Answer whether Airflow has a connection of this id; None where it cannot be asked."""
CANNOT_ASK = "not defined here, and Airflow cannot be asked whether it has it"
IN_AIRFLOW = "defined in Airflow; commands here cannot use it"


def airflow_has_all(_: str) -> bool:
    """For callers whose secrets come from Airflow: what they miss, it does not have."""
    return False


def named(settings: SiteSettings, fqrns: Iterable[str], store_checks: Iterable[str]) -> Mapping[str, str]:
    """Every connection that is needed, with what for."""
    found: dict[str, list[str]] = {}

    def need(name: str | None, what: str) -> None:
        if name:
            found.setdefault(name, []).append(what)

    for name in store_checks:
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
    need(settings.backup.connection, "passphrase of backups")
    need(settings.airflow_connection, "Airflow's API")
    need(settings.metrics_connection, "token of Prometheus")
    need(settings.stageout.catalogue.connection if settings.sites else None, "catalogue in Rucio")
    for name, what in _notifying(settings).items():
        need(name, what)
    return {name: ", ".join(what) for name, what in sorted(found.items())}


def look_at_connections(
    settings: SiteSettings,
    secrets: Secrets,
    names: Mapping[str, str],
    asked: Asked = airflow_has_all,
    *,
    logins: bool = False,
) -> Iterator[Finding]:
    """Tell whether each is defined, with `logins` also as whom it logs in where.

    `asked`: whether Airflow has one that is not defined in this environment.
    """
    notifying = _notifying(settings)
    for name, what in names.items():
        try:
            found = secrets.get(name)
            if settings.notify.apprise is not None and name in settings.notify.apprise.connections:
                service_of(found)
            login = f"{_login(settings, found)}, " if logins else ""
        except MissingConnection as error:
            yield _missing(name, what, error, asked(name), needed_here=name not in notifying)
        except SettingsError as error:
            yield Finding("connection", name, Severity.ERROR, f"for {what}: not usable", str(error))
        else:
            yield Finding("connection", name, Severity.OK, f"{login}for {what}")


def _missing(name: str, what: str, error: MissingConnection, there: bool | None, *, needed_here: bool) -> Finding:
    if there and not needed_here:
        return Finding("connection", name, Severity.OK, f"for {what}: defined in Airflow")
    if there:
        return Finding("connection", name, Severity.WARNING, f"for {what}: {IN_AIRFLOW}", str(error))
    if there is None and not needed_here:
        return Finding("connection", name, Severity.WARNING, f"for {what}: {CANNOT_ASK}", str(error))
    return Finding("connection", name, Severity.ERROR, f"for {what}: not usable", str(error))


def _notifying(settings: SiteSettings) -> Mapping[str, str]:
    """Return what only Airflow's tasks use."""
    services = settings.notify.apprise
    return dict.fromkeys(services.connections if services else (), "apprise")


def _login(settings: SiteSettings, connection: ConnectionSecrets) -> str:
    login = f"login {connection.login}" if connection.login else "no login"
    gateways = {repository.gateway for repository in settings.repositories.values()}
    return f"{login} at {base_url(connection, port=settings.gateway.port)}" if connection.id in gateways else login


def look_at_schedules(settings: SiteSettings) -> Iterator[Finding]:
    """Yield the slots whose night has no beginning on the day on which the clock is put forward."""
    for slot in settings.slots.values():
        if slot.schedule and (missing := left_out(slot.schedule, slot.timezone, datetime.now(UTC))):
            seen = f"{slot.schedule} in {slot.timezone}"
            note = (
                f"{missing:%Y-%m-%d %H:%M} does not exist there, since the clock is put forward over it; "
                "that night begins as much later. Choose a time of day outside of the change."
            )
            yield Finding("schedule", slot.name, Severity.WARNING, seen, note)


def look_at_keys(settings: SiteSettings) -> Iterator[Finding]:
    """Yield the public key of each repository. It is made with the repository, so its absence is no fault."""
    for repository in settings.repositories.values():
        fqrn, key = repository.fqrn, repository.public_key
        if key.is_file():
            yield Finding("public key", fqrn, Severity.OK, str(key))
        else:
            note = "made when the repository is created; else copy its .pub file there"
            yield Finding("public key", fqrn, Severity.WARNING, f"{key} (not there yet)", note)


def look_at_ledger(site: Site) -> Iterator[Finding]:
    """Open the ledger, which makes its tables where there are none."""
    name = site.settings.ledger
    try:
        name = shown_address(ledger_address(site.settings, site.secrets))
        name = shown(site.ledger.url)
    except (LedgerError, SettingsError) as error:
        yield Finding("ledger", name, Severity.ERROR, "cannot be used", str(error))
    else:
        yield Finding("ledger", name, Severity.OK, "tables up to date")
