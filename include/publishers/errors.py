"""What can go wrong with a publisher before it even begins.

PublisherError
└── NotBuilt(fqrn, detail)    the settings ask for a way to publish that this version does not have
"""

from __future__ import annotations

from typing import ClassVar


class PublisherError(Exception):
    """Carries the repository concerned."""

    retryable: ClassVar[bool] = False

    def __init__(self, fqrn: str, detail: str) -> None:
        super().__init__(f"repository {fqrn}: {detail}")
        self.fqrn = fqrn


class NotBuilt(PublisherError):
    """A publisher kind that the settings know and this version does not."""
