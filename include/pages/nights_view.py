"""A night from its summary: its matrix, its timeline and its expected end, and where their links lead. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from statistics import median
from typing import Any

from include.cvmfs.revision.revision import Difference, DifferingEntry
from include.cvmfs.sources.source import printable
from include.monitoring.summary import ArtifactOutcome, Line, Summary
from include.nightlies.records.progress import NotedProgress
from include.nightlies.records.quality import ArtifactFigures, NightFigures
from include.nightlies.rules.publication import Phase, Skip, State, Wait
from include.pages.charts import DrawnSpan, points, spans, timeline
from include.pages.publications_view import cure_of
from include.pages.registry import provenance, start, task_of

Pair = tuple[str, str]

_KINDS = {
    ArtifactOutcome.PUBLISHED: "good",
    ArtifactOutcome.UNCHANGED: "good",
    ArtifactOutcome.FAILED: "bad",
    ArtifactOutcome.NEVER_ARRIVED: "bad",
    ArtifactOutcome.BLOCKED: "wait",
    ArtifactOutcome.OPEN: "wait",
}
_BUSY = {State.PREPARING, State.PUBLISHING}
BUSY_MARK = "\N{BLACK RIGHT-POINTING TRIANGLE}"
MARKS = {
    ArtifactOutcome.PUBLISHED: "\N{CHECK MARK}", ArtifactOutcome.UNCHANGED: "=", ArtifactOutcome.FAILED: "\N{BALLOT X}",
    ArtifactOutcome.BLOCKED: "!", ArtifactOutcome.OPEN: "\N{HORIZONTAL ELLIPSIS}",
    ArtifactOutcome.NEVER_ARRIVED: "\N{EN DASH}",
}  # fmt: skip
"""Shapes of states, as the calendar of nights has them: colour is not the only sign."""
FILES_SHOWN = 200
"""Paths of a difference of two trees."""
DRAWN, DRAWN_FOR = 40, timedelta(days=1)
"""Artifacts of a timeline, and its length at most."""
NEARLY = 0.99
"""Highest share that a running preparation shows: a build may be larger than the one before."""


@dataclass(frozen=True, slots=True)
class PrepareProgressView:
    """The progress of a preparation. `share`: 0 to 1 of the bytes of the build before; None: there was none."""

    files: int
    bytes: int
    share: float | None
    left_s: float | None


@dataclass(frozen=True, slots=True)
class ArtifactCell:
    """An artifact. `kind`: the style of its state; links are None where there is nothing to lead to."""

    line: Line
    id: str
    label: str
    kind: str
    going: PrepareProgressView | None = None
    task: str | None = None
    artifact: str | None = None
    path: str | None = None
    actions: tuple[tuple[str, str], ...] = ()

    @property
    def mark(self) -> str:
        """Shape of the state."""
        return BUSY_MARK if self.kind == "busy" else MARKS[self.line.fate]


@dataclass(frozen=True, slots=True)
class GlanceRow:
    """A platform of a build at a glance. `counts`: mark, style, state and number of each state that there is."""

    build_id: str | None
    platform: str
    cells: tuple[ArtifactCell, ...]
    counts: tuple[tuple[str, str, str, int], ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Projects by platforms of one build; a cell: None where the build has no such artifact."""

    build_id: str | None
    platforms: tuple[str, ...]
    rows: tuple[tuple[str, tuple[ArtifactCell | None, ...]], ...]


@dataclass(frozen=True, slots=True)
class NightProgress:
    """The progress of a night: artifacts that have ended, and an estimate for the rest. `share`: by bytes."""

    ended: int
    listed: int
    share: float
    left_s: float | None
    per_hour: float | None = None
    began_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ExpectedEnd:
    """When a night ends if it goes on as the last ones did: the middle of them, the earliest and the latest."""

    at: datetime
    earliest: datetime
    latest: datetime
    nights: int


class NightPhase(Enum):
    """Part of the course of an artifact; the value is its name on the page."""

    WAITING = "waits"
    PREPARE = "prepare"
    PUBLISH = "publish"
    UNKNOWN = "not recorded"


