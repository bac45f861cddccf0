"""What a repository needs now and then: its whitelist looked at, its tags pruned by rule, its catalogs checked."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta

from include.cvmfs.check.check import CheckReport, check
from include.cvmfs.commit.resign import expiry_warning
from include.cvmfs.commit.tags import PruneRule, TagDecision, decide, prune_by_rule
from include.nightlies.attempt import Attempt
from include.nightlies.records import damage
from include.nightlies.steps.errors import NotWell
from include.publishers.capabilities import Operation
from include.settings.model import TagRule
from include.site.direct_switch import switching
from include.site.site import Site
from include.storage.store import Unfinished
from include.storage.unfinished_writes import remove_abandoned

SHOWN = 20

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pruned:
    """What became of a repository's tags; ``decisions`` say why. ``done``: false in a dry run, and without a rule."""

    decisions: tuple[TagDecision, ...]
    done: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The tags that went, or would."""
        return tuple(one.tag.name for one in self.decisions if one.remove)


def look_at_whitelist(site: Site, attempt: Attempt, fqrn: str) -> float:
    """How many days the whitelist lasts that readers see. Nothing is signed here: the master key is on no worker.

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


def prune_tags(site: Site, attempt: Attempt, fqrn: str, *, dry_run: bool | None) -> Pruned | None:
    """Take away the tags that the repository's rule does not keep; None if it has no rule.

    ``dry_run``: None does as the rule says. Raises KeyFileError where the signing key is not, TagError, StoreError.
    """
    rule = site.settings.repository(fqrn).care.tags
    if rule is None:
        return None
    now = attempt.clock()
    decisions = tuple(decide(site.head(fqrn).tags(), _rule(rule), now))
    done = Pruned(decisions, not (dry_run if dry_run is not None else not rule.apply))
    if done.done and done.names:
        with switching(site, fqrn, Operation.TAG_REMOVE, holder=attempt.holder) as (store, signer):
            done = Pruned(tuple(prune_by_rule(store, fqrn, _rule(rule), signer=signer, now=now)), done=True)
    for one in done.decisions:
        log.info("tag %s of %s %s: %s", one.tag.name, fqrn, "goes" if one.remove else "stays", one.reason)
    return done


def remove_unfinished(site: Site, attempt: Attempt, fqrn: str, *, dry_run: bool) -> list[Unfinished]:
    """Remove what killed writers left in a store in a folder more than a day ago; in a dry run, only name it."""
    found = remove_abandoned(site.repository_store(fqrn), attempt.clock(), dry_run=dry_run)
    for one in found:
        log.info("%s of %s, %s bytes: %s", one.name, fqrn, one.size, "would be removed" if dry_run else "removed")
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


def _rule(rule: TagRule) -> PruneRule:
    older = None if rule.older_than_days is None else timedelta(days=rule.older_than_days)
    return PruneRule(rule.keep, older, rule.match)
