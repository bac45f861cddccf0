"""Common part of removals: content is taken back by build (undo), by rule (retention) or by revision (rollback).

Each of the three plans and applies it; values, approval, and the record in the ledger are the same.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from typing import ClassVar

from include.cvmfs.format.catalog import NestedRef
from include.json_values import JsonValue
from include.ledger.acts import ActKind, named, note_act
from include.nightlies.records import links as linked, questions, undos as undone
from include.nightlies.records.links import LINK, LinkRecord
from include.nightlies.records.undos import Undone
from include.nightlies.rules import approval
from include.nightlies.rules.approval import Bound, QuestionKind, WantedApproval
from include.nightlies.rules.build import ArtifactRecord, BuildKey, LinkState
from include.nightlies.steps.approve import ApprovalRequest, require_answer, settings_of
from include.nightlies.steps.values import Attempt
from include.provenance.records import ChangeKind, ProvenanceRecord, begun, note
from include.site.site import Site

OF_USE = timedelta(hours=12)
"""Time after which an approval expires: what is removed does not grow old, but a run does."""


class Effect(Enum):
    """Effect of a removal on a path."""

    GOES = "goes"
    COMES_BACK = "comes back"
    CHANGES = "changes"


@dataclass(frozen=True, slots=True)
class Placed:
    """A tree with its nested catalog, or a link to `leads_to`. `sha256`: of its artifact, where the ledger knows it.

    Of what takes a place, `path` and `build_id`: where it comes from, unless it was here before; `tag`: the
    revision that has it, None: the newest.
    """

    nested_hash: str = ""
    sha256: str | None = None
    leads_to: str | None = None
    path: str = ""
    build_id: str | None = None
    tag: str | None = None
    reference: NestedRef | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.path if self.tag is None else f"what was there in revision {self.tag}, before the rebuild,"


@dataclass(frozen=True, slots=True)
class ChangedPath:
    """A path that loses its content, gets it back, or gets other content; None: nothing, or a bare reservation.

    `artifact`: of the build, which has so many that are `listed`, where the path is its destination.
    """

    path: str
    before: Placed | None
    after: Placed | None = None
    slot: str | None = None
    build: BuildKey | None = None
    artifact: ArtifactRecord | None = None
    listed: int = 0
    files: int = 0
    bytes: int = 0
    reason: str = ""

    @property
    def effect(self) -> Effect:
        if self.before is None:
            return Effect.COMES_BACK
        return Effect.GOES if self.after is None else Effect.CHANGES

    @property
    def name(self) -> str:
        """Name of its artifact, or the path."""
        return self.artifact.artifact.name if self.artifact else self.path

    @property
    def held(self) -> str:
        """The nested catalog of the tree that is there, "" for a link or nothing."""
        return self.before.nested_hash if self.before else ""

    @property
    def from_build(self) -> str | None:
        """The build whose content is there afterwards."""
        if self.after is None:
            return None
        return self.after.build_id or (self.build.build_id if self.build else None)

    def __str__(self) -> str:
        what = f"{self.files} files, {self.bytes} bytes" if self.held else "a link"
        end = f"{self.after} takes its place" if self.after else "goes"
        return f"{self.name}: {self.path} ({what}): {end}"

    def provenance(self, common: ProvenanceRecord) -> ProvenanceRecord:
        """Return who took it away, or put what is there."""
        artifact, before, after = self.artifact, self.before, self.after
        record = replace(
            common, path=self.path, slot=self.slot, build_id=self.build.build_id if self.build else None,
            project=artifact.artifact.project if artifact else None, reason=self.reason or None,
            platform=artifact.artifact.platform if artifact else None,
            before=(before.leads_to or before.nested_hash or None) if before else None,
        )  # fmt: skip
        if after is None:
            return replace(record, kind=ChangeKind.REMOVED, artifact_sha256=before.sha256 if before else None)
        if after.leads_to:
            return replace(record, kind=ChangeKind.LINK, leads_to=after.leads_to)
        return replace(
            record, artifact_sha256=after.sha256, nested_hash=after.nested_hash, came_from=after.path or self.path,
            from_build=self.from_build,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class MovedLink:
    """A link of a slot that leads elsewhere afterwards; None: it is not there.

    `build`: that it leads to then; `left`: that it led to.
    """

    path: str
    slot: str
    before: str | None
    after: str | None
    build: BuildKey | None
    left: BuildKey | None
    reason: str = ""
    verb: str = "then"

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.path}: comes back, leads to {self.after}"
        return f"{self.path}: leads to {self.before}, {f'{self.verb} to {self.after}' if self.after else 'goes'}"

    @property
    def key(self) -> BuildKey | None:
        """The build that a record of it names; None: the ledger does not know it."""
        return self.build if self.after is not None else self.left

    @property
    def changed(self) -> ChangedPath:
        """Return it as a path of which the content changes."""
        before, after = (Placed(leads_to=target) if target else None for target in (self.before, self.after))
        return ChangedPath(self.path, before, after, self.slot, self.build or self.left, reason=self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal(JsonValue):
    """Plan of a removal from a revision. `notes`: what to know of it; `refused`: why it must not be done."""

    kind: ClassVar[QuestionKind]
    repository: str
    revision: int
    notes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    @abstractmethod
    def bound(self) -> Bound:
        """Return what an approval of it binds: what goes and what comes instead, not the revision."""

    @abstractmethod
    def lines(self) -> Iterator[str]:
        """Yield the whole of it as text, for the person who decides."""

    @property
    def title(self) -> str:
        """Return its name in an error."""
        return self.bound.name


def ask(
    site: Site, attempt: Attempt, removals: Sequence[Removal], subject: str, head: Sequence[str], what: str
) -> ApprovalRequest:
    """Record the one question of a run about removals of a repository. `head`: the first lines of its text."""
    settings, now = settings_of(site, removals[0].repository), attempt.clock()
    wanted = WantedApproval(
        removals[0].kind, removals[0].repository, subject,
        (*head, *(line for removal in removals for line in removal.lines())),
        tuple(removal.bound for removal in removals), settings.deadline_minutes, now + OF_USE,
    )  # fmt: skip
    until = approval.deadline(now, settings.deadline_minutes, wanted.expires)
    question = questions.ask(site.ledger, attempt.run, wanted, now=now, deadline=until)
    return ApprovalRequest(question, True, f"{what} to approve, digest {wanted.digest}")


def is_asked(site: Site, fqrn: str, *, wished: bool) -> bool:
    """Tell whether the repository asks for approval, or the run does (`wished`)."""
    return wished or site.settings.repository(fqrn).approval is not None


def require_approved(site: Site, removal: Removal, run: str, *, wished: bool) -> None:
    """Raises NotApproved unless exactly this was approved in this run, or no approval is asked for."""
    if is_asked(site, removal.repository, wished=wished):
        require_answer(site.ledger, run, removal.title, removal.bound.digest)


def record(
    site: Site,
    attempt: Attempt,
    fqrn: str,
    noted: Sequence[ChangedPath],
    *,
    kind: ActKind,
    gone: Sequence[ChangedPath] = (),
    links: Sequence[MovedLink] = (),
    tags: Sequence[LinkRecord] = (),
    revision: int | None,
    seen: int = 0,
) -> None:
    """Record in the ledger what a removal did in this revision; None: in none, and `seen` has what is `noted`.

    `kind`: of the act, for the audit. `gone`: artifacts that no night installs again; `links`, `tags`: where they lead,
    and which went; `noted`: what changed, and who did it. What is recorded already is not recorded twice. Raises
    LedgerError.
    """
    now, run = attempt.clock(), attempt.run
    if gone:
        undone.record(
            site.ledger,
            [
                Undone(
                    change.artifact.id, change.before.sha256, fqrn, change.path, change.held,
                    change.from_build, change.reason, run, revision, now,
                )
                for change in gone if change.artifact and change.before and change.before.sha256
            ],
        )  # fmt: skip
    decided = [
        LinkRecord(
            LINK, fqrn, link.path, link.slot, key.build_id, key.date,
            (LinkState.MOVED if link.after else LinkState.REMOVED).value, link.reason, run, revision, now,
        )
        for link in links if (key := link.key)
    ]  # fmt: skip
    if decided or tags:
        linked.record(site.ledger, [*decided, *tags])
    common = begun(site, fqrn, revision=revision or seen, run_id=run, holder=attempt.holder, at=now)
    for change in noted:
        note(site, change.provenance(common))
    if noted:
        what = f"{fqrn}, revision {common.revision}: {named(change.path for change in noted)}"
        note_act(site.ledger, attempt.act(kind, what, "; ".join(dict.fromkeys(change.reason for change in noted))))