_LOOKS = {
    NightPhase.WAITING: ("#94a3b8", "/"),
    NightPhase.PREPARE: ("#60a5fa", ""),
    NightPhase.PUBLISH: ("#8b5cf6", ""),
    NightPhase.UNKNOWN: ("#a16207", "x"),
}
"""Colour and pattern of each phase."""


@dataclass(frozen=True, slots=True)
class ArtifactCourse:
    """An artifact over time, as far as the ledger has it: parts without a gap, and the time of its lease."""

    cell: ArtifactCell
    parts: tuple[tuple[NightPhase, datetime, datetime], ...]
    lease: tuple[datetime, datetime] | None
    read_at: datetime | None

    @property
    def begins(self) -> datetime:
        """Return when what is known of it begins."""
        return min((begin for _, begin, _ in self.parts), default=datetime.max.replace(tzinfo=UTC))

    def seconds(self, phase: NightPhase) -> float | None:
        """Return the length of a phase; None if it is not recorded."""
        lengths = [(end - begin).total_seconds() for name, begin, end in self.parts if name is phase]
        return sum(lengths) if lengths else None


def going(noted: NotedProgress, before: int | None) -> PrepareProgressView:
    """Return the progress of a preparation; `before`: bytes of the same artifact in the build before."""
    if not before:
        return PrepareProgressView(noted.files, noted.bytes, None, None)
    share = min(noted.bytes / before, NEARLY)
    seconds = (noted.noted_at - noted.began_at).total_seconds()
    left = seconds * (before - noted.bytes) / noted.bytes if 0 < noted.bytes < before else None
    return PrepareProgressView(noted.files, noted.bytes, share, left)


def cell_of(
    line: Line,
    slot: str,
    *,
    browser_url: Callable[[str], str | None],
    noted: Mapping[int, NotedProgress],
    before: Mapping[Pair, int],
) -> ArtifactCell:
    """Return the cell of an artifact.

    Args:
        line: The artifact in the night's summary.
        slot: The slot of the night.
        browser_url: Where a browser reaches a URL of an artifact, or None.
        noted: Progress of running preparations, by publication.
        before: Bytes of the build before, by project and platform.
    """
    publication, pair = line.publication, (line.project, line.platform)
    label, kind = line.fate.value, _KINDS[line.fate]
    if publication is not None and line.fate is ArtifactOutcome.OPEN:
        label, kind = publication.state.value, "busy" if publication.state in _BUSY else "wait"
    if line.fate is ArtifactOutcome.NEVER_ARRIVED and not line.required:
        kind = "wait"
    running = noted.get(publication.id) if publication is not None else None
    return ArtifactCell(
        line,
        id=f"{line.build_id or ''}--{line.project}--{line.platform}",
        label=label,
        kind=kind,
        going=going(running, before.get(pair)) if running is not None else None,
        task=task_of(publication.holder, publication.run_id) if publication is not None else None,
        artifact=browser_url(line.artifact.artifact.url) if line.artifact is not None else None,
        path=provenance(publication.repository, publication.destination) if publication is not None else None,
        actions=_actions(line, slot),
    )


def matrices(summary: Summary, cells: Sequence[ArtifactCell]) -> tuple[Matrix, ...]:
    """Return a matrix for each build of the night, the newest first, and one for what a night without a build lacks."""
    drawn = []
    for build_id in summary.builds or (None,):
        own = {(cell.line.project, cell.line.platform): cell for cell in cells if cell.line.build_id == build_id}
        platforms = tuple(sorted({platform for _, platform in own}))
        projects = sorted({project for project, _ in own}, key=lambda name: (name.casefold(), name))
        rows = tuple((project, tuple(own.get((project, platform)) for platform in platforms)) for project in projects)
        drawn.append(Matrix(build_id, platforms, rows))
    return tuple(drawn)


def progress_of(summary: Summary, now: datetime) -> NightProgress | None:
    """Return the progress of a night, by the sizes of its artifacts; None where none is listed or all have ended."""
    listed = [line for line in summary.lines if line.artifact is not None]
    ended = [line for line in listed if line.fate is not ArtifactOutcome.OPEN]
    if not listed or len(ended) == len(listed):
        return None
    whole = sum(max(line.artifact.artifact.size, 1) for line in listed if line.artifact)
    done = sum(max(line.artifact.artifact.size, 1) for line in ended if line.artifact)
    began = summary.total().began_at
    took = (now - began).total_seconds() if began is not None else 0.0
    left = took * (whole - done) / done if done and took > 0 else None
    per_hour = len(ended) * 3600 / took if ended and took > 0 else None
    return NightProgress(len(ended), len(listed), done / whole, left, per_hour, began)


