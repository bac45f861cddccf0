"""Notes who and what published an artifact, once it is published."""

from __future__ import annotations

from datetime import datetime

from include.nightlies.records import Publication
from include.nightlies.states import State
from include.nightlies.steps.values import Batch, Item
from include.provenance.deed import Deed
from include.provenance.records import key_of, note
from include.publishers.connect import Connections


def vouch(connections: Connections, batch: Batch, item: Item, done: Publication, *, owner: str, now: datetime) -> None:
    """Have it in the ledger and signed in the store, if this run published it. Raises nothing: what stands stands."""
    if done.state is not State.PUBLISHED or done.revision_after is None:
        return
    note(
        connections,
        Deed(
            repository=batch.repository,
            path=item.destination,
            revision=done.revision_after,
            run_id=batch.run,
            holder=owner,
            publisher=connections.site.repository(batch.repository).publisher.value,
            key_id=key_of(connections, batch.repository),
            published_at=done.ended_at or now,
            root_hash=done.root_hash,
            nested_hash=done.nested_hash,
            changeset=done.changeset,
            source=item.source,
            artifact_sha256=done.artifact_sha256,
            slot=done.slot,
            build_id=done.build_id,
            project=done.project,
            platform=done.platform,
        ),
    )
