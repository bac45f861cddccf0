"""The matrix of a night, from its summary: what each cell shows and where its links lead. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from include.monitoring.summary import ArtifactOutcome, Line, Summary
from include.nightlies.records.progress import NotedProgress
from include.nightlies.rules.states import Skip, State
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
    return NightProgress(len(ended), len(listed), done / whole, left)


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