def expected_end(progress: NightProgress, courses: Sequence[Sequence[float]], now: datetime) -> ExpectedEnd | None:
    """Return when the night ends, if what is left takes as long as it did in earlier nights.

    Args:
        progress: Of the night.
        courses: Of each earlier night, the seconds from its beginning to the end of each artifact, in order.
        now: Time of the progress.
    """
    if progress.began_at is None or not courses:
        return None
    elapsed = (now - progress.began_at).total_seconds()
    left = []
    for ends in courses:
        passed = min(progress.ended * len(ends) // progress.listed, len(ends) - 1)
        begin = ends[passed - 1] if passed else 0.0
        left.append(ends[-1] - max(begin, min(elapsed, ends[passed])))
    middle, least, most = (now + timedelta(seconds=seconds) for seconds in (median(left), min(left), max(left)))
    return ExpectedEnd(middle, least, most, len(courses))


def glance(cells: Sequence[ArtifactCell]) -> tuple[GlanceRow, ...]:
    """Return the artifacts by build and platform, each by the name of its project."""
    rows: dict[tuple[str, str], list[ArtifactCell]] = {}
    for cell in cells:
        rows.setdefault((cell.line.build_id or "", cell.line.platform), []).append(cell)
    drawn = []
    for (build_id, platform), own in sorted(rows.items()):
        own.sort(key=lambda cell: (cell.line.project.casefold(), cell.line.project))
        counts = Counter((cell.mark, cell.kind, cell.label) for cell in own)
        numbers = tuple((*look, number) for look, number in counts.most_common())
        drawn.append(GlanceRow(build_id or None, platform, tuple(own), numbers))
    return tuple(drawn)


def to_draw(cells: Sequence[ArtifactCell]) -> tuple[tuple[ArtifactCell, ...], int]:
    """Return the artifacts of a timeline, and how many others a run has taken.

    Those under way come first, then those that ended last: they decide when the night ends.
    """
    taken = [cell for cell in cells if cell.line.publication is not None]
    begins = [cell.line.publication.created_at for cell in taken if cell.line.publication]
    until = min(begins) + DRAWN_FOR if begins else None
    near = [cell for cell in taken if until and cell.line.publication and cell.line.publication.created_at <= until]
    near.sort(key=lambda cell: (cell.line.ended_at is None, cell.line.ended_at or until, cell.id), reverse=True)
    return tuple(near[:DRAWN]), len(taken) - len(near[:DRAWN])


def course_of(cell: ArtifactCell, prepared_since: datetime | None, now: datetime) -> ArtifactCourse | None:
    """Return the times of an artifact, from the moments and the lengths that the ledger has.

    A part of which the ledger does not tell what it was, as after a second try, is `NightPhase.UNKNOWN`.

    Args:
        cell: The artifact; None is returned if no run has taken it.
        prepared_since: When the preparation of its changeset began, if it has one.
        now: End of what is under way.
    """
    row = cell.line.publication
    if row is None:
        return None
    at, end = row.created_at, max(row.ended_at or now, row.created_at)
    parts: list[tuple[NightPhase, datetime, datetime]] = []

    def until(moment: datetime, phase: NightPhase) -> None:
        nonlocal at
        moment = min(max(moment, at), end)
        if moment > at:
            parts.append((phase, at, moment))
        at = moment

    first = NightPhase.WAITING if row.plan_try == 1 and row.prepare_try <= 1 else NightPhase.UNKNOWN
    took, hung_s = row.seconds.get("prepare"), sum(row.seconds.values()) - row.seconds.get("prepare", 0.0)
    recorded = (
        prepared_since is not None and took is not None and row.state is not State.PREPARING
        and row.created_at <= prepared_since <= end and _AGAIN not in row.reason
    )  # fmt: skip
    if recorded and prepared_since is not None and took is not None:
        until(prepared_since, first)
        until(prepared_since + timedelta(seconds=took), NightPhase.PREPARE)
    second = NightPhase.WAITING if recorded and row.publish_try <= 1 else NightPhase.UNKNOWN
    lease = None
    if row.state is State.PLANNED:
        until(end, first)
    elif row.state is State.PREPARING:
        until(row.updated_at, first)
        until(end, NightPhase.PREPARE)
    elif row.state is State.PREPARED:
        until(row.updated_at, NightPhase.PREPARE if recorded else NightPhase.UNKNOWN)
        until(end, NightPhase.WAITING)
    elif row.state is State.PUBLISHING:
        until(row.updated_at, second)
        until(end, NightPhase.WAITING if Wait.of_reason(row.reason) else NightPhase.PUBLISH)
    elif row.state.good and row.phase is Phase.PUBLISH and hung_s:
        until(end - timedelta(seconds=hung_s), second)
        until(end, NightPhase.PUBLISH)
        if row.lease_held_s is not None:
            released = end - timedelta(seconds=row.seconds.get("confirm", 0.0))
            lease = released - timedelta(seconds=row.lease_held_s), released
    elif row.state is State.SKIPPED and recorded:
        until(end, second)
    until(end, NightPhase.UNKNOWN)
    return ArtifactCourse(cell, tuple(parts), lease, row.verified_at)


_AGAIN = "; prepared again, since "
"""A publication with this in its reason was prepared by two tasks; the ledger has the times of the last."""


def timeline_figure(courses: Sequence[ArtifactCourse]) -> dict[str, Any] | None:
    """Return the plot of artifacts by phase over time; None if nothing took time."""
    moments = [moment for course in courses for _, *times in course.parts for moment in times]
    if not moments:
        return None
    moments += [course.read_at for course in courses if course.read_at and course.read_at <= min(moments) + DRAWN_FOR]
    bars: dict[NightPhase, list[DrawnSpan]] = {phase: [] for phase in NightPhase}
    leases, read = list[DrawnSpan](), list[DrawnSpan]()
    for number, course in enumerate(courses):
        name = course.cell.line.name
        for phase, begin, end in course.parts:
            length = f"{(end - begin).total_seconds():.1f} s from {begin:%H:%M:%S}"
            bars[phase].append(DrawnSpan(number, begin, end, f"{name}: {phase.value}, {length}"))
        if course.lease is not None:
            begin, end = course.lease
            held = f"{(end - begin).total_seconds():.2f} s from {begin:%H:%M:%S}"
            leases.append(DrawnSpan(number, begin, end, f"{name}: lease held, {held}"))
        if course.read_at is not None:
            read.append(
                DrawnSpan(number, course.read_at, course.read_at, f"{name}: read back, {course.read_at:%H:%M:%S}")
            )
    traces = [spans(phase.value, drawn, _LOOKS[phase][0], pattern=_LOOKS[phase][1])
              for phase, drawn in bars.items() if drawn]  # fmt: skip
    traces += [points("lease", leases, "#f59e0b", "line-ns-open")] if leases else []
    traces += [points("read back", read, "#10b981", "diamond")] if read else []
    begin, end = min(moments), max(moments)
    edge = max((end - begin) / 50, timedelta(seconds=1))
    names = [f"{course.cell.mark} {course.cell.line.name}" for course in courses]
    return timeline(names, traces, begin - edge, end + edge)


@dataclass(frozen=True, slots=True)
class ArtifactChange:
    """An artifact of which two builds differ. `before`, `after`: its figures, None where a build does not have it."""

    name: str
    before: ArtifactFigures | None
    after: ArtifactFigures | None

    @property
    def what(self) -> tuple[str, str, str]:
        """Return the mark, the style and the name of the change."""
        if self.before is None:
            return "+", "good", "new"
        return ("\N{MINUS SIGN}", "bad", "gone") if self.after is None else ("~", "busy", "changed")

    def grown(self, name: str) -> int | None:
        """Return by how much a figure grew; None where the ledger does not have both."""
        values = [0 if side is None else getattr(side, name) for side in (self.before, self.after)]
        return None if None in values else values[1] - values[0]


@dataclass(frozen=True, slots=True)
class BuildDifference:
    """The difference of two builds. `same`: number of artifacts that both list with one sum."""

    before: NightFigures
    after: NightFigures
    changes: tuple[ArtifactChange, ...]
    same: int

    @classmethod
    def of(cls, before: NightFigures, after: NightFigures) -> BuildDifference:
        """Compare two builds by the sums of their artifacts; the largest changes come first."""
        names = sorted({*before.artifacts, *after.artifacts})
        sides = [ArtifactChange(name, before.artifacts.get(name), after.artifacts.get(name)) for name in names]
        changes = [
            side for side in sides if not (side.before and side.after and side.before.sha256 == side.after.sha256)
        ]
        changes.sort(key=lambda change: (-abs(change.grown("bytes") or 0), change.name))
        return cls(before, after, tuple(changes), len(sides) - len(changes))

    def total(self, name: str) -> tuple[int, int]:
        """Return the sums of a figure over both builds, as far as the ledger has it."""
        before, after = (
            sum(getattr(figures, name) or 0 for figures in side.artifacts.values())
            for side in (self.before, self.after)
        )
        return before, after


@dataclass(frozen=True, slots=True)
class FileDifference:
    """Files of an artifact that two builds do not have in common. `shown`: mark and path of the first ones."""

    added: int
    changed: int
    removed: int
    shown: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, changes: Iterable[DifferingEntry], below: str) -> FileDifference:
        """Count files and links, but no directories and nothing that differs in its time alone."""
        counts, shown = Counter[Difference](), list[tuple[str, str]]()
        for change in changes:
            entry = change.after or change.before
            if (entry is not None and entry.is_directory) or change.what == ("mtime",):
                continue
            counts[change.kind] += 1
            if len(shown) < FILES_SHOWN:
                shown.append((change.kind.value, printable(change.path.removeprefix(below))))
        added, changed, removed = counts[Difference.ADDED], counts[Difference.CHANGED], counts[Difference.REMOVED]
        return cls(added, changed, removed, tuple(shown))


