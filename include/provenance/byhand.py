"""Deeds of publications by hand, which are no run's."""

from __future__ import annotations

from datetime import datetime

from include.provenance.deed import Deed
from include.provenance.records import key_of, note
from include.publishers.byhand import HandMade
from include.publishers.connect import Connections

BY_HAND = "by hand"


def note_by_hand(connections: Connections, done: HandMade, *, source: str, holder: str, now: datetime) -> None:
    """Have a publication by hand in the ledger and signed in the store, if it changed anything. Raises nothing."""
    published, changeset = done.published, done.changeset
    if published is None or published.unchanged:
        return
    note(
        connections,
        Deed(
            repository=changeset.repository,
            path=published.path,
            revision=published.revision,
            run_id=f"{BY_HAND}/{now.isoformat()}",
            holder=holder,
            publisher=connections.site.repository(changeset.repository).publisher.value,
            key_id=key_of(connections, changeset.repository),
            published_at=now,
            root_hash=str(published.root_hash),
            nested_hash=str(published.nested_hash) if published.nested_hash else None,
            changeset=changeset.digest,
            source=source,
        ),
    )
