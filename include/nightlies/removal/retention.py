"""Remove the builds of a slot that no rule keeps: `plan_retention` looks, `remove_expired` does it in one revision."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from include.cvmfs.commit.edit import Edit
from include.cvmfs.format.paths import common_top, is_below
from include.cvmfs.revision.revision import Revision
from include.json_values import JsonValue, Time
from include.ledger.acts import ActKind
from include.nightlies.removal.held import BuildReader, HeldByTag
from include.nightlies.removal.removal import ChangedPath, Placed, Removal, ask, record, require_approved
from include.nightlies.rules import approval
from include.nightlies.rules.approval import Bound, QuestionKind
from include.nightlies.rules.build import folder_of_builds
from include.nightlies.rules.retention_rules import HeldBuild, RetentionDecision, decide
from include.nightlies.steps.approve import ApprovalRequest
from include.nightlies.steps.values import Attempt
from include.provenance.records import ChangeKind, newest
from include.publishers.required_objects import topmost
from include.settings.errors import SettingsError
from include.settings.model import Slot
from include.settings.retention import Retention
from include.site.changes import SingleChange
from include.site.collecting import require_restores_accepted
from include.site.site import Site

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPlan(Removal):
    """Decision about each build of a slot, the newest first. `notes`: what could not be read."""

    kind = QuestionKind.RETENTION
    slot: str
    made_at: Time
    decisions: tuple[RetentionDecision, ...]
    tags: tuple[HeldByTag, ...] = ()

    @property
    def expired(self) -> tuple[RetentionDecision, ...]:
        """The builds that go."""
        return tuple(decision for decision in self.decisions if decision.remove)

    @property
    def bytes(self) -> int:
        """Size of the files of the builds that go, in bytes; the store may free less, since others share them."""
        return sum(decision.build.bytes for decision in self.expired)

    @property
    def title(self) -> str:
        return f"{len(self.expired)} builds of {self.slot}"

    @property
    def bound(self) -> Bound:
        builds = [(decision.build.directory, decision.build.nested_hash) for decision in self.expired]
        return Bound(self.slot, "/", approval.removal_digest(self.kind, self.repository, self.slot, builds))

    def lines(self) -> Iterator[str]:
        yield f"slot {self.slot}: {len(self.expired)} of {len(self.decisions)} builds go, {self.bytes / 1e6:,.1f} MB"
        for decision in self.expired:
            yield f"{decision.build.directory}, {decision.build.bytes / 1e6:,.1f} MB: {decision.reason}"
        yield from self.notes

    def to_json(self) -> dict[str, Any]:
        return {
            "slot": self.slot,
            "repository": self.repository,
            "revision": self.revision,
            "made_at": self.made_at.isoformat(),
            "remove": len(self.expired),
            "bytes": self.bytes,
            "builds": [_flat(decision) for decision in self.decisions],
            "tags": [tag.to_json() for tag in self.tags],
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RetentionPlan:
        """Read what `to_json` wrote. Raises KeyError or ValueError for another shape."""
        decisions = [{**build, "build": {**build, "key": build}} for build in value["builds"]]
        return super(RetentionPlan, cls).from_json({**value, "decisions": decisions})


@dataclass(frozen=True, slots=True)
class RemovedBuilds(JsonValue):
    """Outcome of a plan, by the directories of its builds. `revision`: in which builds went, None: none was made.

    `absent`: what an earlier try had removed; `kept`: what stayed after all, and why.
    """

    revision: int | None
    removed: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)


def plan_retention(site: Site, slot_name: str, *, now: datetime) -> RetentionPlan:
    """Return what the slot's rules make of the builds in the current revision. `now` is aware. Changes nothing.

    Raises SettingsError for a slot without `retention`, CvmfsError, StoreError and LedgerError.
    """
    slot = site.settings.slot(slot_name)
    rules, today = _rules(slot), _today(slot, now)
    head, reader = site.head(slot.repository), BuildReader(site, slot)
    tags, notes = reader.tags(head, now)
    held = {existing.directory: existing for existing in reader.builds(head.revision, tags)}
    since = now - timedelta(days=rules.rebuild_days)
    for decision in decide(held.values(), rules, now=now, today=today):
        if decision.remove:
            build = reader.with_publications(head.revision, decision.build, since=since)
            held[build.directory] = build
    decisions = decide(held.values(), rules, now=now, today=today)
    return RetentionPlan(
        repository=slot.repository, revision=head.manifest.revision, notes=notes, slot=slot.name, made_at=now,
        decisions=decisions, tags=tags,
    )  # fmt: skip


def remove_expired(site: Site, attempt: Attempt, plan: RetentionPlan) -> RemovedBuilds:
    """Remove the builds that the plan lets go, in one revision, and record it. Run again, it changes nothing more.

    Nothing goes that the plan does not name. Under the lease each build must hold what it held when the plan was made,
    and the rules must still let it go: one that a link came to lead to stays, with its reason. Raises PathBusy,
    RepositoryFrozen, and what a commit raises.
    """
    slot = site.settings.slot(plan.slot)
    planned = {decision.build.directory: decision for decision in plan.expired}
    if not planned:
        return RemovedBuilds(None)
    require_restores_accepted(site, slot.repository)
    removal = _Judged(site, slot, planned, attempt.clock())
    removal.judge(site.head(slot.repository).revision)
    revision = None
    if removal.going:
        change = SingleChange(common_top(removal.going), removal.apply)
        done = change.commit(site, slot.repository, holder=attempt.holder, now=attempt.clock())
        revision = done.revision if removal.removed and not done.unchanged else None
    absent = sorted(planned.keys() - removal.present)
    if revision is not None:
        _record(site, attempt, slot, [planned[directory] for directory in removal.removed], revision)
    _record_absent(site, attempt, slot, [planned[directory] for directory in absent])
    for directory, why in removal.kept.items():
        log.warning("%s stays: %s", directory, why)
    return RemovedBuilds(revision, removal.removed, tuple(absent), dict(removal.kept))


def ask_retention(site: Site, attempt: Attempt, fqrn: str, plans: Sequence[RetentionPlan]) -> ApprovalRequest:
    """Record one question about the slots of a repository that lose more builds than their `approve_above`."""
    large = [plan for plan in plans if _is_large(site, plan)]
    if not large:
        return ApprovalRequest(None, True, f"{fqrn}: no slot loses more builds than its approve_above; none is asked")
    count = sum(len(plan.expired) for plan in large)
    limits = [
        f"slot {plan.slot} asks above {_rules(site.settings.slot(plan.slot)).approve_above} builds" for plan in large
    ]
    subject = f"Remove {count} expired builds from {fqrn}?"
    return ask(site, attempt, large, subject, [f"run {attempt.run}", *limits], f"{count} builds")


def require_retention_approved(site: Site, plan: RetentionPlan, run: str) -> None:
    """Raises NotApproved if so many builds go and exactly these were not agreed to in this run."""
    if _is_large(site, plan):
        require_approved(site, plan, run, wished=True)


class _Judged:
    """The builds of a plan, judged again in the revision that they are removed from. `going`: what is removed so that
    they go, and directories that are empty without them; `kept`: why a build of the plan stays."""

    def __init__(self, site: Site, slot: Slot, planned: Mapping[str, RetentionDecision], now: datetime) -> None:
        self.removed: tuple[str, ...] = ()
        self.going: tuple[str, ...] = ()
        self.present: frozenset[str] = frozenset()
        self.kept: dict[str, str] = {}
        self._site, self._slot, self._planned, self._now = site, slot, planned, now
        self._reader = BuildReader(site, slot)

    def judge(self, tree: Revision) -> None:
        """Look which of the builds go in this revision. What stays once, stays: later looks only find less."""
        slot = self._slot
        tags, _ = self._reader.tags(self._site.head(slot.repository), self._now)
        held = self._reader.builds(tree, tags)
        self.present = frozenset(build.directory for build in held)
        decisions = decide(
            [self._as_planned(build) for build in held], _rules(slot), now=self._now, today=_today(slot, self._now)
        )
        by_directory = {decision.build.directory: decision for decision in decisions}
        stay = [
            directory for directory in self._planned if directory in by_directory and not by_directory[directory].remove
        ]
        self.kept |= {directory: by_directory[directory].reason for directory in stay}
        self._planned = {name: decision for name, decision in self._planned.items() if name not in stay}
        self.removed = tuple(decision.build.directory for decision in decisions if decision.remove)

        def children(path: str) -> list[str]:
            return [entry.name for entry in tree.listing(path)]

        self.going = topmost(self.removed, folder_of_builds(slot), children)

    def apply(self, edit: Edit) -> None:
        tree, lease = Revision(edit.catalogs, edit.root_hash), common_top(self.going) if self.going else ""
        self.judge(tree)
        tree.close()
        # a directory above the lease that became empty meanwhile stays, since it is not ours to change
        going = [directory for directory in self.going if is_below(directory, lease)]
        for path in going + [
            directory for directory in self.removed if not any(is_below(directory, above) for above in going)
        ]:
            edit.remove(path)

    def _as_planned(self, build: HeldBuild) -> HeldBuild:
        """The build, protected unless it is in the plan and holds what it held then."""
        planned = self._planned.get(build.directory)
        if planned is None:
            return replace(build, protected=build.protected or "the plan does not name it")
        if planned.build.nested_hash != build.nested_hash:
            return replace(build, protected="was changed since the plan was made")
        return replace(build, rebuilt_at=planned.build.rebuilt_at)


def _flat(decision: RetentionDecision) -> dict[str, Any]:
    build = decision.build.to_json()
    key = build.pop("key")
    return {**key, **build, "remove": decision.remove, "reason": decision.reason}


def _is_large(site: Site, plan: RetentionPlan) -> bool:
    return len(plan.expired) > _rules(site.settings.slot(plan.slot)).approve_above


def _rules(slot: Slot) -> Retention:
    if slot.retention is None:
        raise SettingsError(f"slot {slot.name!r} has no rules by which builds go. Add `retention:` to its settings.")
    return slot.retention


def _today(slot: Slot, now: datetime) -> date:
    """The date of the builds that belong to this day."""
    return now.astimezone(ZoneInfo(slot.timezone)).date() + timedelta(days=slot.date_offset)


def _record(site: Site, attempt: Attempt, slot: Slot, gone: Sequence[RetentionDecision], revision: int) -> None:
    """Have it known which builds went and why: one record for the directory of each. Raises nothing."""
    for decision in gone:
        log.info("removed %s, %d bytes: %s", decision.build.key, decision.build.bytes, decision.reason)
    changes = [
        ChangedPath(
            decision.build.directory, Placed(decision.build.nested_hash), None, slot.name, decision.build.key,
            reason=f"retention: {decision.reason}",
        )
        for decision in gone
    ]  # fmt: skip
    record(site, attempt, slot.repository, changes, kind=ActKind.RETENTION, revision=revision)


def _record_absent(site: Site, attempt: Attempt, slot: Slot, absent: Sequence[RetentionDecision]) -> None:
    """Record what an earlier try removed and did not come to record. Raises LedgerError."""
    untold = []
    for decision in absent:
        last = newest(site.ledger, slot.repository, decision.build.directory)
        if last is None or last.kind is not ChangeKind.REMOVED or last.before != decision.build.nested_hash:
            untold.append(decision)
    if untold:
        _record(site, attempt, slot, untold, site.head(slot.repository).manifest.revision)