def cures_of(line: Line, slot: str, day: date) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Say what cures an artifact that is not in the repository, with links to filled-in forms that do it.

    Args:
        line: The artifact in the night's summary.
        slot: The slot of the night.
        day: The date of its builds.
    """
    which = {"slot": slot, "build_date": day.isoformat()}
    again = ("Install again", start("install", **which, projects=line.project, platforms=line.platform))
    without = [("Publish without it", start("without", **which, without=line.name))] if line.required else []
    skip = line.publication.skip_reason if line.publication is not None else None
    if line.fate is ArtifactOutcome.OPEN:
        if line.publication is not None:
            return "It goes on by itself. If nothing moves, read its log.", ()
        return "The next run of the night takes it, once what it depends on is there.", (again,)
    if line.fate is ArtifactOutcome.NEVER_ARRIVED:
        return "Have the build system list it; the next run takes it.", (again, *without)
    if line.fate is ArtifactOutcome.BLOCKED:
        if line.publication is None:
            accept = ("Accept quality", start("accept", **which))
            return "Correct the build, or accept its quality with a reason.", (accept,)
        if skip is Skip.UNDONE:
            return "Redo lets the next run install it again.", _actions(line, slot)
        if skip is Skip.SUPERSEDED:
            return "A run that was planned since then installs it.", (again,)
        if skip is Skip.REJECTED:
            return "Run it again, and approve it.", (again, *without)
        return f"Mend {line.blocked_by or 'what it depends on'} first.", (again, *without)
    text = cure_of(line.code) if line.publication is not None else "Correct its entry in the index."
    return text, (again, *without)


def _actions(line: Line, slot: str) -> tuple[tuple[str, str], ...]:
    """Return the actions of an artifact, each a link to a filled-in form."""
    publication = line.publication
    if line.build_id is None or publication is None:
        return ()
    which = {"slot": slot, "build_id": line.build_id, "projects": line.project, "platforms": line.platform}
    if publication.skip_reason is Skip.UNDONE:
        return (("redo", start("redo", **which)),)
    if line.fate.good:
        return (("undo", start("undo", **which)),)
    return ()
