"""The errors of publishers; those of gateways, stores and repositories are defined with these.

PublisherError
├── NotSupported(fqrn, detail)            an operation that this way to publish does not have
├── Lossy(fqrn, detail, loss)             it would lose something on the way, and the settings do not allow that
└── WorkReverted(fqrn, detail, revision)  a revision changed what was not leased: others' work may be lost

LeasesLeft(faults)                        leases that were not ended, over several repositories
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from include.errors import NightshiftError

if TYPE_CHECKING:
    from include.publishers.capabilities import Loss


class PublisherError(NightshiftError):
    """Carries the repository, and the path in it, concerned."""

    code = "publisher-error"

    def __init__(self, fqrn: str, detail: str, *, path: str | None = None) -> None:
        super().__init__(f"repository {fqrn}: {detail}")
        self.fqrn = fqrn
        self.path = path


class NotSupported(PublisherError):
    """The table of capabilities refuses the operation; the message names the path and what to do instead."""

    code = "operation-not-supported"


class Lossy(PublisherError):
    """Part of the tree would be lost; the message names the path, what to do, and the setting that allows it.

    ``loss`` is what `allow_lossy` would have to name.
    """

    code = "publication-lossy"

    def __init__(self, fqrn: str, detail: str, *, path: str, loss: Loss) -> None:
        super().__init__(fqrn, detail, path=path)
        self.loss = loss


class WorkReverted(PublisherError):
    """A stock gateway made a ``revision`` that undid the work of others; ours is kept."""

    code = "changes-reverted"

    def __init__(self, fqrn: str, detail: str, *, path: str, revision: int) -> None:
        super().__init__(fqrn, detail, path=path)
        self.revision = revision


class LeasesLeft(NightshiftError):
    """Dead tasks' leases that were not ended, or gateways that did not list theirs; ``faults`` has each with a hint."""

    code = "leases-left"

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults
