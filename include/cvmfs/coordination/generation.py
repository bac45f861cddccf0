"""The collection generation: what a garbage collection and those who publish beside it know of each other.

One small document in the repository's store, which only the collector writes, by compare-and-swap. The protocol is
docs/decisions, "A collection and publications see each other". Readers and stock tools know nothing of it; where it
is absent, the time of the last collection in the stock status file plays its part.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Annotated, NamedTuple

from pydantic import Field, TypeAdapter

from include.cvmfs.coordination.freeze import Instant, Sha256, format_document, read_document
from include.cvmfs.errors import FormatError, GenerationMoved
from include.storage.errors import NotFound
from include.storage.store import Store, Version

KEY = ".nightshift/generation"
STATUS_KEY = ".cvmfs_status.json"
_STATUS_TIMES = ("%a %b %d %H:%M:%S %Z %Y", "%a %d %b %Y %H:%M:%S %Z", "%Y-%m-%dT%H:%M:%SZ")
CHANGESET_LIFE = timedelta(hours=24)
"""A changeset that began longer ago is prepared again; so is what a journal of sent objects holds."""
ORPHAN_GRACE = timedelta(hours=48)
"""A collector spares what was stored later than this ago and nothing names: twice the life of a changeset, since one
that began in its last moment may rely on what an interrupted preparation sent a life before."""
TAKEOVER = timedelta(minutes=20)
"""A running collection whose document is older than this is taken for dead, and another may take it up."""
CLOCK_SKEW = timedelta(hours=1)
SHARDS = 256
"""Parts of a list of condemned objects, by the first byte of the digest; they are swept in ascending order."""
FORMAT = 1
_WHAT = "collection generation"
CollectionNumber = Annotated[int, Field(strict=True, ge=0, lt=1 << 53)]
Shards = Annotated[int, Field(strict=True, ge=0, le=SHARDS)]


class CollectionPhase(Enum):
    """Phase of the collection of this number."""

    IDLE = "idle"
    MARKING = "marking"
    CONDEMNED = "condemned"
    SWEEPING = "sweeping"

    @property
    def has_list(self) -> bool:
        """Tell whether a list of what is going to be deleted is out."""
        return self in {CollectionPhase.CONDEMNED, CollectionPhase.SWEEPING}


class CollectionStep(Enum):
    """Step of a collector, written to the document."""

    BEGIN = "begin"
    RENEW = "renew"
    CONDEMN = "condemn"
    SWEEP = "sweep"
    END = "end"
    ABANDON = "abandon"
    BEGIN_ANEW = "begin again"


# Nothing is deleted before SWEEPING: until then a collection may be abandoned, or begun again by another collector. A
# sweep can only be finished, since changesets are judged by its list.
MOVES: dict[tuple[CollectionPhase, CollectionStep], CollectionPhase] = {
    (CollectionPhase.IDLE, CollectionStep.BEGIN): CollectionPhase.MARKING,
    (CollectionPhase.MARKING, CollectionStep.RENEW): CollectionPhase.MARKING,
    (CollectionPhase.MARKING, CollectionStep.CONDEMN): CollectionPhase.CONDEMNED,
    (CollectionPhase.MARKING, CollectionStep.ABANDON): CollectionPhase.IDLE,
    (CollectionPhase.MARKING, CollectionStep.BEGIN_ANEW): CollectionPhase.MARKING,
    (CollectionPhase.CONDEMNED, CollectionStep.RENEW): CollectionPhase.CONDEMNED,
    (CollectionPhase.CONDEMNED, CollectionStep.SWEEP): CollectionPhase.SWEEPING,
    (CollectionPhase.CONDEMNED, CollectionStep.ABANDON): CollectionPhase.IDLE,
    (CollectionPhase.CONDEMNED, CollectionStep.BEGIN_ANEW): CollectionPhase.MARKING,
    (CollectionPhase.SWEEPING, CollectionStep.RENEW): CollectionPhase.SWEEPING,
    (CollectionPhase.SWEEPING, CollectionStep.END): CollectionPhase.IDLE,
}

_SINCE_A_LIST = (CollectionPhase.CONDEMNED, CollectionPhase.SWEEPING, CollectionPhase.IDLE)


class EndedCollection(NamedTuple):
    """A collection that ended: its list (SHA-256 in hex; None if it deleted nothing) and when."""

    number: CollectionNumber
    condemned: Sha256 | None
    ended: Instant


@dataclass(frozen=True, slots=True, order=True)
class CollectionProgress:
    """Progress of collections: the last that had ended, and the shards that the next one had swept (0 to 256)."""

    completed: int = 0
    swept: int = 0

    @classmethod
    def parse(cls, mark: str) -> CollectionProgress:
        """The moment of a ``Look.mark``, or of a token, which has no shards. Raises FormatError."""
        token, _, swept = mark.partition("+")
        number, _, phase = token.partition(":")
        try:
            if number == "gc":
                return cls(int(phase))
            completed = int(number) - (CollectionPhase(phase) is not CollectionPhase.IDLE)
            shards = int(swept or 0)
            if not 0 <= shards <= SHARDS:
                raise ValueError(f"{shards} shards swept of {SHARDS}")
            return cls(completed, shards)
        except ValueError as fault:
            raise FormatError(_WHAT, f"{mark[:80]!r} names no moment of a collection: {fault}") from None


@dataclass(frozen=True, slots=True)
class AffectedShards:
    """A list that a changeset may have to do with, and the shards of it that count."""

    name: str
    shards: range


@dataclass(frozen=True, slots=True)
class Generation:
    """The document. ``number``: of the collection that runs, or ran last (0: none yet); ``since``: when it was written.

    ``condemned``: SHA-256 of the list that is out. ``past``: the collections that a changeset may have missed.
    ``swept``: so many shards of the list, in ascending order, are swept: all requests for them have been answered.
    ``collector``: the process that is at work, as its machine can find it; None if none is, or that is not known.
    """

    number: CollectionNumber
    phase: CollectionPhase
    since: Instant
    condemned: Sha256 | None = None
    past: tuple[EndedCollection, ...] = ()
    swept: Shards = 0
    collector: str | None = None

    def __post_init__(self) -> None:
        if self.phase.has_list is not (self.condemned is not None):
            listed = "with" if self.condemned else "without"
            raise ValueError(f"a collection is {self.phase.value} {listed} a list of condemned objects")
        if self.swept and self.phase is not CollectionPhase.SWEEPING:
            raise ValueError(f"a collection is {self.phase.value} with {self.swept} shards swept")

    @property
    def completed(self) -> int:
        """The last collection that ended: what a changeset that begins now takes down."""
        return self.number if self.phase is CollectionPhase.IDLE else self.number - 1

    @property
    def token(self) -> str:
        """Names number and phase, as a publisher sends them with a commit; see :meth:`upholds`.

        It does not change with ``swept``: what was sent after its shard was swept is safe, whatever is swept next.
        """
        return f"{self.number}:{self.phase.value}"

    def upholds(self, token: str) -> bool:
        """Tell whether what was found free of condemned objects at ``token`` is so now: no list was published since.

        The list of a sweep holds nothing that the one before it did not, so only CONDEMN publishes. What was judged
        later than this document was written, or at another one, is not upheld.
        """
        last = self.number - (self.phase is CollectionPhase.MARKING)  # the last that may have published a list
        tokens = [f"{last}:{phase.value}" for phase in _SINCE_A_LIST] + [f"{last + 1}:{CollectionPhase.MARKING.value}"]
        return token in tokens[: tokens.index(self.token) + 1]

    def has_swept(self, number: int, shards: Sequence[int] = ()) -> bool:
        """Tell whether the collection of that number has swept these shards of its list, or has ended; without shards
        it has to end."""
        if self.number != number or self.phase is CollectionPhase.IDLE:
            return True
        return bool(shards) and max(shards) < self.swept

    def after(
        self, step: CollectionStep, now: datetime, *, condemned: str | None = None, swept: int | None = None
    ) -> Generation:
        """The document after a step. ``condemned`` comes with CONDEMN and SWEEP; ``swept`` may come with RENEW.

        Raises ValueError for no such move, and for ``swept`` outside a sweep or less than before.
        """
        phase = MOVES.get((self.phase, step))
        if phase is None:
            raise ValueError(f"a collection that is {self.phase.value} cannot {step.value}")
        if (condemned is not None) is not (step in {CollectionStep.CONDEMN, CollectionStep.SWEEP}):
            raise ValueError(f"{step.value} {'takes no' if condemned else 'needs a'} list of condemned objects")
        sweeping = step is CollectionStep.RENEW and phase is CollectionPhase.SWEEPING
        if swept is not None and not (sweeping and self.swept <= swept <= SHARDS):
            raise ValueError(f"{step.value} of a collection that is {self.phase.value}, {self.swept} shards swept")
        past = self.past
        if step in {CollectionStep.END, CollectionStep.ABANDON, CollectionStep.BEGIN_ANEW}:
            deleted = self.condemned if step is CollectionStep.END else None
            past = (
                *(collection for collection in past if now - collection.ended < ORPHAN_GRACE),
                EndedCollection(self.number, deleted, now),
            )
        number = self.number + (step in {CollectionStep.BEGIN, CollectionStep.BEGIN_ANEW})
        if step is CollectionStep.RENEW:
            condemned = self.condemned
        swept = (self.swept if swept is None else swept) if sweeping else 0
        return replace(self, number=number, phase=phase, since=now, condemned=condemned, past=past, swept=swept)

    def format(self) -> bytes:
        """The document as JSON, one line."""
        fields = asdict(self) | {"phase": self.phase.value}
        if not self.swept:
            del fields["swept"]
        if not self.collector:
            del fields["collector"]
        return format_document(fields, version=FORMAT)

    @classmethod
    def parse(cls, data: bytes) -> Generation:
        """Read :meth:`format`. Raises FormatError for anything else."""
        return read_document(_READER, data, what=_WHAT, version=FORMAT, key=KEY, required=("condemned", "past"))


_READER = TypeAdapter(Generation)


@dataclass(frozen=True, slots=True)
class Look:
    """State of collections at one moment: the document, or the stock tools' last collection (Unix s, 0: none).

    Take it before the manifest is read: what a newer manifest preserves cannot have been collected by then.
    """

    generation: Generation | None = None
    last_collection: int = 0
    version: Version | None = None

    @property
    def completed(self) -> int:
        """The last collection that ended."""
        return self.last_collection if self.generation is None else self.generation.completed

    @property
    def swept(self) -> int:
        """Return how many shards of the list that is out are swept."""
        return 0 if self.generation is None else self.generation.swept

    @property
    def moment(self) -> CollectionProgress:
        """Return what a changeset that begins now takes down."""
        return CollectionProgress(self.completed, self.swept)

    @property
    def token(self) -> str:
        """Equal tokens: nothing has happened that could have taken an object away."""
        return f"gc:{self.last_collection}" if self.generation is None else self.generation.token

    @property
    def mark(self) -> str:
        """The token and how many shards are swept, as text, for :meth:`CollectionProgress.parse`."""
        return f"{self.token}+{self.swept}" if self.swept else self.token

    @property
    def running_list(self) -> str | None:
        """The list of what is about to be deleted: it counts as absent until the collection has ended."""
        return None if self.generation is None else self.generation.condemned

    def lists_since(self, moment: CollectionProgress) -> tuple[AffectedShards, ...] | None:
        """The lists of the collections that ended since; None when that is unknown.

        Of the first of them only the shards count that were not swept at ``moment``.
        """
        began = moment.completed
        if began == self.completed:
            return ()
        if self.generation is None or began > self.completed:
            return None
        past = self.generation.past
        missed = {ended.number: ended.condemned for ended in past if began < ended.number <= self.completed}
        if len(missed) != self.completed - began:
            return None
        return tuple(
            AffectedShards(name, range(moment.swept if number == began + 1 else 0, SHARDS))
            for number, name in sorted(missed.items())
            if name is not None
        )

    def running_since(self, moment: CollectionProgress) -> AffectedShards | None:
        """The list that is out; only the shards count that were not swept at ``moment``. None if none of them is."""
        if self.running_list is None:
            return None
        shards = range(moment.swept if moment.completed == self.completed else 0, SHARDS)
        return AffectedShards(self.running_list, shards) if shards else None


def look(store: Store) -> Look:
    """Read what the repository's store holds about collections: one request, a second where there is no document.

    Raises FormatError for a document that cannot be read, and StoreError.
    """
    try:
        data, version = store.get_versioned(KEY)
    except NotFound:
        return Look(last_collection=_last_collection(store))
    return Look(Generation.parse(data), version=version)


def write(store: Store, generation: Generation, *, expected: Version | None) -> Version:
    """The collector's compare-and-swap. Raises Conflict if another collector came first."""
    return store.replace(KEY, generation.format(), expected=expected)


def require_unmoved(store: Store, token: str, *, fqrn: str, hint: str = "") -> None:
    """The barrier of commits, called right before the switch: no list was published since the change was judged.

    ``token`` is ``Look.token`` of when the publisher judged its change, empty from one who knows of no generations; he
    may commit unless a list is out. ``hint``: what helps, where the caller does not add it. One small read. Raises
    GenerationMoved, FormatError, StoreError.
    """
    try:
        generation = Generation.parse(store.get(KEY))
    except NotFound:
        if token and not token.startswith("gc:"):
            raise GenerationMoved(fqrn, f"the change was judged at {token}, but {KEY} is gone") from None
        return
    if generation.phase.has_list if not token else not generation.upholds(token):
        judged = f"judged at {token}" if token else "not judged"
        what = f"the change was {judged}, the collection is at {generation.token} now"
        raise GenerationMoved(fqrn, f"{what}; {hint}" if hint else what)


def parse_status_time(text: object) -> datetime | None:
    """A time of the repository status, as the versions of the stock tools write it; None if it has another form."""
    for form in _STATUS_TIMES:
        try:
            return datetime.strptime(" ".join(str(text).split()), form).replace(tzinfo=UTC)
        except ValueError:
            continue
    return None


def _last_collection(store: Store) -> int:
    """When the stock collector ended last, in Unix seconds; what cannot be read still differs from what was before."""
    try:
        data = store.get(STATUS_KEY)
    except NotFound:
        return 0
    try:
        text = json.loads(data).get("last_gc") or ""
    except (ValueError, AttributeError, RecursionError):
        raise FormatError("repository status", f"{STATUS_KEY} is not a JSON object") from None
    if not text:
        return 0
    time = parse_status_time(text)
    if time is not None and (seconds := int(time.timestamp())) > 0:
        return seconds
    return int.from_bytes(str(text).encode("utf-8", "surrogatepass")[-7:])
