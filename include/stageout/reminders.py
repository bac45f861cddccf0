"""Messages about users whose transfers wait for a credential."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime

from sqlalchemy import func, select

from include.ledger.engine import Bind, reading
from include.notify.message import Message, NotifyEvent
from include.notify.notifier import Notifier, NotifySite, Said
from include.stageout.states import TransferState
from include.stageout.tables import stageout_queues, stageout_transfers

_MOST_LINKS = 5


def waiting_for_credentials(bind: Bind) -> dict[str, dict[tuple[str, str], int]]:
    """The users whose transfers wait for a credential, with the number of files by link."""
    transfers, queues = stageout_transfers.c, stageout_queues.c
    by_queue = (
        select(transfers.queue, func.count().label("files"))
        .where(transfers.state == TransferState.NEEDS_CREDENTIAL.value)
        .group_by(transfers.queue)
        .subquery()
    )
    query = select(queues.owner, queues.source, queues.destination, by_queue.c.files)
    found: defaultdict[str, dict[tuple[str, str], int]] = defaultdict(dict)
    with reading(bind) as connection:
        for row in connection.execute(query.join(by_queue, by_queue.c.queue == queues.id)):
            link = (row.source, row.destination)
            found[row.owner][link] = found[row.owner].get(link, 0) + row.files
    return dict(found)


def remind(site: NotifySite, *, now: datetime) -> Iterator[tuple[str, Said]]:
    """Send a message for each such user, once within the window of `notify:`; the users, and what became of each."""
    waiting = waiting_for_credentials(site.ledger)
    notifier = Notifier.of(site) if waiting else None
    for owner, links in sorted(waiting.items()):
        if notifier is not None:
            yield owner, notifier.tell(reminder(owner, links), now=now)


def reminder(owner: str, links: Mapping[tuple[str, str], int]) -> Message:
    """The message about one user."""
    files = sum(links.values())
    named = [f"{source} to {destination}: {count}" for (source, destination), count in sorted(links.items())]
    more = len(named) - _MOST_LINKS
    text = f"{files} files of {owner} wait for a credential. By link: {'; '.join(named[:_MOST_LINKS])}"
    return Message(
        key=f"credential:{owner}",
        event=NotifyEvent.CREDENTIAL,
        severity="warning",
        title=f"transfers of {owner} need a credential",
        text=text + (f"; and {more} more links." if more > 0 else "."),
        cure=f"{owner} renews the proxy or token. The transfers then go on by themselves, and no retry is spent.",
    )
