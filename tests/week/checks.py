"""What must hold of a week, each rule by itself: it takes what was seen and returns what is wrong, in words. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from typing import Any

from tests.week.expected import Outcome
from tests.week.plan import Pair
from tests.week.reader import Led, Sample

SHOWN = 10
"""Of very many differences of one kind so many are named."""
TRUNK = {"trunk", "trunk-previous"}
_ENDED_WELL = {"published", "unchanged"}
_FATES = {"published": "published", "unchanged": "unchanged", "failed": "failed", "skipped": "blocked"}


@dataclass(frozen=True, slots=True)
class Row:
    """What one run did for one artifact, as a row of the ledger has it. `listed`: whether it is of the artifact's
    present sum."""

    pair: Pair
    destination: str
    sha256: str
    state: str
    run: str
    listed: bool = True
    files: int | None = None
    revision: int | None = None


def links_lead_to_whole_builds(samples: Iterable[Sample]) -> list[str]:
    """At every look, every link led to a build that was whole at that revision."""
    return [
        f"revision {one.revision}, at {one.first_s:.1f} s: {path} led to {led.target}: {led.lacking[0]}"
        + (f" and {len(led.lacking) - 1} more" if len(led.lacking) > 1 else "")
        for one in samples
        for path, led in one.links.items()
        if led.lacking
    ]


def links_never_go_back(samples: Iterable[Sample], order: Mapping[str, tuple[date, int]]) -> list[str]:
    """From look to look no link led to an earlier build, and none was gone again."""
    wrong = []
    before: dict[str, Led] = {}
    for one in samples:
        for path, led in before.items():
            now = one.links.get(path)
            if now is None:
                wrong.append(f"revision {one.revision}: {path}, which led to {led.target}, is gone")
            elif now.target in order and led.target in order and order[now.target] < order[led.target]:
                wrong.append(f"revision {one.revision}: {path} went back from {led.target} to {now.target}")
        before = {**before, **one.links}
    return wrong


def revisions_never_go_back(samples: Sequence[Sample]) -> list[str]:
    """Readers saw one revision after the other."""
    steps = pairwise(one.revision for one in samples)
    return [f"revision {after} came after {before}" for before, after in steps if after <= before]


def looked_often_enough(longest_gap_s: float, looks: int, seconds: float, *, gap_s: float = 30.0) -> list[str]:
    """A reader that hardly looks proves nothing."""
    wrong = []
    if longest_gap_s > gap_s:
        wrong.append(f"for {longest_gap_s:.0f} s the reader did not look, which is more than {gap_s:.0f} s")
    if looks < seconds / 10:
        wrong.append(f"the reader looked {looks} times in {seconds:.0f} s")
    return wrong


def nothing_moves_while_frozen(samples: Iterable[Sample], quiet_s: float, thawed_s: float) -> list[str]:
    """Between the end of the last lease that was granted before a freeze and the thaw, no revision was made."""
    during = [one for one in samples if quiet_s < one.first_s < thawed_s]
    # what was committed just before may be seen just after
    return [f"revision {one.revision} was made at {one.first_s:.1f} s, while frozen" for one in during[1:]] + [
        f"revision {one.revision} was made at {one.first_s:.1f} s, while frozen"
        for one in during[:1]
        if one.first_s > quiet_s + 2.0
    ]


def links_in_the_end(found: Mapping[str, Led], expected: Mapping[str, str]) -> list[str]:
    """Every link leads to the newest whole build that it may lead to; there are no others."""
    wrong = []
    for path in sorted({*found, *expected}):
        there = found[path].target if path in found else None
        if there != expected.get(path):
            wrong.append(f"{path} leads to {there or 'nothing'}, not to {expected.get(path) or 'nothing'}")
    return wrong


def paths_are_there_once(found: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    """The tree is exactly what it must be: nothing missing, nothing more, every file and link with its content."""
    missing = sorted(set(expected) - set(found))
    more = sorted(set(found) - set(expected))
    other = sorted(path for path in set(found) & set(expected) if found[path] != expected[path])
    wrong = _some([f"{path} is missing" for path in missing])
    wrong += _some([f"{path} is there, and should not be" for path in more])
    return wrong + _some([f"{path} is {found[path]}, not {expected[path]}" for path in other])


def tags_are(found: Iterable[str], expected: Iterable[str]) -> list[str]:
    """Every whole build has its tag, and there are no others but those that every revision moves."""
    there, wanted = set(found) - TRUNK, set(expected)
    return [f"tag {name} is missing" for name in sorted(wanted - there)] + [
        f"tag {name} is there, and should not be" for name in sorted(there - wanted)
    ]


def published_once(rows: Iterable[Row]) -> list[str]:
    """No run published again what another one had published: one publication for each destination and sum."""
    times = Counter((one.destination, one.sha256) for one in rows if one.state == "published")
    return [f"{path} was published {count} times with the same sum" for (path, _), count in times.items() if count > 1]


def fates_of(rows: Iterable[Row], listed: Iterable[Pair]) -> dict[Pair, str]:
    """What became of each artifact that an index listed, by the rows alone, the newest first."""
    fates: dict[Pair, str] = {}
    known: dict[Pair, list[Row]] = {}
    for one in rows:
        if one.listed:
            known.setdefault(one.pair, []).append(one)
    for pair in listed:
        states = [one.state for one in known.get(pair, [])]
        if "published" in states and states[0] in _ENDED_WELL:
            fates[pair] = "published"
        else:
            fates[pair] = _FATES.get(states[0], "open") if states else "open"
    return fates


def summary_matches(
    summary: Mapping[str, Any], outcome: Outcome, rows: Sequence[Row], listed: Iterable[Pair]
) -> list[str]:
    """A night's summary says what the ledger's rows say, and both what was planned; so do its counts and its links."""
    night = f"{outcome.night.slot} {outcome.night.day}"
    said = {(one["project"], one["platform"]): one for one in summary["lines"]}
    if len(said) != len(summary["lines"]):
        return [f"{night}: the summary names an artifact twice"]
    fates = {pair: one["fate"] for pair, one in said.items()}
    ledger = fates_of(rows, listed)
    wrong = []
    for pair in sorted({*fates, *ledger, *outcome.fates}):
        of_ledger = ledger.get(pair, "never arrived")
        if not fates.get(pair) == of_ledger == outcome.fates.get(pair):
            wrong.append(
                f"{night}: {'/'.join(pair)} is {fates.get(pair, 'not named')} in the summary, {of_ledger} by the "
                f"ledger's rows, and was to be {outcome.fates.get(pair, 'not there')}"
            )
    wrong += [f"{night}: {'/'.join(pair)} has no reason" for pair, one in said.items() if not one["reason"]]
    wrong += _figures(night, said, rows)
    counts = Counter(fates.values())
    wrong += [
        f"{night}: the summary counts {count} {fate}, and names {counts[fate]}"
        for fate, count in summary["counts"].items()
        if count != counts[fate]
    ]
    if summary["builds"] != [outcome.night.build_id]:
        wrong.append(f"{night}: the summary is of builds {summary['builds']}, not of {outcome.night.build_id}")
    return wrong + _links_said(night, summary, outcome)


def nothing_is_left(
    *,
    leases: Iterable[str] = (),
    frozen: Iterable[str] = (),
    runs: Iterable[str] = (),
    import_errors: Iterable[str] = (),
) -> list[str]:
    """Nothing is leased, frozen or under way, and every DAG file can be read."""
    return [
        *(f"still leased: {one}" for one in leases),
        *(f"still frozen: {one}" for one in frozen),
        *(f"still under way: {one}" for one in runs),
        *(f"cannot be imported: {one}" for one in import_errors),
    ]


def _figures(night: str, said: Mapping[Pair, Mapping[str, Any]], rows: Sequence[Row]) -> list[str]:
    wrong = []
    for pair, one in said.items():
        if one["fate"] != "published":
            continue
        of = next((row for row in rows if row.pair == pair and row.listed and row.state == "published"), None)
        if of is not None and (one["files"], one["revision"], one["run"]) != (of.files, of.revision, of.run):
            wrong.append(
                f"{night}: {'/'.join(pair)} has {one['files']} files, revision {one['revision']} and run {one['run']} "
                f"in the summary, and {of.files}, {of.revision} and {of.run} in the ledger"
            )
    return wrong


def _links_said(night: str, summary: Mapping[str, Any], outcome: Outcome) -> list[str]:
    stayed = [line for line in summary["links"] if ": stayed: " in line]
    if outcome.overtaken:
        stayed = [line for line in stayed if not line.endswith("already, which is later")]
    if not summary["links"]:
        return [f"{night}: the summary says nothing of links"]
    if outcome.whole:
        return [f"{night}: the build is whole, and yet: {line}" for line in stayed]
    moved = [line for line in summary["links"] if line not in stayed]
    wrong = [f"{night}: the build is not whole, and yet: {line}" for line in moved]
    # the reason has to say what is lacking
    lacking = ["/".join(pair) for pair, fate in outcome.fates.items() if fate in ("failed", "never arrived")]
    named = any(name in line for line in stayed for name in lacking)
    if stayed and lacking and not named:
        wrong.append(f"{night}: links stayed, and the reason names none of {', '.join(lacking)}: {stayed[0]}")
    return wrong


def _some(lines: list[str]) -> list[str]:
    return lines if len(lines) <= SHOWN else [*lines[:SHOWN], f"and {len(lines) - SHOWN} more of that kind"]
