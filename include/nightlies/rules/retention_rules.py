"""The builds of a slot that stay, and why: rules over what the repository holds. Pure.

A build stays if one reason for it is found. More is kept, never less, if a build's date is not known, if more leads to
it, or if its publication is later. A build of a future date stays, and takes no place of another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from include.cvmfs.format.paths import MOST_LINKS, ancestors
from include.json_values import JsonValue, Time
from include.nightlies.rules.build import WEEKDAYS, BuildKey
from include.settings.retention import Retention


@dataclass(frozen=True, slots=True)
class HeldBuild(JsonValue):
    """A build as the repository holds it, in a `directory` of its own. Size in bytes.

    `dated`: whether the date of `key` is known; otherwise it is the day of the last change. `changed_at`: when
    something below the directory was changed last. `links`, `tags`: what leads to it from outside of builds, and names
    it. `refers_to`: directories of other builds that links within it lead to. `rebuilt_at`: when a backfill or a person
    published it, if that was so. `protected`: why it stays in spite of the rules, "" if there is no such reason.
    """

    directory: str
    key: BuildKey
    nested_hash: str
    changed_at: Time
    files: int
    bytes: int
    empty: bool = False
    dated: bool = True
    links: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    refers_to: tuple[str, ...] = ()
    rebuilt_at: Time | None = None
    protected: str = ""

    def counts(self, today: date) -> bool:
        """Tell whether it takes one of the places of the newest builds."""
        return self.dated and not self.empty and not self.is_of_future(today)

    def is_of_future(self, today: date) -> bool:
        return self.dated and self.key.date > today


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """Decision about a build, and its reason."""

    build: HeldBuild
    remove: bool
    reason: str


def decide(
    builds: Collection[HeldBuild], rules: Retention, *, now: datetime, today: date
) -> tuple[RetentionDecision, ...]:
    """Return what the rules make of these builds, the newest first. `today`: the build date that ages are counted
    from."""
    ordered = sorted(builds, key=lambda build: (build.key, build.directory), reverse=True)
    reasons: dict[str, list[str]] = {}
    before = 0
    for build in ordered:
        reasons[build.directory] = list(_reasons(build, rules, before, now, today))
        before += build.counts(today)
    _keep_what_is_referred_to(ordered, reasons)
    return tuple(
        RetentionDecision(build, not why, "; ".join(why) or _no_reason(build, rules, today))
        for build in ordered
        for why in [reasons[build.directory]]
    )


def _reasons(build: HeldBuild, rules: Retention, before: int, now: datetime, today: date) -> Iterator[str]:
    """Yield why a build stays by itself. `before`: how many of the places were taken by newer builds."""
    age = (today - build.key.date).days
    if build.protected:
        yield build.protected
    if build.is_of_future(today):
        yield f"of a future date, {build.key.date}"
    elif before < rules.keep_last:
        yield f"number {before + 1} of the {rules.keep_last} newest"
    if before < rules.minimum and not build.is_of_future(today):
        yield f"one of the at least {rules.minimum} builds"
    if rules.keep_days is not None and 0 <= age <= rules.keep_days:
        yield f"{age} days old, at most {rules.keep_days} stay"
    if (weekdays := rules.keep_weekdays) is not None and 0 <= age <= 7 * weekdays.weeks:
        day = WEEKDAYS[build.key.date.weekday()]
        if day in weekdays.days or not build.dated:
            yield f"{day if build.dated else 'perhaps'} of the last {weekdays.weeks} weeks"
    if rules.keep_tagged and build.tags:
        yield f"named by {_some('tag', build.tags)}"
    if build.links:
        yield f"{_some('link', build.links)} leads to it"
    if build.rebuilt_at is not None and now - build.rebuilt_at < timedelta(days=rules.rebuild_days):
        yield (
            f"published by a backfill or by hand at {build.rebuilt_at:%Y-%m-%d %H:%M} UTC, "
            f"less than {rules.rebuild_days} days ago"
        )


def _keep_what_is_referred_to(ordered: Sequence[HeldBuild], reasons: Mapping[str, list[str]]) -> None:
    """Keep what kept builds refer to, and what that refers to."""
    by_directory = {held.directory: held for held in ordered}
    pending = [held for held in ordered if reasons[held.directory]]
    while pending:
        build = pending.pop()
        for directory in build.refers_to:
            if (other := by_directory.get(directory)) is None:
                continue
            if not reasons[directory]:
                pending.append(other)
            reasons[directory].append(f"links in {build.directory} lead to it")


def _no_reason(build: HeldBuild, rules: Retention, today: date) -> str:
    kept = [f"the newest {max(rules.keep_last, rules.minimum)}"]
    if rules.keep_days is not None:
        kept.append(f"{rules.keep_days} days")
    if (weekdays := rules.keep_weekdays) is not None:
        kept.append(f"{', '.join(weekdays.days)} for {weekdays.weeks} weeks")
    return f"{(today - build.key.date).days} days old; kept are {', '.join(kept)}"


def _some(what: str, names: Sequence[str]) -> str:
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{what} {names[0]}{more}"


def reached(link: str, links: Mapping[str, str], directories: Collection[str]) -> frozenset[str]:
    """Return which of these directories a link leads to or through, other links on the way followed.

    `links`: by its path, the absolute path that each link of the repository leads to.
    """
    found: set[str] = set()
    path: str | None = links[link]
    for _ in range(MOST_LINKS):
        if path is None:
            break
        here, path = path, None
        for place in ancestors(here):
            if place in directories:
                found.add(place)
            if place in links:
                path = links[place] + here[len(place) :]
                break
    return frozenset(found)
