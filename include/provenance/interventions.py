"""Freeze and thaw repositories. The store has the current freeze, the ledger who changed it, when and why."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Column, Connection, Index, Table, insert, select

from include.cvmfs.coordination import freeze as document
from include.cvmfs.coordination.freeze import Changed, Freeze
from include.cvmfs.errors import FormatError
from include.errors import NightshiftError
from include.gateway.errors import GatewayError
from include.json_values import JsonValue
from include.ledger.engine import Bind, reading, writing
from include.ledger.metadata import ROW_ID, TABLE_OPTIONS, UtcTime, exact, long_text, metadata
from include.site.site import Site
from include.storage.errors import StoreError


class BadFreeze(NightshiftError):
    """A freeze without a reason, or that ends before it begins."""

    code = "freeze-invalid"

    def __init__(self, fqrn: str, detail: str) -> None:
        self.fqrn = fqrn
        super().__init__(f"repository {fqrn}: {detail}.")


interventions = Table(
    "interventions",
    metadata,
    # who froze and thawed what, when and why, in order; the current freeze is in the repository's store
    Column("id", ROW_ID, primary_key=True, autoincrement=True),
    Column("repository", exact(128), nullable=False),
    Column("kind", exact(16), nullable=False),
    Column("freeze", exact(64), nullable=False),
    Column("who", exact(256), nullable=False),
    Column("reason", long_text(), nullable=False),
    Column("until", UtcTime),
    Column("done_at", UtcTime, nullable=False),
    Index(None, "repository"),
    Index(None, "done_at"),
    **TABLE_OPTIONS,
)

FREEZE, THAW = "freeze", "thaw"


@dataclass(frozen=True, slots=True)
class Intervention(JsonValue):
    """Row of the ledger: `kind` is `freeze` or `thaw`; `freeze` names the freeze that was meant."""

    repository: str
    kind: str
    freeze: str
    who: str
    reason: str
    until: datetime | None
    done_at: datetime

    def to_json(self) -> dict[str, Any]:
        return {
            "repository": self.repository,
            "kind": self.kind,
            "who": self.who,
            "reason": self.reason,
            "until": self.until.isoformat() if self.until else None,
            "at": self.done_at.isoformat(),
        }


@dataclass(frozen=True, slots=True)
class FreezeState:
    """State of a repository: `frozen`, or not; `unknown`: why that is not known."""

    repository: str
    frozen: Freeze | None = None
    unknown: str | None = None


def freeze(site: Site, fqrn: str, *, reason: str, who: str, until: datetime | None, now: datetime) -> Changed:
    """Freeze a repository, and have it in the ledger; nothing happens if it is frozen just so.

    Raises BadFreeze, SettingsError, Conflict if another process did the same in this moment, and what stores raise.
    """
    store = site.manifest_store(fqrn)
    try:
        wanted = Freeze(secrets.token_hex(8), reason.strip(), who, now, until)
    except ValueError as fault:
        raise BadFreeze(fqrn, str(fault)) from None
    done = document.freeze(store, wanted)
    if done.after is not None:
        _record(site.ledger, fqrn, FREEZE, done.after, who, now, always=done.changed)
    return done


def thaw(site: Site, fqrn: str, *, who: str, now: datetime) -> Changed:
    """End a repository's freeze, and have it in the ledger; nothing happens if none holds. Raises as `freeze`."""
    done = document.thaw(site.manifest_store(fqrn), now)
    if done.changed and done.after is not None:
        _record(site.ledger, fqrn, THAW, done.after, who, now, always=True)
    return done


def standings(site: Site, now: datetime) -> tuple[FreezeState, ...]:
    """The state of every repository of the site; one whose store does not answer hides no other."""
    return tuple(standing(site, fqrn, now) for fqrn in sorted(site.settings.repositories))


def open_leases(site: Site, fqrn: str) -> list[str] | None:
    """Return who is still at work under leases that were granted before; None if the gateway does not answer."""
    try:
        with site.gateway(fqrn) as client:
            held = [lease for lease in client.leases() if lease.repository == fqrn]
    except GatewayError:
        return None
    return [f"{lease.path or '/'} held by {lease.hostname!r} with key {lease.key_id}" for lease in held]


def interventions_of(bind: Bind, fqrn: str | None = None, *, limit: int = 100) -> Sequence[Intervention]:
    """Return what was done to a repository, or to all, the newest first."""
    query = select(interventions).order_by(interventions.c.id.desc()).limit(limit)
    if fqrn is not None:
        query = query.where(interventions.c.repository == fqrn)
    with reading(bind) as connection:
        return [Intervention.from_json(row) for row in connection.execute(query).mappings()]


def standing(site: Site, fqrn: str, now: datetime) -> FreezeState:
    """The state of one repository; a store that does not answer is reported in it. Raises SettingsError."""
    try:
        return FreezeState(fqrn, document.look(site.repository_store(fqrn), now))
    except (StoreError, FormatError) as error:
        return FreezeState(fqrn, unknown=str(error))


def _record(bind: Bind, fqrn: str, kind: str, of: Freeze, who: str, now: datetime, *, always: bool) -> None:
    """`always`: also if the ledger has a row of that freeze; otherwise only what a crash kept from being written."""

    def work(connection: Connection) -> None:
        known = select(interventions.c.id).where(interventions.c.freeze == of.id, interventions.c.kind == kind)
        if not always and connection.scalar(known.limit(1)) is not None:
            return
        connection.execute(
            insert(interventions).values(
                repository=fqrn, kind=kind, freeze=of.id, who=who, reason=of.reason, until=of.until, done_at=now
            )
        )

    writing(bind, work)
