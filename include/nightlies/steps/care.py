"""Maintenance of a repository: its whitelist checked, its tags pruned by rule, its catalogs checked."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta

from include.cvmfs.check.check import CheckReport, check
from include.cvmfs.commit.create import expiry_warning
from include.cvmfs.commit.tags import PruneRule, TagDecision, decide, prune_by_rule
from include.ledger.acts import ActKind, named, note_act
from include.nightlies.errors import NotWell
from include.nightlies.records import damage
from include.nightlies.steps.values import Attempt
from include.publishers.capabilities import Operation
from include.replicas.look import look_at_replicas, record, rules_of
from include.replicas.states import ReplicaLook, complaint
from include.settings.model import Care
from include.site.site import Site, switching
from include.storage.file import remove_abandoned
from include.storage.store import Unfinished

SHOWN = 20

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pruned:
    """Outcome for a repository's tags, with the reasons. ``done``: false in a dry run or without a rule."""

    decisions: tuple[TagDecision, ...]
    done: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The tags that went, or would."""
        return tuple(decision.tag.name for decision in self.decisions if decision.remove)


def look_at_whitelist(site: Site, attempt: Attempt, fqrn: str) -> float:
    """Return how many days the whitelist lasts that readers see. Nothing is signed here: the master key is on no
    worker.

    Raises NotWell when fewer than the repository's ``care.whitelist_days`` are left, WhitelistExpired when none are.
    """
    now, least = attempt.clock(), timedelta(days=site.settings.repository(fqrn).care.whitelist_days)
    whitelist = site.repository(fqrn).trusted.whitelist
    if whitelist is None:
        raise NotWell(fqrn, ["its whitelist was not verified; give its public key in the configuration"])
    warning = expiry_warning(whitelist, now, soon=least)
    if warning is not None:
        raise NotWell(fqrn, [warning])
    days = (whitelist.expires - now) / timedelta(days=1)
    log.info("the whitelist of %s lasts %.1f days more", fqrn, days)
    return days


def prune_rule(care: Care) -> PruneRule | None:
    """The rule for a repository's tags; None if it has none. Retention judges tags by it, too."""
    if care.tags is None:
        return None
    days = care.tags.older_than_days
    older = None if days is None else timedelta(days=days)
    return PruneRule(care.tags.keep, older, care.tags.match, care.protect_tags)


def prune_tags(site: Site, attempt: Attempt, fqrn: str, *, dry_run: bool | None) -> Pruned | None:
    """Take away the tags that the repository's rule does not keep; None if it has no rule.

    ``dry_run``: None follows the rule. Raises KeyFileError where the signing key is not, TagError, StoreError.
    """
    care, now = site.settings.repository(fqrn).care, attempt.clock()
    rule = prune_rule(care)
    if rule is None or care.tags is None:
        return None
    decisions = tuple(decide(site.head(fqrn).tags(), rule, now))
    done = Pruned(decisions, not (dry_run if dry_run is not None else not care.tags.apply))
    if done.done and done.names:
        with switching(site, fqrn, Operation.TAG_REMOVE, holder=attempt.holder) as (store, signer):
            done = Pruned(tuple(prune_by_rule(store, fqrn, rule, signer=signer, now=now)), done=True)
    for decision in done.decisions:
        log.info(
            "tag %s of %s %s: %s", decision.tag.name, fqrn, "goes" if decision.remove else "stays", decision.reason
        )
    if done.names:
        act = attempt.act(ActKind.TAGS, f"{fqrn}: {named(done.names)}", "rule care.tags", dry_run=not done.done)
        note_act(site.ledger, act)
    return done


def remove_unfinished(site: Site, attempt: Attempt, fqrn: str, *, dry_run: bool) -> list[Unfinished]:
    """Remove what killed writers left in a store in a folder more than a day ago; in a dry run, only name it."""
    found = remove_abandoned(site.repository_store(fqrn), attempt.clock(), dry_run=dry_run)
    for write in found:
        log.info("%s of %s, %s bytes: %s", write.name, fqrn, write.size, "would be removed" if dry_run else "removed")
    if found:
        what = f"{fqrn}: {named(write.name for write in found)}"
        note_act(site.ledger, attempt.act(ActKind.UNFINISHED, what, "older than a day", dry_run=dry_run))
    return found


def check_quickly(site: Site, attempt: Attempt, fqrn: str) -> CheckReport:
    """Check what the manifest names and all catalogs; lost ones come into the ledger's list of damage.

    Raises NotWell with every problem, and what opening a repository raises.
    """
    now = attempt.clock()
    report = check(site.head(fqrn), quick=True, now=now)
    damage.note_report(site.ledger, report, everything=False, now=now)
    for warning in report.warnings[:SHOWN]:
        log.warning("%s: %s", fqrn, warning)
    if not report.ok:
        raise NotWell(fqrn, [str(problem) for problem in report.problems], report.problem_count)
    log.info("%s: %s, %d catalogs", fqrn, report.verdict, report.catalogs)
    return report


def check_replicas(site: Site, attempt: Attempt, fqrn: str) -> list[ReplicaLook]:
    """Note in the ledger how far each replica is. Raises NotWell with what is wrong with them, and as reading does."""
    now = attempt.clock()
    looks, rules = look_at_replicas(site, fqrn, now), rules_of(site, fqrn)
    record(site.ledger, looks)
    for look in looks:
        log.info("%s", look)
    complaints = [complaint(look, rules[look.replica], now) for look in looks]
    if any(complaints):
        raise NotWell(fqrn, list(filter(None, complaints)))
    return looks
