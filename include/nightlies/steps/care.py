"""Maintenance of a repository: whitelist, tags, catalogs and replicas checked, and its garbage collected.

The collection itself is `include.site.collecting`. It gives way to publications between two groups of deletions; its
report and deletion log are files, what is lost comes into the ledger.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from include.cvmfs.check.check import CheckReport, check
from include.cvmfs.collect.report import UNNEEDED, CollectionReport, NotDue
from include.cvmfs.commit.create import expiry_warning
from include.cvmfs.commit.tags import PruneRule, TagDecision, decide, prune_by_rule
from include.ledger.acts import ActKind, named, note_act
from include.nightlies.errors import COLLECTION_RUN_REFUSED, NotWell
from include.nightlies.records import damage
from include.nightlies.steps.values import Attempt
from include.publishers.capabilities import Operation
from include.replicas.look import look_at_replicas, record, rules_of
from include.replicas.states import ReplicaLook, complaint
from include.settings.model import Care
from include.site.collecting import collect, options_of
from include.site.site import Site, switching
from include.storage.file import remove_abandoned
from include.storage.store import Unfinished

SHOWN = 20
REPORTS = 60
"""Collections of a repository whose files are kept."""
GROUP_PAUSE_S = 60.0
ALL_PAUSES_S = 15 * 60.0
"""Time that a sweep gives way, before one group of deletions and in all."""
LOOK_S = 1.0
SHOW_EVERY_S = 30.0
_NAME_LENGTH = 200

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


def parse_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a collection as a task has them: values, or what a template left of them: text, "" or "None" for none.

    Raises COLLECTION_RUN_REFUSED for what is not of its kind.
    """
    accept, sample = given["accept"], _number("audited", given["audited"])
    if sample is not None and sample != int(sample):
        raise COLLECTION_RUN_REFUSED(f"audited is {given['audited']!r}, and not a whole number; nothing was deleted")
    return {
        "grace_days": _number("grace_days", given["grace_days"]),
        "audited": None if sample is None else int(sample),
        "accept": "" if accept is None or str(accept) == "None" else str(accept).strip(),
        "all_orphans": _flag("all_orphans", given["all_orphans"]),
        "dry_run": _flag("dry_run", given["dry_run"]),
    }


@dataclass(frozen=True, slots=True)
class Collected:
    """A collection that came to its end. `path`: its report on this machine, as JSON; beside it as text."""

    report: CollectionReport
    path: Path

    def to_json(self) -> dict[str, Any]:
        """The figures that other tasks read; sizes in bytes, times in seconds."""
        whole = self.report.as_dict()
        names = ("repository", "ok", "number", "dry_run", "resumed", "careful", "roots_kept", "roots_condemned",
                 "objects_kept", "condemned", "deleted", "bytes_deleted", "bytes_known", "orphans", "once",
                 "failed_count", "lost_count", "audited", "next_due")  # fmt: skip
        return {name: whole[name] for name in names} | {
            "seconds": round(sum(whole["seconds"].values()), 1),
            "report": str(self.path),
        }

    def require_whole(self) -> None:
        """Raises NotWell with what was not deleted, and what a preserved revision needs and the store lost."""
        report = self.report
        problems = [f"not deleted: {key}: {why}" for key, why in report.failed.items()]
        problems += [
            f"lost: {lost.key} {lost.reason}; the next preparation that has it sends it" for lost in report.lost
        ]
        if problems:
            raise NotWell(report.fqrn, [*problems, f"the report: {self.path.with_suffix('.txt')}"], len(problems))


def collect_garbage(site: Site, attempt: Attempt, fqrn: str, given: Mapping[str, Any]) -> Collected | NotDue:
    """Collect, or rehearse it in a dry run; writes report and deletion log, and notes in the ledger what is lost.

    ``given``: see ``parse_options``. Raises as `include.site.collecting.collect`; CollectionBusy while another
    collection is at work.
    """
    options = options_of(site, fqrn, attempt.holder, progress=show_progress(fqrn), **parse_options(given))
    place = reports_of(site, fqrn) / file_name(attempt.run)
    place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    deletions = place.with_name(f"{place.name}.deleted")
    try:
        with deletions.open("a", encoding="utf-8") as file:
            rules = replace(options.rules, pause=GiveWay(lambda: busy_at(site, fqrn)))
            found = collect(site, fqrn, replace(options, rules=rules, log=file))
    finally:
        if not deletions.stat().st_size:
            deletions.unlink()
    if isinstance(found, NotDue):
        return found
    if not options.dry_run:
        damage.note_collection(site.ledger, found, now=attempt.clock())
    act = attempt.act(ActKind.COLLECTION, found.lines()[0], options.rules.accept or UNNEEDED, dry_run=options.dry_run)
    note_act(site.ledger, act)
    return _written(found, place)


