"""The account of a night, from the rows of the ledger alone: every artifact that was expected, with its outcome and
why.

Pure, so that the summary agrees with the ledger: nothing is counted anywhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from enum import Enum
from typing import Any

from include.nightlies.records.links import LinkRecord
from include.nightlies.records.quality import QualityRecord
from include.nightlies.rules.build import ArtifactRecord, BuildRecord
from include.nightlies.rules.dependencies import ALL, Pair, absent, held_back, is_required, is_taken, required_pairs
from include.nightlies.rules.publication import Publication, Skip, State
from include.settings.model import Slot

SHOWN = 20
"""Artifacts or faults that a message names; the summary, or the page of the run, has them all."""


class NightState(Enum):
    """State of a night. Only `WHOLE` is good."""

    WHOLE = "whole"
    OPEN = "open"
    INCOMPLETE = "incomplete"
    BLOCKED = "blocked by quality"
    NO_BUILD = "no build"

    @property
    def kind(self) -> str:
        """Style of the state on the pages."""
        return {NightState.WHOLE: "good", NightState.OPEN: "wait"}.get(self, "bad")


@dataclass(frozen=True, slots=True)
class NightVerdict:
    """State of a night and the reason for it."""

    state: NightState
    reason: str

    @property
    def good(self) -> bool:
        """Tell whether all that is required is there, and nothing keeps it back."""
        return self.state is NightState.WHOLE


def verdict_of(
    *, builds: Sequence[str], complete: bool, lacking: Sequence[str], open_ones: int, blocked: Sequence[QualityRecord]
) -> NightVerdict:
    """Judge a night.

    Args:
        builds: Ids of the builds that runs have taken, the newest first.
        complete: Whether the index of the newest one is complete.
        lacking: Names of the artifacts that are required and not there.
        open_ones: How many of them no run has ended.
        blocked: Suites of the quality gate that keep a build of the night back.
    """
    names = ", ".join(lacking[:SHOWN])
    more = f" and {len(lacking) - SHOWN} more" if len(lacking) > SHOWN else ""
    missing = f"{len(lacking)} required and missing: {names}{more}." if lacking else ""
    if blocked:
        gate = " ".join(f"The quality gate keeps build {record.build_id} back: {record}." for record in blocked)
        # of an index that is blocked, nothing is taken: all that is missing has this reason
        return NightVerdict(NightState.BLOCKED, f"{gate} {missing}".strip() if builds else gate)
    if not builds:
        return NightVerdict(NightState.NO_BUILD, "No build of this date is known to the ledger.")
    if lacking:
        return NightVerdict(NightState.OPEN if open_ones else NightState.INCOMPLETE, missing)
    if not complete:
        return NightVerdict(NightState.OPEN, f"The index of build {builds[0]} is not complete.")
    return NightVerdict(NightState.WHOLE, "All that is required is there.")


class ArtifactOutcome(Enum):
    """State of one artifact at the end of a night."""

    PUBLISHED = "published"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    BLOCKED = "blocked"
    OPEN = "open"
    NEVER_ARRIVED = "never arrived"

    @property
    def good(self) -> bool:
        return self in {ArtifactOutcome.PUBLISHED, ArtifactOutcome.UNCHANGED}


_FATES = {
    State.PUBLISHED: ArtifactOutcome.PUBLISHED,
    State.UNCHANGED: ArtifactOutcome.UNCHANGED,
    State.FAILED: ArtifactOutcome.FAILED,
    State.SKIPPED: ArtifactOutcome.BLOCKED,
}


@dataclass(frozen=True, slots=True)
class Line:
    """An artifact of a night. Sizes in bytes; `seconds`: of work, all phases; `log`: the URL of its run's page.

    `mended`: for one that is there, how an earlier pass failed with it. `code`: of the error of one that failed.
    `blocked_by`: the artifact that it depends on and that is not there.
    `artifact`, `publication`: the rows of the ledger that it was made from, where there are any.
    """

    project: str
    platform: str
    fate: ArtifactOutcome
    reason: str
    required: bool
    build_id: str | None = None
    inherited: str | None = None
    files: int | None = None
    bytes: int | None = None
    bytes_uploaded: int | None = None
    revision: int | None = None
    seconds: float = 0.0
    began_at: datetime | None = None
    ended_at: datetime | None = None
    run: str | None = None
    log: str | None = None
    mended: str | None = None
    code: str | None = None
    blocked_by: str | None = None
    artifact: ArtifactRecord | None = None
    publication: Publication | None = None

    @property
    def name(self) -> str:
        return f"{self.project}/{self.platform}"

    def to_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__slots__ if name not in {"artifact", "publication"}}
        for moment in ("began_at", "ended_at"):
            values[moment] = values[moment] and values[moment].isoformat()
        for later in ("code", "blocked_by"):
            if values[later] is None:
                del values[later]  # members that were added later are left out where they have no value
        return values | {"fate": self.fate.value}


@dataclass(frozen=True, slots=True)
class Total:
    """Sums over some lines: sizes in bytes, seconds of work, and when the first began and the last ended."""

    bytes: int
    bytes_uploaded: int
    seconds: float
    began_at: datetime | None
    ended_at: datetime | None

    @classmethod
    def of(cls, lines: Iterable[Line]) -> Total:
        known = list(lines)
        return cls(
            sum(line.bytes or 0 for line in known),
            sum(line.bytes_uploaded or 0 for line in known),
            round(sum(line.seconds for line in known), 3),
            min((line.began_at for line in known if line.began_at), default=None),
            max((line.ended_at for line in known if line.ended_at), default=None),
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """A slot's night. `builds`: their ids, the newest first; `complete`: whether the newest one's index is complete.

    `troubled`: the runs that failed with an artifact or skipped one, whatever became of it later. `blocked`: suites of
    the quality gate that keep a build of the night back.
    """

    slot: str
    date: date
    made_at: datetime
    builds: tuple[str, ...]
    complete: bool
    lines: tuple[Line, ...]
    links: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    troubled: frozenset[str] = frozenset()
    blocked: tuple[QualityRecord, ...] = ()

    def count(self, fate: ArtifactOutcome, platform: str | None = None) -> int:
        """Return how many have that fate, of one platform or of all."""
        return sum(line.fate is fate and platform in (None, line.platform) for line in self.lines)

    def total(self, platform: str | None = None) -> Total:
        """Sizes and times, of one platform or of all."""
        return Total.of(line for line in self.lines if platform in (None, line.platform))

    @property
    def runs(self) -> Mapping[str, str | None]:
        """The runs that did it, in the order of their first work, each with the URL of its page."""
        known = sorted((line for line in self.lines if line.run and line.began_at), key=lambda line: str(line.began_at))
        return {str(line.run): line.log for line in known}

    @property
    def platforms(self) -> tuple[str, ...]:
        return tuple(sorted({line.platform for line in self.lines}))

    @property
    def lacking(self) -> tuple[Line, ...]:
        """Return what is required and not there."""
        return tuple(line for line in self.lines if line.required and not line.fate.good)

    @property
    def verdict(self) -> NightVerdict:
        """State of the night, with the reason."""
        lacking = self.lacking
        return verdict_of(
            builds=self.builds,
            complete=self.complete,
            lacking=[line.name for line in lacking],
            open_ones=sum(line.fate is ArtifactOutcome.OPEN for line in lacking),
            blocked=self.blocked,
        )

    @property
    def good(self) -> bool:
        """Tell whether all that is required is there, and nothing keeps it back."""
        return self.verdict.good

    @property
    def headline(self) -> str:
        """All of it in one line."""
        counts = Counter(line.fate for line in self.lines)
        fates = [f"{counts[fate]} {fate.value}" for fate in ArtifactOutcome if counts[fate]]
        # a fate is "blocked" by a dependency, too
        gate = [NightState.BLOCKED.value] if self.blocked else []
        return f"{self.slot} {self.date}: {', '.join(gate + fates) or 'no build arrived'}"

    def to_json(self) -> dict[str, Any]:
        return {
            "slot": self.slot,
            "date": self.date.isoformat(),
            "made_at": self.made_at.isoformat(),
            "builds": list(self.builds),
            "complete": self.complete,
            "good": self.good,
            "verdict": {"state": self.verdict.state.value, "reason": self.verdict.reason},
            "quality": [
                {
                    "suite": record.suite.value,
                    "build_id": record.build_id,
                    "run": record.run_id,
                    "rows": list(record.fault_rows or (record.reason,)),
                }
                for record in self.blocked
            ],
            "counts": {fate.value: self.count(fate) for fate in ArtifactOutcome},
            "lines": [line.to_json() for line in self.lines],
            "links": list(self.links),
            "notes": list(self.notes),
            "runs": dict(self.runs),
        }


def no_log(run: str) -> str | None:  # noqa: ARG001 - callers that know where logs are pass their own
    """The URL of no run."""
    return None


def summary(
    slot: Slot,
    day: date,
    *,
    builds: Sequence[BuildRecord],
    publications: Mapping[int, Sequence[Publication]],
    before: BuildRecord | None,
    links: Iterable[LinkRecord],
    now: datetime,
    blocked: Iterable[QualityRecord] = (),
    log_of: Callable[[str], str | None] = no_log,
) -> Summary:
    """The summary of a slot's night.

    Args:
        builds: Of that date, the newest first, from the ledger; usually one.
        publications: By the build's row, what runs did for its artifacts, the newest first.
        before: The slot's build before these; what it had is expected again.
        links: What was decided of the slot's links for these builds.
        blocked: Suites of the quality gate that keep a build of the night back.
        log_of: The URL of a run (its name in the ledger), or None.
    """
    lines: list[Line] = []
    for build in builds:
        known: dict[int, list[Publication]] = {}
        for publication in publications.get(build.id, ()):
            if publication.artifact is not None:
                known.setdefault(publication.artifact, []).append(publication)
        for record in build.artifacts:
            pair = (record.artifact.project, record.artifact.platform)
            if is_taken(slot, *pair):
                lines.append(_line(slot, build, record, known.get(record.id, []), log_of))
        lines += _rejected(slot, build)
    lines = _with_what_holds_them(lines, builds)
    there = {(line.project, line.platform) for line in lines}
    kept_back = tuple(blocked)
    missing = _missing(slot, builds, before, there)
    if kept_back and not builds:
        first = kept_back[0]
        why = f"the quality gate blocks the index of build {first.build_id}; nothing of it is taken"
        missing = [replace(line, fate=ArtifactOutcome.BLOCKED, reason=why) for line in missing]
    lines += missing
    lines.sort(key=lambda line: (line.fate.good, line.platform, line.project, line.build_id or ""))
    newest = builds[0] if builds else None
    notes = [] if newest is None or newest.complete else [f"the index of build {newest.build_id} is not complete"]
    notes += [
        f"{artifact.name} is rejected: {artifact.reason}"
        for build in builds
        for artifact in build.rejected
        if not artifact.project
    ]
    link_lines = tuple(f"{link.kind} {link.path}: {link.state}: {link.reason}" for link in links)
    complete = newest is not None and newest.complete
    bad = {State.FAILED, State.SKIPPED}
    troubled = frozenset(
        publication.run_id
        for build in builds
        for publication in publications.get(build.id, ())
        if publication.state in bad
    )
    ids = tuple(build.build_id for build in builds)
    return Summary(slot.name, day, now, ids, complete, tuple(lines), link_lines, tuple(notes), troubled, kept_back)


def decisive(found: Sequence[Publication], sha256: str) -> Publication | None:
    """The publication that decides what became of an artifact, of those that runs made of it, the newest first.

    A dry run decides nothing. A run that found the artifact unchanged does not replace the one that published it.
    """
    real = [publication for publication in found if publication.skip_reason is not Skip.DRY_RUN]
    if not real:
        return None
    if real[0].state is State.UNCHANGED:
        same = [
            publication
            for publication in real
            if publication.state is State.PUBLISHED and publication.artifact_sha256 == sha256
        ]
        return same[0] if same else real[0]
    return real[0]


def _line(
    slot: Slot,
    build: BuildRecord,
    record: ArtifactRecord,
    found: Sequence[Publication],
    log_of: Callable[[str], str | None],
) -> Line:
    artifact = record.artifact
    required = is_required(slot, artifact.project, artifact.platform)
    of = decisive(found, artifact.sha256)
    if of is None:
        own = (artifact.project, artifact.platform, ArtifactOutcome.OPEN, "listed, and no run has taken it yet")
        return Line(*own, required, build.build_id, record.inherited, artifact=record)
    return Line(
        project=artifact.project,
        platform=artifact.platform,
        fate=_FATES.get(of.state, ArtifactOutcome.OPEN),
        reason=of.reason if of.state.ended else f"{of.state.value}: {of.reason}",
        required=required,
        build_id=build.build_id,
        inherited=record.inherited,
        files=of.files,
        bytes=of.bytes,
        bytes_uploaded=of.bytes_uploaded,
        revision=of.revision_after,
        seconds=round(sum(of.seconds.values()), 3),
        began_at=of.created_at,
        ended_at=of.ended_at,
        run=of.run_id,
        log=log_of(of.run_id),
        mended=_failed_before(found, of) if of.state.good else None,
        code=of.code if of.state is State.FAILED else None,
        blocked_by=of.blocked_by if of.state is State.SKIPPED else None,
        artifact=record,
        publication=of,
    )


def _failed_before(found: Sequence[Publication], of: Publication) -> str | None:
    """Return how an earlier pass failed with what is there now; of other bytes, too: a rebuild is how it is mended."""
    before = next(
        (publication for publication in found if publication.state is State.FAILED and publication.run_id != of.run_id),
        None,
    )
    return None if before is None else f"failed before, in {before.run_id}: {before.reason}"


def _with_what_holds_them(lines: Sequence[Line], builds: Sequence[BuildRecord]) -> list[Line]:
    """For what no run has taken because of its dependencies: which, and why (as `arrivals` does for a pass)."""
    untaken = {(line.build_id, line.name) for line in lines if line.fate is ArtifactOutcome.OPEN and line.run is None}
    reasons: dict[tuple[str | None, str], str] = {}
    for build in builds if untaken else ():
        own = [line for line in lines if line.build_id == build.build_id]
        waiting = [record.artifact for record in build.artifacts if (build.build_id, record.artifact.name) in untaken]
        ended = {ArtifactOutcome.FAILED, ArtifactOutcome.BLOCKED}
        bad = {line.name: f"{line.fate.value}: {line.reason}" for line in own if line.fate in ended}
        held = held_back(waiting, bad, listed=(), expected=lambda *_: False)
        reasons |= {(build.build_id, name): f"{why}; the last pass decides" for name, why in held.items()}
    return [replace(line, reason=reasons.get((line.build_id, line.name), line.reason)) for line in lines]


def _rejected(slot: Slot, build: BuildRecord) -> list[Line]:
    known = {(record.artifact.project, record.artifact.platform) for record in build.artifacts}
    return [
        Line(artifact.project, artifact.platform, ArtifactOutcome.FAILED, f"rejected: {artifact.reason}",
             is_required(slot, artifact.project, artifact.platform), build.build_id)
        for artifact in build.rejected
        if artifact.project and artifact.platform and (artifact.project, artifact.platform) not in known
        and is_taken(slot, artifact.project, artifact.platform)
    ]  # fmt: skip


def expected(slot: Slot, before: Iterable[Pair], had: str, there: set[Pair]) -> dict[Pair, str]:
    """Return what a night should have, and why.

    Args:
        slot: Slot of the night.
        before: What the build before had.
        had: The reason of what only that build had.
        there: What the night has.
    """
    wanted: dict[Pair, str] = dict.fromkeys(required_pairs(slot, ()), "required by the slot, and in no index")
    for pair in before:
        if is_taken(slot, *pair):
            wanted.setdefault(pair, had)
    for project, platform in absent(slot, there):
        # the build before may have named each of them
        if not any(project in (ALL, entry[0]) and platform in (ALL, entry[1]) for entry in wanted):
            wanted[project, platform] = "required by the slot, and nothing of it came"
    return wanted


def _missing(slot: Slot, builds: Sequence[BuildRecord], before: BuildRecord | None, there: set[Pair]) -> list[Line]:
    """Return what was expected, by the slot or because the build before had it, and is in no index of the night."""
    pairs = [(record.artifact.project, record.artifact.platform) for record in before.artifacts] if before else []
    had = f"in no index; build {before.build_id} of {before.date} had it" if before else ""
    wanted = expected(slot, pairs, had, there)
    build_id = builds[0].build_id if builds else None
    return [
        Line(project, platform, ArtifactOutcome.NEVER_ARRIVED, why, is_required(slot, project, platform), build_id)
        for (project, platform), why in wanted.items()
        if (project, platform) not in there
    ]
