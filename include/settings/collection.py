"""The settings of a repository's garbage collection (docs/operations.md, collection)."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from include.settings.block import Block


class CollectionSettings(Block):
    """What a collection keeps, and when it stops by itself."""

    grace_days: Annotated[float, Field(ge=0, le=3650)] = 3.0
    """How long a revision stays after it was superseded. 0: only what the current revision and tags need stays, which
    is for repositories without readers."""
    careful: bool | None = None
    """Delete only what two collections condemned, a day apart. Unset: for the first 14 collections."""
    largest_loss: Annotated[float, Field(gt=0, le=1)] = 0.3
    """A collection is refused if so large a share of the preserved objects is gone since the one before."""
    audited: Annotated[int, Field(ge=0, le=1_000_000)] = 200
    """Preserved objects that each collection reads back, drawn at random."""

    @property
    def grace(self) -> timedelta:
        return timedelta(days=self.grace_days)