def reports_of(site: Site, fqrn: str) -> Path:
    """The folder with reports and deletion logs of a repository's collections."""
    return site.settings.paths.var / "collections" / fqrn / "reports"


def file_name(run: str) -> str:
    """A run's name as that of a file; the end of a long one, in which runs differ."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", run)[-_NAME_LENGTH:].lstrip(".")


def busy_at(site: Site, fqrn: str) -> str | None:
    """Return who holds a lease in a repository; None while none is held. Raises GatewayError."""
    with site.gateway(fqrn) as client:
        lease = client.holder(fqrn, "")
    return None if lease is None else f"{lease.path or '/'} is held by {lease.hostname!r}"


class GiveWay:
    """The pause before a group of deletions: while a lease is held, at most a minute, and a quarter of an hour in all.

    An idle repository costs one look. A gateway that does not answer is not waited for.
    """

    def __init__(
        self,
        busy: Callable[[], str | None],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._busy, self._clock, self._sleep = busy, clock, sleep
        self._left_s = ALL_PAUSES_S

    def __call__(self) -> None:
        began = self._clock()
        end = began + min(GROUP_PAUSE_S, self._left_s)
        held = ""
        while self._clock() < end:
            try:
                now = self._busy()
            except Exception as error:  # noqa: BLE001 - giving way is a courtesy: the sweep goes on without it
                log.warning("the sweep goes on without asking who publishes: %s", error)
                break
            if now is None:
                break
            if not held:
                log.info("the sweep gives way: %s", now)
            held = now
            self._sleep(LOOK_S)
        self._left_s -= self._clock() - began


def show_progress(fqrn: str) -> Callable[[str, int, int], None]:
    """Has a line in the log for each step of a collection, and every half minute in it."""
    shown: dict[str, float] = {}

    def show(step: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - shown.get(step, -SHOW_EVERY_S) >= SHOW_EVERY_S or (total and done >= total):
            shown[step] = now
            log.info("%s: %s: %d of %d", fqrn, step, done, total)

    return show


def _written(report: CollectionReport, place: Path) -> Collected:
    for line in report.lines():
        log.info("%s", line)
    path = place.with_name(f"{place.name}.json")
    texts = {".json": json.dumps(report.as_dict(), indent=1), ".txt": "\n".join(report.lines())}
    for suffix, text in texts.items():
        part = place.with_name(f".{place.name}{suffix}.part")
        part.write_text(f"{text}\n", encoding="utf-8")
        part.replace(place.with_name(place.name + suffix))
    _forget_old(place.parent)
    return Collected(report, path)


def _forget_old(folder: Path) -> None:
    files: dict[str, list[Path]] = {}
    for file in folder.iterdir():
        files.setdefault(file.stem, []).append(file)
    newest = sorted(files, key=lambda name: max(file.stat().st_mtime_ns for file in files[name]), reverse=True)
    for file in (old for name in newest[REPORTS:] for old in files[name]):
        file.unlink(missing_ok=True)


def _number(name: str, value: Any) -> float | None:
    if value is None or str(value).strip() in ("", "None"):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(value, bool) or not 0 <= number < float("inf"):
        raise COLLECTION_RUN_REFUSED(f"{name} is {value!r}, and not a number from 0 on; nothing was deleted")
    return number


def _flag(name: str, value: Any) -> bool:
    known = {"true": True, "false": False, "none": False, "": False}
    text = str(value).strip().lower()
    if text not in known:
        raise COLLECTION_RUN_REFUSED(f"{name} is {value!r}, and neither true nor false; nothing was deleted")
    return known[text]
