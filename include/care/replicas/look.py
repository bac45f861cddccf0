"""Read the replicas of a repository, and record in the ledger how far each is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from include.care.replicas.reading import see
from include.care.replicas.states import ReplicaLook, judge
from include.care.replicas.tables import replicas
from include.care.replicas.waiting import CollectionDecision, ReplicaRule, wait_for_replicas
from include.ledger.engine import Bind, reading, writing
from include.settings.replicas import chosen
from include.site.site import Site

AT_ONCE = 8


def look_at_replicas(site: Site, fqrn: str, now: datetime, names: Sequence[str] = ()) -> list[ReplicaLook]:
    """How these replicas compare with stratum 0, or all; changes nothing. One that is away hides no other.

    Raises SettingsError for an unknown name, and what reading stratum 0's manifest raises.
    """
    settings = site.settings.repository(fqrn)
    wanted = chosen(fqrn, settings.replicas, names)
    if not wanted:
        return []
    keys = [settings.public_key.read_bytes()]
    with ThreadPoolExecutor(AT_ONCE, "replica") as pool:
        seen = list(
            pool.map(lambda replica: see(replica.name, replica.url, fqrn=fqrn, public_keys=keys, now=now), wanted)
        )
    # after the replicas: what they got meanwhile it has, too
    head = site.head(fqrn).manifest
    before = {look.replica: look for look in looks_of(site.ledger, fqrn)}
    return [judge(look, head, before.get(look.name), now) for look in seen]


def record(bind: Bind, looks: Iterable[ReplicaLook]) -> None:
    """Note the looks in the ledger; one that is older than what is there is left out."""
    rows = [look.to_row() for look in looks]

    def work(connection: Connection) -> None:
        for row in rows:
            key = (replicas.c.repository == row["repository"], replicas.c.replica == row["replica"])
            newer = update(replicas).where(*key, replicas.c.looked_at <= row["looked_at"])
            if connection.scalar(select(replicas.c.replica).where(*key)) is None:
                try:
                    with connection.begin_nested():
                        connection.execute(insert(replicas).values(row))
                    continue
                except IntegrityError:
                    pass  # another process looked in this moment
            connection.execute(newer.values(row))

    writing(bind, work)


def looks_of(bind: Bind, fqrn: str) -> list[ReplicaLook]:
    """The last look at each replica of a repository, by name."""
    query = select(replicas).where(replicas.c.repository == fqrn).order_by(replicas.c.replica)
    with reading(bind) as connection:
        return [ReplicaLook.from_row(row) for row in connection.execute(query).mappings()]


def before_collection(site: Site, fqrn: str, now: datetime) -> CollectionDecision:
    """Read all replicas, record the looks, and decide whether a collection may begin. Raises as `look_at_replicas`."""
    looks = look_at_replicas(site, fqrn, now)
    record(site.ledger, looks)
    return wait_for_replicas(looks, rules_of(site, fqrn), now)


def rules_of(site: Site, fqrn: str) -> dict[str, ReplicaRule]:
    """The limits of a repository's replicas, by name."""
    return {replica.name: ReplicaRule.of(replica) for replica in site.settings.repository(fqrn).replicas}
