"""Values that steps are handed: the try of a task, and what steps of a run hand to each other.

The latter are small, as JSON over XCom, with names and digests only.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from include.json_values import JsonValue
from include.nightlies.rules.passes import is_outage

if TYPE_CHECKING:  # every DAG file imports this module: the ledger comes with the first record
    from include.ledger.acts import Act, ActKind
    from include.ledger.engine import Bind
    from include.nightlies.rules.publication import Move, Publication, PublicationKey

Clock = Callable[[], datetime]
OnLease = Callable[[Callable[[], object]], None]


@dataclass(frozen=True, slots=True)
class Attempt:
    """Try of a task of a run, which records what it does to a publication.

    `holder`: what others see as the holder of its leases; `number`: which try it is; `last`: no try follows.
    `outlast`: the caller waits out an outage and calls again. `on_lease` gets what gives the current lease back.
    `by`: who started the run; "": no person.
    """

    run: str
    holder: str
    number: int
    clock: Clock
    last: bool = True
    outlast: bool = False
    on_lease: OnLease | None = None
    by: str = ""

    def act(self, kind: ActKind, what: str, why: str, *, dry_run: bool = False) -> Act:
        """Return the record of a destructive act of this try."""
        from include.ledger.acts import Act

        return Act(self.clock(), kind, what, self.by or self.holder, why, self.run, dry_run)

    def outlasts(self, error: Exception) -> bool:
        """Tell whether the caller waits this error out: a step raises it then, and records nothing of it."""
        return self.outlast and is_outage(error)

    def move(self, bind: Bind, key: PublicationKey, move: Move) -> Publication:
        """Record that this try moved the publication. Raises what `publications.move` raises."""
        from include.nightlies.records import publications as records

        return records.move(bind, key, move, try_number=self.number, now=self.clock(), holder=self.holder)


CHOICES = ("projects", "platforms", "dry_run", "without")
"""Fields of a night that the form of its run has, by these names."""


@dataclass(frozen=True, slots=True)
class Night(JsonValue):
    """Build that a run installs. `run` names the run in the ledger, `reason` where the date came from.

    `number`: which pass of its night the run is; `earlier`: the names of the passes before it. Only the `last` one
    takes all that the index lists, and ends the night. `without`: the artifacts that may be missing in this run.
    """

    run: str
    slot: str
    date: dt.date
    reason: str
    projects: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    dry_run: bool = False
    number: int = 1
    earlier: tuple[str, ...] = ()
    last: bool = True
    without: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        value = JsonValue.to_json(self)
        if not self.without:
            del value["without"]  # what was added later is left out while it is empty
        return value


@dataclass(frozen=True, slots=True)
class Item(JsonValue):
    """Tree to publish: where it comes from and where it goes. `size` in bytes; sum and size None where unknown.

    `store`: name of the only store from which `source` may be read; None for any store of the configuration.
    `needs`: names of the items that go in before it. `inherits`: where the tree is that a partial build takes from
    another one, instead of reading `source`; `linked`: as a link to it, not as a tree of its own.
    """

    name: str
    destination: str
    source: str
    sha256: str | None = None
    size: int | None = None
    needs: tuple[str, ...] = ()
    inherits: str | None = None
    linked: bool = False
    store: str | None = None


@dataclass(frozen=True, slots=True)
class Batch(JsonValue):
    """Items that a mapped task works on, in this order. `nested`: directories above that become nested catalogs."""

    run: str
    repository: str
    items: tuple[Item, ...]
    nested: tuple[str, ...] = ()
    replace: bool = True
    tag: str | None = None
    dry_run: bool = False

    @property
    def name(self) -> str:
        """Return what the batch is called in a list: its artifact, or the first of several and how many more."""
        first = self.items[0].name if self.items else "empty"
        return first if len(self.items) < 2 else f"{first} and {len(self.items) - 1} more"

    def key(self, item: Item) -> PublicationKey:
        """Return what names this item's publication in the ledger."""
        from include.nightlies.rules.publication import PublicationKey

        return PublicationKey(self.repository, item.destination, self.run)

    def to_json(self) -> dict[str, Any]:
        # the name is for people who read the task
        return JsonValue.to_json(self) | {"name": self.name}


@dataclass(frozen=True, slots=True)
class PublicationRequest:
    """Tree or tarball to publish by hand. `source`: a URL in one of the configured stores."""

    repository: str
    path: str
    source: str
    sha256: str | None = None
    tag: str | None = None
    overwrite: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of a run. `settled`: what needs no doing, each with its reason; `notes`: faults to read.

    `inherited`: what a partial build takes from another one; None if there is nothing to take.
    """

    batches: tuple[Batch, ...]
    settled: tuple[Publication, ...] = ()
    notes: tuple[str, ...] = ()
    inherited: Batch | None = None


@dataclass(slots=True)
class BatchOutcome:
    """Outcome of a batch in a step: publications that went well, and errors by artifact."""

    done: list[Publication] = field(default_factory=list)
    failures: dict[str, Exception] = field(default_factory=dict)

    def to_json(self) -> list[dict[str, Any]]:
        """Return what a task returns for people to read; names, states, digests and figures only."""
        return [summary(publication) for publication in self.done]


def summary(publication: Publication) -> dict[str, Any]:
    """Return one publication as a task reports it."""
    return {
        "destination": publication.destination,
        "state": publication.state.value,
        "reason": publication.reason,
        "revision": publication.revision_after,
        "changeset": publication.changeset,
    }


def all_items(batches: Iterable[Batch]) -> list[tuple[Batch, Item]]:
    """Every item with its batch, in order."""
    return [(batch, item) for batch in batches for item in batch.items]
