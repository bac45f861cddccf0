"""Settings of lifetimes in a repository: builds of a slot, tags and objects (docs/operations.md)."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, model_validator

from include.settings.prepare import Block
from include.settings.text_types import fault

Weekday = Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
Count = Annotated[int, Field(ge=0)]


class WeekdayRule(Block):
    """Builds whose date is one of these days stay for so many weeks."""

    days: Annotated[tuple[Weekday, ...], Field(min_length=1)]
    """The days of the week."""
    weeks: Annotated[int, Field(ge=1, le=1000)]
    """Lifetime of such a build, from its build date."""


class Retention(Block):
    """A build stays if one rule keeps it; ages are of its build date. What a link or another build leads to stays."""

    keep_last: Count = 0
    """So many of the newest builds."""
    keep_days: Count | None = None
    """Builds that are not older. None: age keeps none."""
    keep_weekdays: WeekdayRule | None = None
    """Builds of some days of the week. None: no day keeps any."""
    keep_tagged: bool = True
    """Builds that a tag of the current history names."""
    minimum: Annotated[int, Field(ge=1)] = 3
    """So many of the newest builds stay, whatever the other rules say."""
    rebuild_days: Count = 7
    """A build that a backfill or a person published stays so long after its publication, whatever its date."""
    approve_above: Count = 10
    """More builds than this are removed by a scheduled run only after a person's approval."""

    @model_validator(mode="after")
    def _something_stays(self) -> Retention:
        if not self.keep_last and self.keep_days is None and self.keep_weekdays is None:
            raise fault("retention without a rule", "Set `keep_last:`, `keep_days:` or `keep_weekdays:`.")
        return self


class TagRule(Block):
    """Rule for tags: of those whose names match, the newest and those that are not older stay. The others may go."""

    keep: Count = 0
    """So many of the newest tags stay."""
    older_than_days: Count | None = None
    """Tags that are not older stay. None: age keeps none."""
    match: Annotated[str, Field(min_length=1)] = "*"
    """A pattern of names, as `nightly-*`; tags of other names stay."""
    apply: bool = False
    """Lets scheduled runs remove tags; otherwise they only report them."""

    @model_validator(mode="after")
    def _something_stays(self) -> TagRule:
        if self.keep == 0 and self.older_than_days is None:
            raise fault("a rule for tags by which none stays", "Set `keep:`, `older_than_days:`, or both.")
        return self


class CollectionSettings(Block):
    """Settings of collections: what is kept, and when one stops by itself."""

    grace_days: Annotated[float, Field(ge=0, le=3650)] = 3.0
    """Lifetime of a revision after it was superseded. 0: only what the current revision and tags need stays, which
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
