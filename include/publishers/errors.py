"""What can go wrong with a publisher before it even begins.

PublisherError
├── NotBuilt(fqrn, detail)          the settings ask for a way to publish that this version does not have
├── TooManyWriters(fqrn, detail)    two may switch the manifest, and the store would not keep them apart
└── FoundingFailed(fqrn, detail)    the repository cannot be created, or its keys do not belong to it
"""

from __future__ import annotations

from typing import ClassVar


class PublisherError(Exception):
    """Carries the repository concerned."""

    retryable: ClassVar[bool] = False

    def __init__(self, fqrn: str, detail: str) -> None:
        super().__init__(f"repository {fqrn}: {detail}")
        self.fqrn = fqrn


class TooManyWriters(PublisherError):
    """The settings allow more manifest writers than the store can keep apart."""

    retryable: ClassVar[bool] = False


class NotBuilt(PublisherError):
    """A publisher kind that the settings know and this version does not."""

    retryable: ClassVar[bool] = False


class FoundingFailed(PublisherError):
    """A repository cannot be had with these keys in this store."""

    retryable: ClassVar[bool] = False
